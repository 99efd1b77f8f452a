package state

import (
	"slices"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

const mib = 1 << 20

var prog = event.Process{PID: 17, Start: event.StartUnit}

// begun is a state in which prog is traced from its start.
func begun(t record.Trace) *State {
	s := New()
	t.Start = time.Unix(1_700_000_000, 0)
	t.Boot = t.Start
	t.APIs = apis
	s.Apply(&t)
	s.Apply(&record.Process{Process: prog, Target: true, Name: "prog", FromStart: true})
	return s
}

func alloc(p event.Process, at, addr, size uint64) *event.Event {
	return &event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: p, TID: p.PID, Time: at, API: 1, Addr: addr, Size: size}
}

func free(p event.Process, at, addr uint64) *event.Event {
	return &event.Event{Op: event.OpFree, Proc: p, TID: p.PID, Time: at, API: 2, Addr: addr}
}

func exit(p event.Process, at uint64) *event.Event {
	return &event.Event{Op: event.OpExit, Proc: p, Time: at}
}

// held is a reading of one GPU on which prog holds bytes.
func held(at uint64, bytes int64) *record.Reading {
	return &record.Reading{Begin: at, Time: at, Uses: []record.Use{{Process: prog, Bytes: bytes, Known: true}}, Ordinals: []record.Ordinal{{Process: prog}, {Process: prog, Ordinal: event.NoDevice}},
		Devices: []record.Device{{UUID: "GPU-a", Label: "3", GPU: 6, GPUKnown: true, Instance: -1, Listed: true, Processes: []snapshot.GPUProcess{{PID: int(prog.PID)}}}}}
}

// nobody is a reading of the same GPU while nobody is on it.
func nobody(at uint64) *record.Reading {
	r := held(at, 0)
	r.Uses, r.Ordinals, r.Devices[0].Processes = nil, nil, nil
	return r
}

func lines(t *testing.T, s *State) map[string]int64 {
	t.Helper()
	accounts := s.View(Want{Driver: true}).Snapshot().Accounts
	if len(accounts) != 1 || accounts[0].GPU != "3" {
		t.Fatalf("accounts %+v", accounts)
	}
	out := map[string]int64{}
	for _, l := range accounts[0].Lines {
		out[l.Name] = l.Bytes
	}
	return out
}

// A reading is compared with what was live at its moment, though its record
// comes between events of before and after.
func TestReadingIsOfItsMoment(t *testing.T) {
	for name, after := range map[string]record.Record{
		"a later event": alloc(prog, 21, 0x20000000, 64*mib),
		"a moment":      &record.Moment{Time: 20, Drained: true},
		"a reading":     held(30, 700*mib),
	} {
		t.Run(name, func(t *testing.T) {
			s := begun(record.Trace{NVML: true})
			s.Apply(held(20, 600*mib))
			s.Apply(alloc(prog, 10, 0x10000000, 32*mib)) // it was on its way
			if got := s.View(Want{Driver: true}).Snapshot().Accounts; len(got) != 1 || got[0].Known {
				t.Errorf("the reading did not wait: %+v", got)
			}
			s.Apply(after)
			if got := lines(t, s); got[LineRemainder] != 568*mib {
				t.Errorf("%v", got)
			}
		})
	}
}

// Where every process is traced, one that ended is shown until it was reported.
func TestReported(t *testing.T) {
	for _, all := range []bool{false, true} {
		s := begun(record.Trace{All: all})
		s.Apply(alloc(prog, 1, 0x1000, 64))
		s.Apply(exit(prog, 2))
		shown := func() int { return len(s.View(Want{}).Snapshot().Processes) }
		if shown() != 1 {
			t.Fatal("it is not shown")
		}
		s.Apply(&record.Reported{})
		if got, want := shown() == 0, all; got != want {
			t.Errorf("every process is traced: %v; gone %v after the report", all, got)
		}
		if s.Over() == all {
			t.Errorf("every process is traced: %v; over %v", all, s.Over())
		}
	}
}

// A process that was never seen is to be looked at, once.
func TestWants(t *testing.T) {
	s := begun(record.Trace{All: true, NVML: true})
	if w := s.Wants(); w != nil {
		t.Errorf("wants %+v", w)
	}
	other := event.Process{PID: 18, Start: event.StartUnit}
	s.Apply(alloc(other, 1, 0x1000, 64))
	s.Apply(free(other, 2, 0x1000))
	if w := s.Wants(); w == nil || !slices.Equal(w.Identities, []event.Process{other}) || w.Reading {
		t.Errorf("wants %+v", w)
	}
	if w := s.Wants(); w != nil {
		t.Errorf("wants %+v twice", w)
	}
}

