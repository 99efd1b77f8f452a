package record

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// What allocators say comes back, also as many of them as the writer put into a record, with
// the largest numbers.
func TestTensorsRoundTrip(t *testing.T) {
	most := &Tensors{Sample: 1 << 30, Time: 1<<64 - 1}
	all := Tally{1<<64 - 1, 1<<64 - 2}
	for i := range 256 {
		most.Allocators = append(most.Allocators, Allocator{Process: event.Process{PID: 1<<32 - 1, Start: 1<<64 - 1 - uint64(i)}, Device: event.NoDevice,
			Allocated: event.NoTotal, Reserved: event.NoTotal, Made: all, Freed: all})
	}
	want := []Record{
		&Tensors{Sample: 1 << 20},
		&Tensors{Sample: 1, Time: 7, Allocators: []Allocator{{Process: event.Process{PID: 1, Start: 2}, Device: 3, Allocated: 4, Reserved: 5,
			Made: Tally{6, 7}, Freed: Tally{8, 9}}}},
		most,
	}
	want = append(want, tensorWindow()...)
	for _, r := range want {
		if n, ok := bound(r); !ok || n > maxPayload {
			t.Errorf("a record of up to %d bytes, %v", n, ok)
		}
	}
	if d := cmp.Diff(want, readAll(t, newTestReader(t, encoded(t, maxPayload, want...)))); d != "" {
		t.Error(d)
	}
}

// tensorWindow returns the records of one window.
func tensorWindow() []Record {
	w := Window{Length: 2e9, Every: 60e9}
	open := w
	open.Open = true
	return []Record{&Tensors{Window: w}, &Tensors{Time: 1e9, Window: open}, &Tensors{Time: 3e9, Window: w}}
}
