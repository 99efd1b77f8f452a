package snapshot

import "testing"

func TestCause(t *testing.T) {
	for _, c := range []struct{ kind, leaf, want string }{
		{"device", "cuMemAlloc_v2", "allocations"},
		{"vmm", "[no call site: limit reached]", "allocations"},
		{"async", "", "allocations"},
		{"", "malloc", "allocations"},
		{"context", "[context]", "context"},
		{"graph_exec", "[graph]", "graph"},
		{"driver", "[driver rounding]", "driver rounding"},
		{"driver", "[allocated before attach]", "allocated before attach"},
		{"system", "[driver's system memory]", "driver's system memory"},
		{"context", "", "context"},
		{"stream", "cuStreamCreate", "stream"},
		{"host", "[no stack]", "host"},
		{"managed", "cuMemAllocManaged", "managed"},
		{"code", "[", "code"},
	} {
		s := &Sample{Labels: Labels{Kind: c.kind}}
		if c.leaf != "" {
			s.Stack = []*Location{{Lines: []Line{{Function: c.leaf}}}}
		}
		if got := Cause(s); got != c.want {
			t.Errorf("Cause of %s under %q is %q, want %q", c.kind, c.leaf, got, c.want)
		}
	}
}

func TestOnGPU(t *testing.T) {
	for kind, want := range map[string]bool{
		"device": true, "async": true, "": true, "driver": true, "pool": true, "context": true, "shared": true,
		"tensor": true, "cached": true,
		"system": false, "host": false, "managed": false, "imported": false, "graph": false,
	} {
		if got := OnGPU(kind); got != want {
			t.Errorf("OnGPU(%q) is %t", kind, got)
		}
	}
}