// A stack stays through a sweep for as long as a call site of either layer or an
// incident needs it.
func TestSweepKeepsWhatIsShown(t *testing.T) {
	s := begun(record.Trace{NVML: true, Physical: true, Incidents: 1})
	for id := uint64(1); id <= 5; id++ {
		s.Apply(&record.Stack{ID: id, Process: prog})
	}
	with := func(e *event.Event, stack uint64) *event.Event {
		e.Stack = stack
		return e
	}
	s.Apply(with(alloc(prog, 1, 0x1000, 64), 1))
	k := opened(s, prog, 6)
	k.takes(6, "cuStreamCreate", 2*mib, 2)
	s.Apply(with(&event.Event{Op: event.OpOutOfMemory, Proc: prog, Time: 7, Size: 1}, 3))
	s.Apply(&record.Sweep{})
	if ids, _ := s.MarkedStacks(); !slices.Equal(slices.Sorted(slices.Values(ids)), []uint64{4, 5}) {
		t.Errorf("doomed %v, want 4 and 5", ids)
	}
	s.Apply(with(alloc(prog, 8, 0x2000, 64), 5)) // it came up again
	s.Apply(&record.Sweep{Drop: true})
	if n := s.Size().Stacks; n != 4 {
		t.Errorf("%d stacks stay, want 4", n)
	}
}

// Names that come after a view was taken are in its snapshot.
func TestNamesComeLater(t *testing.T) {
	s := begun(record.Trace{})
	place := record.NewPlace(1, 0x1234, nil, nil)
	s.Apply(&record.Stack{ID: 1, Process: prog, Frames: []*record.Place{place}})
	e := alloc(prog, 1, 0x1000, 64)
	e.Stack = 1
	s.Apply(e)
	v := s.View(Want{Live: true})
	first, again := s.Unnamed()
	if len(first) != 1 || first[0] != place || len(again) != 0 {
		t.Fatalf("unnamed %v, %v", first, again)
	}
	s.Apply(&record.Name{Place: place, Location: &snapshot.Location{Address: 0x1234, Lines: []snapshot.Line{{Function: "train"}}}, Final: true})
	snap := v.Snapshot()
	if len(snap.Samples) != 1 || len(snap.Samples[0].Stack) != 2 || snap.Samples[0].Stack[1].Lines[0].Function != "train" {
		t.Errorf("%+v", snap.Samples)
	}
	if len(snap.Live) != 1 || snap.Live[0].Address != 0x1000 || snap.Live[0].Sample != 0 {
		t.Errorf("%+v", snap.Live)
	}
}

// A Cut begins afresh.
func TestCut(t *testing.T) {
	s := begun(record.Trace{})
	s.Apply(alloc(prog, 1, 0x1000, 64))
	s.Apply(&record.Cut{Time: 5_000_000_000})
	snap := s.View(Want{Live: true}).Snapshot()
	if len(snap.Samples)+len(snap.Live)+len(snap.Processes) != 0 {
		t.Errorf("what came before a cut is shown: %+v", snap)
	}
	if len(snap.Notes) != 1 {
		t.Errorf("notes %q", snap.Notes)
	}
}

// A moment at which events are still on their way tells neither that they were
// seen, nor what was live at a reading before it that they belong to.
func TestMomentWithEventsOnTheirWay(t *testing.T) {
	s := begun(record.Trace{NVML: true})
	s.Apply(alloc(prog, 10, 0x10000000, 32*mib))
	s.Apply(held(20, 600*mib))
	s.Apply(&record.Moment{Time: 15})
	if s.Seen() != 10 {
		t.Errorf("events are seen up to %d, want 10", s.Seen())
	}
	s.Apply(alloc(prog, 19, 0x20000000, 32*mib))
	s.Apply(&record.Moment{Time: 40})
	if s.Seen() != 19 || s.Now() != 40 {
		t.Errorf("events are seen up to %d at %d, want 19 at 40", s.Seen(), s.Now())
	}
	if got := lines(t, s); got[LineAllocations] != 64*mib {
		t.Errorf("%v", got)
	}
	s.Apply(&record.Moment{Time: 50, Drained: true})
	if s.Seen() != 50 {
		t.Errorf("events are seen up to %d, want 50", s.Seen())
	}
}

// A stack that was told after a view was taken can be added to it.
func TestComplete(t *testing.T) {
	s := begun(record.Trace{})
	e := alloc(prog, 10, 0x1000, 64)
	e.Stack = 5
	s.Apply(e)
	s.Apply(free(prog, 11, 0x9000)) // without a stack
	v := s.View(Want{})
	line := snapshot.Line{Function: "late"}
	s.Apply(&record.Stack{ID: 5, Process: prog, Frames: []*record.Place{record.NewPlace(1, 0, &snapshot.Location{Lines: []snapshot.Line{line}}, nil)}})
	if v.HasAllStacks() {
		t.Error("it lacks no stack")
	}
	s.AddStacks(v)
	if st := v.Snapshot().Samples[0].Stack; !v.HasAllStacks() || len(st) != 2 || st[1].Lines[0] != line {
		t.Errorf("%v", st)
	}
}
