package probes

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

var update = flag.Bool("update", false, "write the coverage list into docs/functions.md")

// The coverage list of docs/functions.md is made from Table: `go test ./probes -run
// TestDocs -update` after a change.
func TestDocs(t *testing.T) {
	const file, begin, end = "../docs/functions.md", "<!-- coverage: begin -->\n", "<!-- coverage: end -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(text), begin)
	old, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no coverage list", file)
	}
	want := coverage()
	if old == want {
		return
	}
	if !*update {
		t.Fatalf("the coverage list of %s is out of date: go test ./probes -run TestDocs -update", file)
	}
	if err := os.WriteFile(file, []byte(head+begin+want+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// version is what the name of a function has where libcuda has several versions of it.
var version = regexp.MustCompile(`(_v\d+|_ptsz)+$`)

func coverage() string {
	var b strings.Builder
	for _, level := range []Level{Driver, Runtime, Torch, TorchCUDA, Kernel} {
		for _, does := range effects {
			var names []string
			var kinds []string
			for i := range Table {
				if r := &Table[i]; r.Level == level && does.match(r) {
					for _, s := range r.Symbols {
						if s = "`" + version.ReplaceAllString(s, "") + "`"; !slices.Contains(names, s) {
							names = append(names, s)
						}
					}
					if k := r.Kind.String(); r.Kind != event.KindNone && !slices.Contains(kinds, k) {
						kinds = append(kinds, k)
					}
				}
			}
			if len(names) > 0 {
				text := does.text
				if len(kinds) > 0 {
					text += " (" + strings.Join(kinds, ", ") + ")"
				}
				fmt.Fprintf(&b, "- %s: %s\n", text, strings.Join(names, " "))
			}
		}
	}
	return b.String()
}

// effects are the items of the coverage list; each row of Table matches one.
var effects = []struct {
	text  string
	match func(*Row) bool
}{
	{"memory comes to live", func(r *Row) bool {
		return (r.Op == event.OpAlloc || r.Op == event.OpHandleCreate || r.Op == event.OpTensorAlloc) && r.Kind.Class() != event.ClassImported
	}},
	{"another owner's memory is mapped, or memory that counts elsewhere", func(r *Row) bool { return r.Kind.Class() == event.ClassImported }},
	{"memory, a mapping or a reference ends", func(r *Row) bool {
		switch r.Op {
		case event.OpFree, event.OpHandleRelease, event.OpUnmap:
			return true
		}
		return false
	}},
	{"physical memory is mapped or referred to once more", func(r *Row) bool {
		switch r.Op {
		case event.OpMap, event.OpMapArray, event.OpHandleRetain:
			return true
		}
		return false
	}},
	{"a CUDA graph is captured, given away or destroyed, and what it allocates with it", func(r *Row) bool {
		switch r.Op {
		case event.OpCaptureBegin, event.OpCaptureEnd, event.OpGraphMove, event.OpGraphDestroy:
			return r.Level == Driver
		}
		return false
	}},
	{"PyTorch takes memory for a private pool from here on, or no more", func(r *Row) bool { return r.Level == TorchCUDA }},
	{"address space: watched, never counted", func(r *Row) bool {
		return r.Op == event.OpReserve || r.Op == event.OpUnreserve
	}},
	{"pools", func(r *Row) bool {
		switch r.Op {
		case event.OpPoolCreate, event.OpPoolDestroy, event.OpPoolTrim, event.OpNone:
			return r.class == classEmit
		}
		return false
	}},
	{"contexts begin and end, and their allocations with them", func(r *Row) bool {
		switch r.Op {
		case event.OpContextCreate, event.OpContextSeen, event.OpContextDestroy, event.OpPrimaryReset, event.OpPrimaryRelease:
			return true
		}
		return false
	}},
	{"which context or device is current", func(r *Row) bool {
		switch r.class {
		case classCtxSet, classCtxPush, classCtxPop, classCtxDevice, classDeviceSet:
			return true
		}
		return false
	}},
	{"what the kernel driver hands out inside is for it", func(r *Row) bool { return r.class == classCause || r.Op == event.OpGraphInstantiate }},
	{"what libcuda asks of the kernel driver: the probe is on its call of the C library", func(r *Row) bool { return r.imported() }},
	{"the kernel driver's objects come and end, memory among them", func(r *Row) bool { return r.Level == Kernel }},
	{"what a program was told a function's address is: a warning if it has no probe", func(r *Row) bool { return r.Op == opProcAddress }},
	{"a framework's own allocator gave up (out-of-memory reports)", func(r *Row) bool { return r.Op == event.OpOutOfMemory }},
}

// No row is missing from the list, and none is in it twice.
func TestCoverageIsWhole(t *testing.T) {
	for i := range Table {
		n := 0
		for _, does := range effects {
			if does.match(&Table[i]) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is in %d items of the coverage list", Table[i].Symbols[0], n)
		}
	}
}
