package unwind

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"

	"github.com/gpumemtrace/gpumemtrace/bpf"
)

// Before Linux 6.1 a hash map that allocates while a tracing program runs makes the
// kernel warn, and a PREEMPT_RT kernel refuses it (check_map_prog_compatibility,
// kernel/bpf/verifier.c).
func TestHashMapsArePreallocated(t *testing.T) {
	own, err := bpf.LoadGpumemtrace()
	if err != nil {
		t.Fatal(err)
	}
	coll, err := ebpf.NewCollection(own)
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	u, err := Start(t.Context(), Options{Maps: coll.Maps})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	var bytes uint64
	for _, all := range []map[string]*ebpf.Map{coll.Maps, u.kernel.maps} {
		for name, m := range all {
			info, err := m.Info()
			if err != nil {
				t.Fatal(err)
			}
			switch info.Type {
			case ebpf.Hash, ebpf.PerCPUHash, ebpf.HashOfMaps:
				locked, _ := info.Memlock()
				bytes += locked
				if m.Flags()&features.BPF_F_NO_PREALLOC != 0 {
					t.Errorf("%s allocates while programs run", name)
				}
			default:
			}
		}
	}
	t.Logf("hash maps: %d KiB", bytes>>10)
}
