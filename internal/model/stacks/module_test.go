package stacks

import (
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// TestModuleIsBounded: names of a kilobyte, in each other, make no label of a megabyte.
// The innermost modules are those that are kept.
func TestModuleIsBounded(t *testing.T) {
	frame := func(name, file string) *snapshot.Location {
		return &snapshot.Location{Lines: []snapshot.Line{{Function: name, File: file, Line: 1}}}
	}
	call := frame("Module._call_impl", "/lib/torch/nn/modules/module.py")
	stack := []*snapshot.Location{frame("Inner.forward", "/home/me/net.py"), call, frame("Outer.forward", "/home/me/net.py"), call}
	if got := Module(stack); got != "Outer/Inner" {
		t.Errorf("%q", got)
	}
	for range 700 {
		stack = append(stack, frame(strings.Repeat("N", 1000)+".forward", "/home/me/net.py"), call)
	}
	if got := Module(stack); len(got) > maxModule || !strings.HasSuffix(got, "/Outer/Inner") || !strings.HasPrefix(got, "…/") {
		t.Errorf("%d bytes: %.100q", len(got), got)
	}
}
