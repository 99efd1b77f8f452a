package ledger

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// TestHoldings has a row for each way in which what is held on a device
// changes.
func TestHoldings(t *testing.T) {
	reset := ev(9, event.OpPrimaryReset, device(0))
	held := []*event.Event{
		ev(1, alloc, at(16, 100)), ev(2, alloc, at(32, 50)), ev(3, alloc, at(48, 7), device(1)),
	}
	tests := []struct {
		name   string
		opt    Options
		events []*event.Event
		want   map[int32]int64
	}{
		{"what is allocated counts on its device", Options{}, held,
			map[int32]int64{0: 150, 1: 7}},
		{"what is freed is no more, and its device stays", Options{},
			append(held[:3:3], ev(4, free, at(16, 0)), ev(5, free, at(48, 0))),
			map[int32]int64{0: 50, 1: 0}},
		{"a pool's memory too", Options{}, []*event.Event{ev(1, alloc, at(16, 100), async)},
			map[int32]int64{0: 100}},
		{"host, managed and imported memory is not in it", Options{}, []*event.Event{
			ev(1, alloc, at(16, 1), kind(event.KindHost)), ev(2, alloc, at(32, 1), kind(event.KindManaged)),
			ev(3, event.OpOpen, at(48, 1), imported)},
			map[int32]int64{}},
		{"what the kernel driver handed out is", Options{}, []*event.Event{
			ev(1, alloc, at(16, 10), kind(event.KindBacking)), ev(2, alloc, at(32, 20), kind(event.KindContext)),
			ev(3, alloc, at(48, 30), kind(event.KindSystem), device(-1)), ev(4, alloc, at(64, 40), kind(event.KindOther), device(1)), ev(5, free, at(16, 0))},
			map[int32]int64{0: 20, 1: 40}},
		{"a device that no call got memory on is named", Options{}, []*event.Event{ev(1, alloc, at(16, 1), device(3), result(2))},
			map[int32]int64{3: 0}},
		{"beyond MaxLive bytes count, on no device", Options{MaxLive: 1, MaxUnattributed: 1},
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, create, vmm, handle(1), size(50)), ev(3, alloc, at(48, 5))},
			map[int32]int64{0: 100, -1: 50}},
		{"and end as all else", Options{MaxLive: 1, MaxUnattributed: 1},
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, create, vmm, handle(1), size(50)), ev(4, release, handle(1))},
			map[int32]int64{0: 100}},
		{"physical memory counts until its last mapping goes", Options{},
			[]*event.Event{ev(1, create, vmm, handle(1), size(50)), ev(2, mapped, handle(1), at(4096, 50)), ev(3, release, handle(1))},
			map[int32]int64{0: 50}},
		{"and then no more", Options{},
			[]*event.Event{ev(1, create, vmm, handle(1), size(50)), ev(2, mapped, handle(1), at(4096, 50)), ev(3, release, handle(1)), ev(4, unmap, at(4096, 50))},
			map[int32]int64{0: 0}},
		{"a size that a mapping tells counts from then on", Options{},
			[]*event.Event{ev(1, create, vmm, handle(1)), ev(2, mapped, handle(1), at(4096, 50))},
			map[int32]int64{0: 50}},
		{"what waits for its device is on none", Options{}, []*event.Event{ev(1, alloc, at(16, 50), ctx(5), device(-1))},
			map[int32]int64{-1: 50}},
		{"a context's device takes over what waited for it", Options{},
			[]*event.Event{ev(1, alloc, at(16, 50), ctx(5), device(-1)), ev(2, alloc, at(32, 3), ctx(6), device(-1)), ev(3, event.OpContextSeen, ctx(5), device(2))},
			map[int32]int64{2: 50, -1: 3}},
		{"and its end", Options{},
			[]*event.Event{ev(1, alloc, at(16, 50), ctx(5), device(-1)), ev(3, event.OpContextSeen, ctx(5), device(2)), ev(4, free, at(16, 0))},
			map[int32]int64{2: 0}},
		{"the end of a context ends what is in it", Options{},
			[]*event.Event{ev(1, event.OpContextCreate, ctx(5)), ev(2, alloc, at(16, 3), ctx(5)), ev(3, alloc, at(32, 4), async, ctx(5)), ev(4, event.OpContextDestroy, ctx(5))},
			map[int32]int64{0: 4}},
		{"a reset ends what is on its device", Options{}, append(held[:3:3], reset),
			map[int32]int64{0: 0, 1: 7}},
		{"exec ends all", Options{}, append(held[:3:3], ev(4, event.OpExec)), map[int32]int64{0: 0, 1: 0}},
		{"an ended process shows what it held", Options{}, append(held[:3:3], ev(4, event.OpExit), ev(5, free, at(16, 0))),
			map[int32]int64{0: 150, 1: 7}},
		{"also when its rows made room for others", Options{MaxLive: 3},
			append(held[:3:3], ev(4, event.OpExit), ev(5, alloc, at(16, 9), of(event.Process{PID: 8, Start: 80}))),
			map[int32]int64{0: 150, 1: 7}},
		{"folded sites held nothing", Options{MaxSites: 2},
			[]*event.Event{ev(1, alloc, at(16, 100), stack(1)), ev(2, alloc, at(32, 10), stack(2)), ev(3, free, at(32, 0)),
				ev(4, alloc, at(48, 1), stack(3)), ev(5, alloc, at(64, 2), stack(4))},
			map[int32]int64{0: 101, -1: 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := New(tt.opt)
			for _, e := range tt.events {
				l.Apply(e)
			}
			if diff := cmp.Diff(tt.want, bytesByDevice(l, proc)); diff != "" {
				t.Errorf("holdings differ (-want +got):\n%s", diff)
			}
		})
	}
}

// TestForgottenHoldsNothing: a process that is not known has no holding.
func TestForgottenHoldsNothing(t *testing.T) {
	l := New(Options{})
	l.Apply(ev(1, alloc, at(16, 100)))
	l.Forget(proc)
	for h := range l.UseByDevice(proc) {
		t.Errorf("%+v", h)
	}
}

// TestDevicesFull: beyond the bound what is held is on no device that is told
// apart, and its end finds it there.
func TestDevicesFull(t *testing.T) {
	l := New(Options{})
	const n = maxDevices + 5
	for i := range uint64(n) {
		l.Apply(ev(i+1, alloc, at(16*(i+1), 10), device(int32(i))))
	}
	devices, bytes := 0, int64(0)
	for h := range l.UseByDevice(proc) {
		devices++
		bytes += h.Bytes
		if h.Device == event.NoDevice && h.Bytes != 50 {
			t.Errorf("%d bytes on no device, want 50", h.Bytes)
		}
	}
	if devices != maxDevices+1 || bytes != 10*n || lossOf(l, "devices_full") != 5 {
		t.Errorf("%d bytes on %d devices, %d not told apart", bytes, devices, lossOf(l, "devices_full"))
	}
	for i := range uint64(n) {
		l.Apply(ev(n+1, free, at(16*(i+1), 0)))
	}
	for h := range l.UseByDevice(proc) {
		if h.Bytes != 0 {
			t.Errorf("after all frees: %+v", h)
		}
	}
}
