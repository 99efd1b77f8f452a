//go:build cgo

package main

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

// The table of descriptors has room for a trace's from the start.
func TestRoomForDescriptors(t *testing.T) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`FDSize:\t(\d+)`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("%s", b)
	}
	if n, _ := strconv.Atoi(string(m[1])); n < 1024 {
		t.Errorf("room for %d", n)
	}
}
