package unwind

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	sdtypes "go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"
	"go.opentelemetry.io/ebpf-profiler/processmanager/ebpfapi"
	"go.opentelemetry.io/ebpf-profiler/support"
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

// What the unwinder makes up itself, as for the vdso of arm64, has the rules that it numbered.
func TestFromDeltas(t *testing.T) {
	array := map[uint16]sdtypes.UnwindInfo{}
	tables := tables{
		kernel: &kernel{table: &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, Flags: features.BPF_F_MMAPABLE}},
		own:    map[uint16]sdtypes.UnwindInfo{},
		rules: rules{numbers: map[sdtypes.UnwindInfo]*rule{}, put: func(n uint16, info sdtypes.UnwindInfo) error {
			array[n] = info
			return nil
		}},
	}
	first, second := sdtypes.UnwindInfo{BaseReg: 7, Param: 8}, sdtypes.UnwindInfo{BaseReg: 7, Param: 16}
	if _, err := tables.rules.acquire([]sdtypes.UnwindInfo{{BaseReg: 5}}); err != nil {
		t.Fatal(err)
	}
	for i, info := range []sdtypes.UnwindInfo{first, second} {
		if err := tables.UpdateUnwindInfo(uint16(i), info); err != nil {
			t.Fatal(err)
		}
	}
	const signal = uint16(support.UnwindCommandSignal) | support.DeltaCommandFlag
	l, err := tables.fromDeltas([]ebpfapi.StackDeltaEBPF{
		{AddressLow: 0x300, UnwindInfo: 0}, {AddressLow: 0x304, UnwindInfo: 1}, {AddressLow: 0x2000, UnwindInfo: 0}, {AddressLow: 0x2100, UnwindInfo: signal},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.inner.Close()
	for i, want := range []uint16{0x300, 0x304, 0x2000, 0x2100} {
		var entry struct{ Address, Rule uint16 }
		if err := l.inner.Lookup(uint32(i), &entry); err != nil {
			t.Fatal(err)
		}
		rule, known := array[entry.Rule]
		if entry.Address != want || i == 3 && entry.Rule != signal || i < 3 && (!known || rule != []sdtypes.UnwindInfo{first, second, first}[i]) {
			t.Errorf("entry %d: %+v, rule %+v", i, entry, rule)
		}
	}
}
