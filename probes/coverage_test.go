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
		if title := titles[level]; title != "" {
			fmt.Fprintf(&b, "\n%s:\n\n", title)
		}
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

// titles are those of levels; a level without one follows the one before.
var titles = map[Level]string{
	Driver: "libcuda", Runtime: "libcudart", Torch: "PyTorch", Kernel: "The kernel driver, by `ioctl`",
}

// effects are the items of the coverage list: what functions do. Each row of Table matches one.
var effects = []struct {
	text  string
	match func(*Row) bool
}{
	{"allocate memory", func(r *Row) bool {
		return (r.Op == event.OpAlloc || r.Op == event.OpHandleCreate) && r.Kind.Class() != event.ClassImported
	}},
	{"report that a tensor begins or ends", func(r *Row) bool { return r.Op == event.OpTensorAlloc }},
	{"map another owner's memory, or memory that counts elsewhere", func(r *Row) bool { return r.Kind.Class() == event.ClassImported }},
	{"free memory, or end a mapping or a reference", func(r *Row) bool {
		switch r.Op {
		case event.OpFree, event.OpHandleRelease, event.OpUnmap:
			return true
		}
		return false
	}},
	{"map physical memory, or refer to it once more", func(r *Row) bool {
		switch r.Op {
		case event.OpMap, event.OpMapArray, event.OpHandleRetain:
			return true
		}
		return false
	}},
	{"capture, give away or destroy a CUDA graph, and with it what it allocates", func(r *Row) bool {
		switch r.Op {
		case event.OpCaptureBegin, event.OpCaptureEnd, event.OpGraphMove, event.OpGraphDestroy:
			return r.Level == Driver
		}
		return false
	}},
	{"begin or end to allocate for a private pool", func(r *Row) bool { return r.Level == TorchCUDA }},
	{"reserve or free address space, which never counts", func(r *Row) bool {
		return r.Op == event.OpReserve || r.Op == event.OpUnreserve
	}},
	{"make, find, set, trim or destroy pools", func(r *Row) bool {
		switch r.Op {
		case event.OpPoolCreate, event.OpPoolDestroy, event.OpPoolTrim, event.OpNone:
			return r.class == classEmit
		}
		return false
	}},
	{"begin or end contexts, and with them their allocations", func(r *Row) bool {
		switch r.Op {
		case event.OpContextCreate, event.OpContextSeen, event.OpContextDestroy, event.OpPrimaryReset, event.OpPrimaryRelease:
			return true
		}
		return false
	}},
	{"set or tell the current context or device", func(r *Row) bool {
		switch r.class {
		case classCtxSet, classCtxPush, classCtxPop, classCtxDevice, classDeviceSet:
			return true
		}
		return false
	}},
	{"show what memory of the kernel driver is for", func(r *Row) bool { return r.class == classCause || r.Op == event.OpGraphInstantiate }},
	{"call the kernel driver, through the C library", func(r *Row) bool { return r.imported() }},
	{"make or end objects, memory among them", func(r *Row) bool { return r.Level == Kernel }},
	{"return a function's address: a warning if it has no probe", func(r *Row) bool { return r.Op == opProcAddress }},
	{"report that PyTorch's allocator gave up", func(r *Row) bool { return r.Op == event.OpOutOfMemory }},
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
