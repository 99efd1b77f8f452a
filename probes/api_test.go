package probes

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
)

// driverAPI returns the group of each function of CUDA's driver API: "row", "cause", or the reason why it needs
// neither.
func driverAPI(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("testdata/driver_api.txt")
	if err != nil {
		t.Fatal(err)
	}
	group, out := "", map[string]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		if reason, ok := strings.CutPrefix(line, ": "); ok {
			group = reason
			continue
		}
		for name := range strings.FieldsSeq(line) {
			if out[name] != "" || group == "" {
				t.Errorf("%s: in the groups %q and %q", name, out[name], group)
			}
			out[name] = group
		}
	}
	return out
}

// Each function of CUDA's driver API has a row, a cause, or a reason why it needs neither, and each row is for a
// function of that API.
func TestDriverAPI(t *testing.T) {
	api := driverAPI(t)
	rows := map[string]bool{}
	for _, e := range Entries[1:] {
		if e.Level == Driver && !e.imported() {
			rows[e.Symbol] = true
			if api[e.Symbol] != "row" {
				t.Errorf("%s has a row, and is in group %q of CUDA's functions", e.Symbol, api[e.Symbol])
			}
		}
	}
	for name, group := range api {
		switch group {
		case "row":
			if !rows[name] {
				t.Errorf("%s has no row", name)
			}
		case "cause":
			if physical.Cause(name) == event.KindOther {
				t.Errorf("%s has no cause", name)
			}
		}
		if unlisted([]byte(name)) {
			t.Errorf("%s (%s) counts as unknown", name, group)
		}
	}
	for _, pattern := range notMemory {
		begins, many := strings.CutSuffix(pattern, "*")
		used := false
		for name := range api {
			fits := name == begins || many && strings.HasPrefix(name, begins)
			used = used || fits && mayMoveMemory(name)
			if fits && rows[name] {
				t.Errorf("%s has a row, and %s says that it needs none", name, pattern)
			}
		}
		if !used {
			t.Errorf("no function needs %s", pattern)
		}
	}
}

// A function that a later driver exports is unknown if its name looks like an allocation, like the end of one, or
// like another version of a function that has a row.
func TestUnlisted(t *testing.T) {
	for name, want := range map[string]bool{
		"cuMemAllocFromPoolAsync_v2":     true,
		"cuMemCreate_v2_ptsz":            true,
		"cuMallocFabric":                 true,
		"cuGraphAddMemAllocNode_v2":      true,
		"cuCtxCreate_v5":                 true,
		"cuDevicePrimaryCtxRetain_v2":    true,
		"cuMemPoolTrimTo_v2":             true, // a version of a row
		"cuDeviceSetMemPool_ptsz":        true,
		"cuMemFree_v3":                   true,
		"cuMemAlloc_v2":                  false,
		"cuMemcpyFabricAsync":            false,
		"cuEventDestroy_v2":              false,
		"cuGraphicsD3D12RegisterSurface": false,
		"cudbgAllocate":                  false, // the debugger's
		"cumulusCreate":                  false,
		"ioctl@plt":                      false,
		"cuMemAlloc_v9@plt":              false, // a call of it
		"cu":                             false,
		"":                               false,
	} {
		if got := unlisted([]byte(name)); got != want {
			t.Errorf("unlisted(%q) = %t", name, got)
		}
	}
	if n := len(slices.Compact(slices.Sorted(slices.Values(notMemory)))); n != len(notMemory) {
		t.Error("a name is twice in the list")
	}
}
