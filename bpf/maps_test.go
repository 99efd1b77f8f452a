package bpf

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

func TestNewMaps(t *testing.T) {
	array := func(entries uint32) *ebpf.MapSpec {
		return &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: entries}
	}
	made, err := NewMaps(map[string]*ebpf.MapSpec{"small": array(1), "large": array(1000)})
	if err != nil {
		t.Fatal(err)
	}
	for name, entries := range map[string]uint32{"small": 1, "large": 1000} {
		if m := made[name]; m == nil || m.MaxEntries() != entries {
			t.Errorf("%s: %v", name, m)
		}
		made[name].Close()
	}
	made, err = NewMaps(map[string]*ebpf.MapSpec{"c": array(0), "a": array(1), "b": array(0)}) // no map is empty
	if err == nil || !strings.HasPrefix(err.Error(), "map b: ") || strings.Contains(err.Error(), "map c: ") || made != nil {
		t.Errorf("%v, %v", made, err)
	}
}
