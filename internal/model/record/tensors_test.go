package record

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// What allocators say comes back, also as many of them as a record may have, with the
// largest numbers.
func TestTensorsRoundTrip(t *testing.T) {
	most := &Tensors{Sample: 1 << 30, Min: 1 << 63, Time: 1<<64 - 1}
	all := Tally{1<<64 - 1, 1<<64 - 2}
	for i := range MaxAllocators {
		most.Allocators = append(most.Allocators, Allocator{Process: event.Process{PID: 1<<32 - 1, Start: 1<<64 - 1 - uint64(i)}, Device: event.NoDevice,
			Allocated: event.NoTotal, Reserved: event.NoTotal, Made: all, Freed: all, SmallMade: all, SmallFreed: all})
	}
	want := []Record{
		&Tensors{Sample: 1 << 20},
		&Tensors{Min: 4096, Time: 7, Allocators: []Allocator{{Process: event.Process{PID: 1, Start: 2}, Device: 3, Allocated: 4, Reserved: 5,
			Made: Tally{6, 7}, Freed: Tally{8, 9}, SmallMade: Tally{10, 11}, SmallFreed: Tally{12, 13}}}},
		most,
	}
	for _, r := range want {
		if n, ok := bound(r); !ok || n > maxPayload {
			t.Errorf("a record of up to %d bytes, %v", n, ok)
		}
	}
	if d := cmp.Diff(want, readAll(t, newTestReader(t, encoded(t, maxPayload, want...)))); d != "" {
		t.Error(d)
	}
}
