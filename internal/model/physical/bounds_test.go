package physical

import (
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// within fails if f, which would take hours if its cost were quadratic, takes minutes.
func within(t *testing.T, f func()) {
	t.Helper()
	hangs := time.AfterFunc(10*time.Minute, func() { panic(t.Name() + " takes hours") })
	defer hangs.Stop()
	f()
}

// A million objects each below the one before, and on a device: none costs more for
// how deep it is, and all end at once.
func TestDeep(t *testing.T) {
	within(t, func() {
		l := run()
		parent := uint64(device)
		const n = MaxObjects - 100
		for i := range uint64(n) {
			h := client>>32<<32 | 0x10000000 + i
			apply(l, ev(4+i, event.OpObject, name(h, parent)))
			parent = h
		}
		apply(l, ev(n+4, event.OpObjectMemory, name(first, parent), func(e *event.Event) { e.Size = mib }))
		if got := total(l, proc); got != mib {
			t.Errorf("held %d bytes, want 1 MiB", got)
		}
		apply(l, ev(n+5, event.OpObjectInstance, name(second, parent)), end(n+6, device))
		if len(l.objects) != 1 || total(l, proc) != 0 {
			t.Errorf("%d objects, %d bytes left", len(l.objects), total(l, proc))
		}
	})
}

// A hundred thousand who share one memory, let go of it by the owner each time.
func TestSharers(t *testing.T) {
	within(t, func() {
		l := run(makeMemory(4, first, mib))
		const n = 100_000
		h := func(i uint64) uint64 { return client>>32<<32 | 0x10000000 + i }
		for i := range uint64(n) {
			apply(l, makeShare(5+i, h(i), first))
		}
		apply(l, end(n+5, first))
		for i := uint64(n - 1); i > 0; i-- {
			if got := total(l, proc); got != mib {
				t.Fatalf("%d left: held %d bytes, want 1 MiB", i, got)
			}
			apply(l, end(n+6, h(i)))
		}
		apply(l, end(n+7, client))
		if got := total(l, proc); got != 0 {
			t.Errorf("held %d bytes, want none", got)
		}
	})
}

// What shares and ends together is passed on once.
func TestSharersEndTogether(t *testing.T) {
	within(t, func() {
		l := run(makeMemory(4, first, mib))
		for i := range uint64(200_000) {
			apply(l, makeShare(5+i, client>>32<<32|0x10000000+i, first))
		}
		apply(l, end(300_000, client))
		if n := len(l.objects); n != 0 {
			t.Errorf("%d objects left", n)
		}
	})
}

// Objects beyond the bound are counted as lost, and there is room again when others
// end.
func TestMaxObjects(t *testing.T) {
	l := run()
	for i := range uint64(MaxObjects) {
		apply(l, ev(4+i, event.OpObject, name(client>>32<<32|0x10000000+i, device)))
	}
	if n := len(l.objects); n > MaxObjects {
		t.Errorf("%d objects", n)
	}
	lost := lossOf(l, "driver_objects_full")
	if lost == 0 || lost > 10 {
		t.Errorf("%d lost", lost)
	}
	apply(l, end(MaxObjects+5, device), makeDevice(MaxObjects+6, device, 0), makeMemory(MaxObjects+7, first, mib))
	if got := total(l, proc); got != mib {
		t.Errorf("held %d bytes, want 1 MiB", got)
	}
}

// What a process leaves behind while it goes on is bounded: clients come and go, on
// many descriptors, threads and GPUs, and what was never seen made is named.
func TestNothingStays(t *testing.T) {
	l := run()
	for i := range uint64(20_000) {
		now := 10 * (i + 1)
		c := (i+0xc2d00000)<<32 | (i + 0xc2d00000)
		d := c>>32<<32 | 0x5c000002
		thread := on(uint32(i + 2))
		apply(l, makeClient(now, c, i+10, thread), tellGPU(now, i, i, thread), makeDevice(now+1, d, i%4, thread),
			makeMemory(now+2, c>>32<<32|3, mib, thread, in(inLaunch)), makeMemory(now+3, c>>32<<32|4, mib, thread, in(inAlloc)),
			end(now+4, c>>32<<32|3, thread, in(inLaunch)))
		if i%2 == 0 {
			apply(l, end(now+5, c))
		} else {
			apply(l, ev(now+5, event.OpDescriptorClose, number(i+10)))
		}
		apply(l, makeMemory(now+6, shared2+i, mib, name(shared2+i, device2)), end(now+7, shared2+i))
	}
	p := l.procs[proc]
	if len(l.objects) != 2 || len(l.clients) != 1 || len(p.descriptors) != 1 {
		t.Errorf("%d objects, %d clients, %d descriptors stay", len(l.objects), len(l.clients), len(p.descriptors))
	}
	if len(p.instances) > maxInstances || len(p.gpus) > 8 || len(p.freed) > maxThreads || len(p.latest) > maxThreads || len(p.endings) > maxThreads || len(p.backing) > len(l.objects) || len(p.buried) > maxBuried {
		t.Errorf("instances %d, GPUs %d, freed %d, latest %d, buried %d", len(p.instances), len(p.gpus), len(p.freed), len(p.latest), len(p.buried))
	}
	apply(l, ev(1_000_000, event.OpExit))
	l.Forget(proc)
	if len(l.objects)+len(l.clients)+len(l.procs) != 0 {
		t.Errorf("%d objects, %d clients, %d processes", len(l.objects), len(l.clients), len(l.procs))
	}
}

// GPUs beyond the bound are unknown GPUs, and are counted.
func TestMaxGPUs(t *testing.T) {
	l := run()
	for i := range uint64(maxGPUs + 10) {
		d := client>>32<<32 | 0x10000000 + i
		apply(l, makeDevice(4, d, 1000+i), makeMemory(5, d+0x10000000, mib, name(d+0x10000000, d)))
	}
	if n := len(l.GPUs(proc)); n != maxGPUs {
		t.Errorf("%d GPUs", n)
	}
	if lossOf(l, "driver_gpus_full") == 0 {
		t.Error("nothing counted")
	}
	if got := total(l, proc); got != (maxGPUs+10)*mib {
		t.Errorf("held %d bytes", got)
	}
}

// Whatever Rows has no room for, Held has it.
func TestHeldBeyondRows(t *testing.T) {
	l := New(ledger.Options{MaxLive: 10, MaxUnattributed: 10, MaxSites: 3})
	apply(l, begun(client, 6, proc)...)
	for i := range uint64(100) {
		apply(l, makeMemory(4+i, client>>32<<32|0x10000000+i, mib, stack(i)))
	}
	if got := l.BytesByGPU(proc)[0]; got != 100*mib {
		t.Errorf("held %d bytes, want 100 MiB", got)
	}
	apply(l, end(200, client))
	if got := l.BytesByGPU(proc)[0]; got != 0 {
		t.Errorf("held %d bytes, want none", got)
	}
}

func TestMaxProcesses(t *testing.T) {
	l := New(ledger.Options{})
	for i := range uint64(maxProcesses + 5) {
		apply(l, makeClient(2, client, 5, of(event.Process{PID: uint32(i + 1), Start: 1})))
	}
	if n := lossOf(l, "driver_callers_full"); n != 5 || len(l.procs) != maxProcesses {
		t.Errorf("%d lost, %d processes", n, len(l.procs))
	}
}
