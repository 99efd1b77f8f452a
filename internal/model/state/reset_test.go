package state

import (
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// ends makes a call of prog that ends a context.
func (k *kernel) ends(at uint64, op event.Op, ctx uint64, device int32, function string, objects ...uint64) {
	for _, o := range objects {
		k.frees(at+1, o, function)
	}
	k.apply(&event.Event{Op: op, Time: at, Ctx: ctx, Device: device})
}

func (k *kernel) resets(at uint64, device int32, objects ...uint64) {
	k.ends(at, event.OpPrimaryReset, 0, device, "cuDevicePrimaryCtxReset_v2", objects...)
}

// unplaced is an allocation whose context and device are not known.
func unplaced(at, addr, size uint64) *event.Event {
	e := alloc(prog, at, addr, size)
	e.Device = event.NoDevice
	return e
}

// backsUnplaced is such an allocation, and the memory for it.
func (k *kernel) backsUnplaced(at, addr, size, backing uint64) (object uint64) {
	object = k.takes(at, "cuMemAlloc_v2", backing, 0)
	k.state.Apply(unplaced(at, addr, size))
	return object
}

// liveOf are the addresses of prog's live allocations.
func liveOf(s *State) map[uint64]bool {
	out := map[uint64]bool{}
	for a := range s.ledger.Live {
		if a.Proc == prog {
			out[a.Addr+a.Handle] = true
		}
	}
	return out
}

func notNegative(t *testing.T, snap *snapshot.Snapshot) {
	t.Helper()
	for _, a := range snap.Accounts {
		for _, l := range a.Lines {
			if l.Bytes < 0 {
				t.Errorf("%s is %d", l.Name, l.Bytes)
			}
		}
	}
	for i := range snap.Samples {
		if x := &snap.Samples[i]; x.InuseBytes < 0 {
			t.Errorf("a sample of %d bytes: %s", x.InuseBytes, x.Stack[0].Lines[0].Function)
		}
	}
}

// The memory of allocations that a reset ended was seen to go, in a process that was
// attached to late and whose contexts are not known.
func TestLateReset(t *testing.T) {
	for _, ctx := range []uint64{0, 0xc0de} {
		s := attached()
		s.Apply(held(2, 700*mib))
		moment(s, 3)
		k := before(s, prog, 6)
		made := func(e *event.Event) { e.Ctx = ctx; s.Apply(e) }
		first := k.takes(10, "cuMemAlloc_v2", 4*mib, 0)
		made(unplaced(10, 0x7f0000000000, 3*mib))
		made(unplaced(11, 0x7f0000300000, 1000)) // in the same memory
		made(unplaced(12, 0x7e0000000000, 2000)) // in memory of before
		vmm := k.takes(13, "cuMemCreate", 8*mib, 0)
		s.Apply(&event.Event{Op: event.OpHandleCreate, Kind: event.KindVMM, Proc: prog, TID: prog.PID, Time: 13, Handle: 77, Size: 8 * mib, Device: 0})
		k.resets(20, 0, first)
		expect(t, "live after the reset", map[uint64]bool{77: true}, liveOf(s))
		s.Apply(nobody(30))
		moment(s, 31)
		snap := driven(s)
		notNegative(t, snap)
		if len(snap.Accounts) != 1 || snap.Accounts[0].Total != 8*mib {
			t.Errorf("%+v", snap.Accounts)
		}
		k.frees(32, vmm, "")
	}
}

// What a reset ended is told apart from what it did not by whose memory was seen to go.
func TestLateResetOfOne(t *testing.T) {
	s := attached()
	s.Apply(held(2, 700*mib))
	moment(s, 3)
	k := before(s, prog, 6)
	first := k.backsUnplaced(10, 0x7f0000000000, 1*mib, 2*mib)
	s.Apply(unplaced(11, 0x7f0000180000, 1000)) // in the memory of the first
	k.backsUnplaced(12, 0x7d0000000000, 1*mib, 2*mib)
	s.Apply(unplaced(13, 0x7e0000000000, 2000)) // in memory of before, of either
	k.resets(20, 0, first)
	expect(t, "live after the reset", map[uint64]bool{0x7d0000000000: true, 0x7e0000000000: true}, liveOf(s))
	if n := s.lossOf("context_owner_unknown"); n != 1 {
		t.Errorf("%d ends of which it is not known what they ended, want 1", n)
	}
}

// A call that failed, one that gave no memory back, and one of another thread, end nothing.
func TestLateResetWithoutEvidence(t *testing.T) {
	for name, reset := range map[string]func(k *kernel, object uint64){
		"failed": func(k *kernel, object uint64) {
			k.frees(21, object, "cuDevicePrimaryCtxReset_v2")
			k.apply(&event.Event{Op: event.OpPrimaryReset, Time: 20, Device: 0, Result: 1})
			k.resets(30, 0)
		},
		"gave nothing back": func(k *kernel, _ uint64) { k.resets(20, 0) },
		"before the call": func(k *kernel, object uint64) {
			k.frees(15, object, "cuDevicePrimaryCtxReset_v2")
			k.resets(20, 0)
		},
		"of another thread": func(k *kernel, object uint64) {
			k.state.Apply(&event.Event{Op: event.OpObjectFree, Proc: prog, TID: 4, Time: 21, Handle: object, Outer: api("cuDevicePrimaryCtxReset_v2")})
			k.resets(20, 0)
		},
	} {
		s := attached()
		s.Apply(held(2, 700*mib))
		moment(s, 3)
		k := before(s, prog, 6)
		object := k.backsUnplaced(10, 0x7f0000000000, 1*mib, 2*mib)
		reset(k, object)
		if !liveOf(s)[0x7f0000000000] {
			t.Errorf("%s: the allocation ended", name)
		}
	}
}

// The last release of a primary context, and the end of one of several contexts, are told
// by the memory that they give back.
func TestLateContextEnds(t *testing.T) {
	for _, op := range []event.Op{event.OpPrimaryRelease, event.OpContextDestroy} {
		s := attached()
		s.Apply(held(2, 700*mib))
		moment(s, 3)
		k := before(s, prog, 6)
		function, ctx := "cuDevicePrimaryCtxRelease_v2", uint64(0)
		if op == event.OpContextDestroy {
			function, ctx = "cuCtxDestroy_v2", 0xc0de
			for i, c := range []uint64{ctx, 0xbeef} {
				s.Apply(&event.Event{Op: event.OpContextSeen, Proc: prog, Time: 4 + uint64(i), Ctx: c, Device: 0})
			}
		}
		object := k.backsUnplaced(10, 0x7f0000000000, 1*mib, 2*mib)
		s.Apply(unplaced(12, 0x7e0000000000, 2000))
		k.ends(14, op, ctx, 0, function)
		if len(liveOf(s)) != 2 {
			t.Errorf("op %d: %v live after a call that gave nothing back", op, liveOf(s))
		}
		k.ends(20, op, ctx, 0, function, object)
		if len(liveOf(s)) != 0 {
			t.Errorf("op %d: %v live", op, liveOf(s))
		}
	}
}

// A process that the driver lists no more has no context, and so no memory that ends with
// one.
func TestLateUnlisted(t *testing.T) {
	s := attached()
	s.Apply(held(2, 700*mib))
	moment(s, 3)
	s.Apply(unplaced(10, 0x7e0000000000, 2*mib)) // in memory of before
	k := before(s, prog, 6)
	k.resets(20, 0)
	s.Apply(nobody(30))
	moment(s, 31)
	expect(t, "live", map[uint64]bool{}, liveOf(s))
	expect(t, "lines", map[string]int64{LineAllocations: 0}, lines(t, s))
	s.Apply(unplaced(40, 0x7e0000000000, 2*mib)) // in the next context
	s.Apply(nobody(50))
	moment(s, 51)
	if len(liveOf(s)) != 1 {
		t.Error("a second reading without the process ended what came after the first")
	}
}

// Pools outlive a reset, and the driver does not count them then: what they hold is shown,
// and so is what the driver's figure lacks of it.
func TestLatePoolAfterReset(t *testing.T) {
	s := attached()
	s.Apply(held(2, 700*mib))
	moment(s, 3)
	e := unplaced(10, 0x7e0000000000, 5*mib) // in a pool of before
	e.Kind, e.Device = event.KindAsync, 0
	s.Apply(e)
	k := before(s, prog, 6)
	k.resets(20, 0)
	s.Apply(nobody(30))
	moment(s, 31)
	snap := driven(s)
	notNegative(t, snap)
	if len(snap.Accounts) != 1 {
		t.Fatalf("%+v", snap.Accounts)
	}
	a := snap.Accounts[0]
	if a.Total != 5*mib || !a.Compared || a.Difference != -5*mib {
		t.Errorf("%+v", a)
	}
	if n := s.lossOf("driver_total_differs"); n != 0 {
		t.Errorf("%d readings that differ, want none: the driver lists a pool under no process", n)
	}
}

// No line of a process that was attached to late is negative, whatever comes.
func TestLateLinesAreNotNegative(t *testing.T) {
	for seed := range uint64(60) {
		s := New()
		physicalSteps(seed, 400, s, func(r record.Record) {
			if p, ok := r.(*record.Process); ok {
				p.FromStart = false
			}
			s.Apply(r)
		})
		for _, a := range driven(s).Accounts {
			for _, l := range a.Lines {
				if l.Bytes < 0 && strings.Contains(l.Name, "before attach") {
					t.Errorf("seed %d: %s is %d", seed, l.Name, l.Bytes)
				}
			}
		}
	}
}

func (s *State) lossOf(name string) uint64 {
	for _, c := range s.loss() {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}
