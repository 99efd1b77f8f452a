package unwind

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
)

// What is written to windows lies in the array, whatever of the last window it takes.
func TestArrayWindows(t *testing.T) {
	const inWindow = windowSize / stride
	for _, entries := range []uint32{1, 512, 513, inWindow - 1, inWindow, inWindow + 1, 3*inWindow + 7} {
		array, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: entries, Flags: features.BPF_F_MMAPABLE})
		if err != nil {
			t.Fatal(err)
		}
		w := arrayWindows{array: array}
		n := uint32(0)
		for {
			memory, err := w.next()
			if err != nil {
				t.Fatal(err)
			}
			if len(memory) == 0 {
				break
			}
			for ; len(memory) > 0; memory = memory[stride:] {
				n++
				binary.NativeEndian.PutUint32(memory, n)
			}
		}
		if n != entries {
			t.Errorf("windows for %d entries, want %d", n, entries)
		}
		for _, i := range []uint32{0, entries / 2, entries - 1} {
			var got uint32
			if err := array.Lookup(i, &got); err != nil || got != i+1 {
				t.Errorf("%d entries: entry %d is %d, %v", entries, i, got, err)
			}
		}
		if w.memory != nil {
			t.Errorf("%d entries: a window is left", entries)
		}
		array.Close()
	}
}
