package physical

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// TestGPUs has a row for each way in which a process's devices are told apart.
func TestGPUs(t *testing.T) {
	const again = client>>32<<32 | 0x5c000009
	ordinal := func(h uint64, n int32) *event.Event {
		return ev(9, event.OpGPU, func(e *event.Event) { e.Handle, e.Device = h, n })
	}
	tests := []struct {
		name   string
		events []*event.Event
		want   []GPU
	}{
		{"one that was told", nil, []GPU{{ID: 6, Known: true, Instance: -1, Ordinal: -1}}},
		{"opened twice", []*event.Event{makeDevice(4, again, 0)}, []GPU{{ID: 6, Known: true, Instance: -1, Ordinal: -1}}},
		{"another one", []*event.Event{tellGPU(4, 1, 7), makeDevice(5, again, 1)},
			[]GPU{{ID: 6, Known: true, Instance: -1, Ordinal: -1}, {ID: 7, Known: true, Instance: -1, Ordinal: -1}}},
		{"by another client", append(begun(client2, 6, proc), makeMemory(5, shared2, mib)),
			[]GPU{{ID: 6, Known: true, Instance: -1, Ordinal: -1}}},
		{"one that is told later", []*event.Event{makeDevice(4, again, 1), tellGPU(5, 1, 7)},
			[]GPU{{ID: 6, Known: true, Instance: -1, Ordinal: -1}, {ID: 7, Known: true, Instance: -1, Ordinal: -1}}},
		{"of before the trace, used by two", []*event.Event{makeMemory(4, shared2, mib), makeMemory(5, shared2+1, mib), makeMemory(6, shared3, mib)},
			[]GPU{{ID: 6, Known: true, Instance: -1, Ordinal: -1}, {Instance: -1, Ordinal: -1}, {Instance: -1, Ordinal: -1}}},
		{"an instance (MIG)", []*event.Event{ev(4, event.OpObjectInstance, name(again, device), number(3)), makeMemory(5, first, mib)},
			[]GPU{{ID: 6, Known: true, Instance: -1, Ordinal: -1}, {ID: 6, Known: true, Instance: 3, Ordinal: -1}}},
		{"with its ordinal", []*event.Event{ordinal(device, 2), ordinal(device, 3)}, []GPU{{ID: 6, Known: true, Instance: -1, Ordinal: 2}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := run(tt.events...)
			if d := cmp.Diff(tt.want, l.GPUs(proc), cmpopts.IgnoreUnexported(GPU{})); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// A device's ordinal is that of the allocation which its memory was taken for.
func TestBacks(t *testing.T) {
	tests := []struct {
		name   string
		events []*event.Event
		thread uint32
		want   int32
	}{
		{"the thread's latest memory", []*event.Event{makeMemory(4, first, mib, in(inAlloc))}, 1, 2},
		{"not another thread's", []*event.Event{makeMemory(4, first, mib, in(inAlloc))}, 2, event.NoDevice},
		{"not memory for something else", []*event.Event{makeMemory(4, first, mib, in(inLaunch))}, 1, event.NoDevice},
		{"not what is for the host's memory", []*event.Event{makeMemory(4, first, mib, in(inHost))}, 1, event.NoDevice},
		{"not once there is newer", []*event.Event{makeMemory(4, first, mib, in(inAlloc)), makeMemory(5, second, mib, in(inLaunch))}, 1, event.NoDevice},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := run(tt.events...)
			l.LinkAllocation(allocation(5, 0x1000, on(tt.thread)), 2)
			l.LinkAllocation(allocation(6, 0x2000, on(tt.thread)), 3)
			if got := l.GPUs(proc)[0].Ordinal; got != tt.want {
				t.Errorf("ordinal %d, want %d", got, tt.want)
			}
		})
	}
}

// What a process's CUDA calls a device is a matter of its image: the next one may
// have other devices visible.
func TestOrdinalAfterExec(t *testing.T) {
	l := run(makeMemory(4, first, mib, in(inAlloc)))
	l.LinkAllocation(allocation(4, 0x1000), 2)
	apply(l, ev(5, event.OpExec))
	if got := l.GPUs(proc)[0].Ordinal; got != event.NoDevice {
		t.Errorf("after an exec the ordinal is %d", got)
	}
	apply(l, makeClient(6, client, 5), makeDevice(7, device, 0), makeMemory(8, first, mib, in(inAlloc)))
	l.LinkAllocation(allocation(9, 0x1000), 0)
	if got := l.GPUs(proc)[0].Ordinal; got != 0 {
		t.Errorf("the next image calls it %d, want 0", got)
	}
}
