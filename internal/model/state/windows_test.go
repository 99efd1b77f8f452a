package state

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/windows"
)

var aWindow = record.Window{Length: 100, Every: 1000}

func window(at uint64, open bool) *record.Tensors {
	w := aWindow
	w.Open = open
	return &record.Tensors{Time: at, Window: w}
}

// A naiveModel of windows remembers every event, and looks at them when it is asked.
type naiveModel struct {
	events []event.Event
	open   []bool // whether a window was open, by event
	ends   []int  // of windows: how many events came before
}

// report says what was seen in windows, but for how long they lasted.
func (m *naiveModel) report() windows.Report {
	type made struct {
		time, size, stack uint64
	}
	r, rows := windows.Report{Process: prog}, map[uint64]*windows.Row{}
	row := func(stack uint64) *windows.Row {
		if rows[stack] == nil {
			rows[stack] = &windows.Row{Stack: stack}
		}
		return rows[stack]
	}
	rough, steps := windows.Report{}, int64(0)
	var peakBy, roughBy map[uint64]int64
	from := 0
	for _, end := range m.ends {
		live, by := map[uint64]made{}, map[uint64]int64{}
		seen, inside, began := false, -1, -1
		inStep := map[uint64]*windows.Row{}
		best, bestBy := int64(0), map[uint64]int64(nil)
		stepsHere := int64(0)
		// Without a whole step, the peak is that of all parts of the window.
		part := func() {
			if best > rough.Peak {
				rough.Peak, roughBy = best, bestBy
			}
		}
		for i := from; i < end; i++ {
			if !m.open[i] {
				continue
			}
			e := &m.events[i]
			if !seen {
				seen = true
				r.Windows++
				if e.Op == event.OpTensorFree { // the window began with more
					best = int64(e.Handle + e.Size)
					bestBy = copyOf(by, best)
				}
			}
			stack := e.Stack
			size := int64(e.Size)
			if e.Op == event.OpTensorFree {
				x, ok := live[e.Addr]
				delete(live, e.Addr)
				if stack, size = windows.Before, -size; ok {
					stack = x.stack
					y, life := row(stack), time.Duration(e.Time-x.time)
					y.Freed++
					y.Life += life
					y.Longest = max(y.Longest, life)
				}
			} else {
				live[e.Addr] = made{e.Time, e.Size, e.Stack}
				row(stack).AllocObjects++
				row(stack).AllocBytes += size
			}
			// The moment before this tensor is the last one of a step that it ends.
			if e.Op == event.OpTensorAlloc && e.TID == prog.PID {
				is := 0
				if e.Stack == atStep {
					is = 1
				}
				if inside == 0 && is == 1 {
					if began >= 0 && r.Windows > 0 {
						stepsHere++
						for id, x := range inStep {
							row(id).StepBytes += x.StepBytes
							row(id).StepObjects += x.StepObjects
						}
						if !r.WholeStep || best > r.Peak || best == r.Peak && bestBy[windows.Before] < peakBy[windows.Before] {
							r.WholeStep, r.Peak, peakBy = true, best, bestBy
						}
					}
					part()
					began, inStep = i, map[uint64]*windows.Row{}
					best, bestBy = int64(e.Handle)-size, copyOf(by, int64(e.Handle)-size)
				}
				inside = is
			}
			if size > 0 {
				if inStep[stack] == nil {
					inStep[stack] = &windows.Row{}
				}
				inStep[stack].StepBytes += size
				inStep[stack].StepObjects++
			}
			if stack != windows.Before {
				by[stack] += size
			}
			if held := int64(e.Handle); held > best || bestBy == nil {
				best, bestBy = held, copyOf(by, held)
			}
		}
		part()
		steps += stepsHere
		for _, x := range live {
			row(x.stack).Outlived++
			row(x.stack).OutlivedBytes += int64(x.size)
		}
		from = end
	}
	if r.Steps = steps; !r.WholeStep {
		r.Peak, peakBy = rough.Peak, roughBy
	}
	r.Before = peakBy[windows.Before]
	for id, x := range rows {
		x.PeakBytes = peakBy[id]
		r.Stacks = append(r.Stacks, x)
	}
	slices.SortFunc(r.Stacks, func(a, b *windows.Row) int {
		return cmp.Or(cmp.Compare(b.PeakBytes, a.PeakBytes), cmp.Compare(b.AllocBytes, a.AllocBytes), cmp.Compare(a.Stack, b.Stack))
	})
	return r
}

// copyOf returns what stacks hold of all that is held.
func copyOf(by map[uint64]int64, held int64) map[uint64]int64 {
	out := map[uint64]int64{}
	for id, n := range by {
		out[id] = n
		held -= n
	}
	out[windows.Before] = held
	return out
}

// A windowedTrainer makes the events of a training, each with the allocator's totals.
type windowedTrainer struct {
	trainer
	held int64
	live []event.Event
}

func newWindowedTrainer(tell func(*event.Event)) *windowedTrainer {
	x := &windowedTrainer{}
	x.tell = func(r record.Record) {
		e := r.(*event.Event)
		if e.Op == event.OpTensorAlloc {
			x.held += int64(e.Size)
			x.live = append(x.live, *e)
		} else {
			x.held -= int64(e.Size)
			x.live = slices.DeleteFunc(x.live, func(old event.Event) bool { return old.Addr == e.Addr })
		}
		e.Handle, e.Part = uint64(x.held), 1<<30
		tell(e)
	}
	return x
}

// TestWindows compares with the naive model: of a training whose steps differ, whose windows begin
// and end anywhere, and of which tensors outlive windows and are from before them.
func TestWindows(t *testing.T) {
	steps := int64(0)
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		s, naive, isOpen := begun(record.Trace{}), &naiveModel{}, false
		late := program()
		told := func(share int) {
			for _, id := range []uint64{atLoad, atForward, atBackward, atStep, atLeak} {
				if st := late[id]; st != nil && rng.IntN(share) == 0 {
					delete(late, id)
					s.Apply(st)
				}
			}
		}
		s.Apply(window(0, false))
		x := newWindowedTrainer(func(e *event.Event) {
			if !isOpen { // what a tracer would not have seen
				return
			}
			s.Apply(e)
			naive.events, naive.open = append(naive.events, *e), append(naive.open, true)
			told(40)
		})
		toggle := func() {
			told(2 - int(seed%2))
			if isOpen = !isOpen; isOpen {
				s.Apply(window(x.at, true))
				return
			}
			for id := range late {
				s.Apply(late[id])
			}
			clear(late)
			s.Apply(window(x.at, false))
			s.Apply(&record.Moment{Time: x.at, Drained: true})
			naive.ends = append(naive.ends, len(naive.events))
		}
		maybe := func() {
			if rng.IntN(40) == 0 {
				toggle()
			}
		}
		x.make(prog.PID, atLoad, 1000)
		for range 60 - 57*int(seed%3/2) { // in a short one, no step may be whole
			var acts []uint64
			for range 1 + rng.IntN(4) {
				acts = append(acts, x.make(prog.PID, atForward, 100+uint64(rng.IntN(50))))
				maybe()
			}
			if rng.IntN(3) == 0 {
				x.make(prog.PID, atLeak, 5)
			}
			gradient := x.make(workers, atBackward, 40+uint64(rng.IntN(9)))
			for _, addr := range acts {
				i := slices.IndexFunc(x.live, func(e event.Event) bool { return e.Addr == addr })
				x.free(addr, x.live[i].Size)
				maybe()
			}
			if rng.IntN(9) > 0 {
				temporary := x.make(prog.PID, atStep, 8)
				maybe()
				x.free(temporary, 8)
			}
			i := slices.IndexFunc(x.live, func(e event.Event) bool { return e.Addr == gradient })
			x.free(gradient, x.live[i].Size)
			for n := rng.IntN(3); n > 0 && len(x.live) > 1; n-- {
				old := x.live[rng.IntN(len(x.live))]
				x.free(old.Addr, old.Size)
			}
			maybe()
		}
		if isOpen {
			toggle()
		}
		got := s.windows.Reports(x.at, true)
		want := naive.report()
		if want.Windows == 0 {
			continue
		}
		if len(got) != 1 {
			t.Fatalf("seed %d: %d reports", seed, len(got))
		}
		got[0].Time, got[0].Reserved, got[0].AllocObjects, got[0].AllocBytes = 0, 0, 0, 0
		if d := gocmp.Diff(&want, got[0]); d != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, d)
		}
		steps += want.Steps
		for _, c := range s.loss() {
			if c.Value != 0 {
				t.Errorf("seed %d: %s %d", seed, c.Name, c.Value)
			}
		}
	}
	if steps < 500 {
		t.Errorf("only %d whole steps in all", steps)
	}
}

// The peak of a window without a whole step is its highest moment, also if a step began after it.
func TestWindowPeakBeforeStep(t *testing.T) {
	s := begun(record.Trace{})
	for _, st := range program() {
		s.Apply(st)
	}
	s.Apply(window(5, true))
	x := newWindowedTrainer(func(e *event.Event) { s.Apply(e) })
	x.make(prog.PID, atLoad, 1000)
	x.free(x.make(prog.PID, atForward, 5000), 5000)
	x.make(prog.PID, atStep, 8)
	s.Apply(window(x.at, false))
	s.Apply(&record.Moment{Time: x.at, Drained: true})
	r := s.windows.Reports(x.at, true)[0]
	if r.WholeStep || r.Peak != 6000 || r.Stacks[0].Stack != atForward || r.Stacks[0].PeakBytes != 5000 || r.Stacks[1].PeakBytes != 1000 {
		t.Errorf("%+v, the first row %+v", r, r.Stacks[0])
	}
}

// The window of a process ends when the process does, or replaces its image: what it had is neither
// live nor followed, and the window's time does not go on.
func TestWindowEndsWithProcess(t *testing.T) {
	for name, op := range map[string]event.Op{"exit": event.OpExit, "exec": event.OpExec} {
		s := begun(record.Trace{})
		for _, st := range program() {
			s.Apply(st)
		}
		s.Apply(alloc(prog, 4, 1<<30, 1<<20)) // what it allocated keeps the process known
		s.Apply(window(5, true))
		s.Apply(tensor(10, 1<<30, 100, atForward, 100))
		s.Apply(&event.Event{Op: op, Time: 25, Proc: prog, TID: prog.PID})
		r := s.windows.Reports(1000, true)
		if len(r) != 1 || r[0].Time != 20 || r[0].Peak != 100 || r[0].Stacks[0].Outlived != 1 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// The first step of a window begins with gradients from before it. The same peak of a later step has
// their stack, also in a later window.
func TestWindowPeakHasStacks(t *testing.T) {
	s := begun(record.Trace{})
	for _, st := range program() {
		s.Apply(st)
	}
	s.Apply(window(0, false))
	isOpen := false
	x := newWindowedTrainer(func(e *event.Event) {
		if isOpen {
			s.Apply(e)
		}
	})
	x.make(prog.PID, atLoad, 1000)
	old := uint64(0)
	backward := func() {
		if old != 0 {
			x.free(old, 500)
		}
		x.free(x.make(prog.PID, atForward, 100), 100)
		old = x.make(workers, atBackward, 500)
	}
	step := func() { x.free(x.make(prog.PID, atStep, 80), 80) }
	for _, c := range []struct{ steps, before, backward int64 }{{2, 1500, 0}, {3, 1000, 500}, {2, 1000, 500}} {
		backward()
		isOpen = true
		s.Apply(window(x.at, true))
		x.free(x.make(prog.PID, atForward, 1), 1)
		for range c.steps {
			step()
			backward()
		}
		isOpen = false
		s.Apply(window(x.at, false))
		s.Apply(&record.Moment{Time: x.at, Drained: true})
		r := s.windows.Reports(x.at, true)[0]
		i := slices.IndexFunc(r.Stacks, func(x *windows.Row) bool { return x.Stack == atBackward })
		if r.Peak != 1580 || r.Before != c.before || r.Stacks[i].PeakBytes != c.backward {
			t.Errorf("%+v, the gradient %+v", r, r.Stacks[i])
		}
		// What was there before the window is in its steps.
		last := s.steps.Reports(time.Time{})[0].Steps.Last
		if len(last) == 0 || last[len(last)-1].PeakBytes != 1580 {
			t.Errorf("the steps %+v", last)
		}
	}
}

// What is in use, and what the driver layer has, is the same as without tensors, in windows and
// outside of them.
func TestWindowsLeaveSegmentsWhole(t *testing.T) {
	with, without := begun(record.Trace{}), begun(record.Trace{})
	both := func(r record.Record) { with.Apply(r); without.Apply(r) }
	for _, st := range program() {
		both(st)
	}
	with.Apply(window(0, false))
	check := func(when string) {
		t.Helper()
		a, b := with.View(Want{Live: true, Driver: true}).Snapshot(), without.View(Want{Live: true, Driver: true}).Snapshot()
		if d := gocmp.Diff(b.Samples, a.Samples); d != "" {
			t.Errorf("%s: %s", when, d)
		}
		if d := gocmp.Diff(b.Live, a.Live); d != "" {
			t.Errorf("%s: %s", when, d)
		}
		if d := gocmp.Diff(b.Processes, a.Processes); d != "" || len(a.Allocators) != 0 {
			t.Errorf("%s: %d allocators, %s", when, len(a.Allocators), d)
		}
	}
	segment := event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Proc: prog, TID: prog.PID, Time: 10, Addr: 1 << 30, Size: 1 << 20, Stack: atLoad}
	both(&segment)
	with.Apply(window(20, true))
	e := tensor(30, 1<<30, 4096, atForward, 4096+1000)
	with.Apply(e)
	check("in a window")
	with.Apply(window(40, false))
	with.Apply(tensor(50, 1<<30+8192, 4096, atForward, 9192)) // too late for the window
	check("after it")
	both(&event.Event{Op: event.OpFree, Proc: prog, TID: prog.PID, Time: 60, Addr: 1 << 30})
	check("after the segment's end")
	got := with.windows.Reports(60, true)
	if len(got) != 1 || got[0].Peak != 5096 || got[0].Before != 1000 || got[0].Stacks[0].AllocObjects != 1 || got[0].Stacks[0].Outlived != 1 || got[0].Time != 20*time.Nanosecond {
		t.Errorf("%+v", got)
	}
	for _, c := range with.loss() {
		if c.Value != 0 {
			t.Errorf("%s %d", c.Name, c.Value)
		}
	}
}

// A window may end once each process that trains had a whole step in it. One that never had a step
// is waited for in its first window alone.
func TestWindowIsComplete(t *testing.T) {
	s := begun(record.Trace{})
	for _, st := range program() {
		s.Apply(st)
	}
	x := newWindowedTrainer(func(e *event.Event) { s.Apply(e) })
	want := func(complete bool, when string) {
		t.Helper()
		if s.WindowIsComplete() != complete {
			t.Errorf("%s: complete %v", when, !complete)
		}
	}
	open := func() { s.Apply(window(x.at, false)); s.Apply(window(x.at, true)) }
	want(true, "no window")
	open()
	want(true, "no tensor")
	x.make(prog.PID, atForward, 1)
	want(false, "the first tensor")
	open()
	x.make(prog.PID, atForward, 1)
	want(true, "the second window, and never a step")
	x.make(prog.PID, atStep, 1)
	want(false, "a step began")
	x.iterate(0, atStep)
	want(true, "a whole step")
	open()
	x.make(prog.PID, atForward, 1)
	want(false, "the next window of a process that trains")
	x.iterate(0, atStep)
	want(false, "its first step began")
	x.iterate(0, atStep)
	want(true, "a whole step of that window")
	if r := s.windows.Reports(x.at, true); len(r) != 1 || r[0].Windows != 3 || r[0].Steps != 2 {
		t.Errorf("%+v", r)
	}
	open()
	x.make(prog.PID, atForward, 1)
	s.Apply(&event.Event{Op: event.OpExit, Time: x.at + 1, Proc: prog})
	want(true, "the process has ended")
}

// What began in the middle of a window counts from there, as a window of its own.
func TestWindowsAfterKeyframe(t *testing.T) {
	whole, cut := begun(record.Trace{}), New()
	whole.Apply(&record.Process{Process: prog, Target: true})
	for _, st := range program() {
		whole.Apply(st)
	}
	whole.Apply(window(0, false))
	x := newWindowedTrainer(func(e *event.Event) { whole.Apply(e); cut.Apply(e) })
	whole.Apply(window(1, true))
	x.make(prog.PID, atLoad, 1000)
	x.iterate(0, atStep)
	cut.Apply(&record.Cut{Time: whole.Now()})
	whole.Keyframe(cut.Apply)
	for range 3 {
		x.iterate(0, atStep)
	}
	for _, s := range []*State{whole, cut} {
		s.Apply(window(x.at, false))
		s.Apply(&record.Moment{Time: x.at, Drained: true})
	}
	a, b := whole.windows.Reports(x.at, true)[0], cut.windows.Reports(x.at, true)[0]
	if a.Steps != 3 || b.Steps != 2 || a.Peak != b.Peak || a.Before != 0 || b.Before != 1000 || cut.windows.Count != 1 {
		t.Errorf("%+v\n%+v", a, b)
	}
	if w := cut.TensorWindows(); w == nil || w.Length != 100 || w.Time >= whole.TensorWindows().Time {
		t.Errorf("%+v, %+v", w, whole.TensorWindows())
	}
}

// What cannot be is counted, and does no harm.
func TestWindowsLoss(t *testing.T) {
	s := begun(record.Trace{})
	for _, st := range program() {
		s.Apply(st)
	}
	s.Apply(window(5, true))
	s.Apply(tensor(10, 1<<30, 100, atForward, 100))
	s.Apply(tensor(11, 1<<30, 50, atLoad, 50)) // the first one's end was lost
	s.Apply(tensorEnd(12, 1<<30, 50, 70))      // and the beginning of another
	s.Apply(tensor(13, 1<<31, 10, atForward, event.NoTotal))
	s.Apply(window(20, false))
	s.Apply(&record.Moment{Time: 20, Drained: true})
	lost := map[string]uint64{}
	for _, c := range s.loss() {
		if c.Value != 0 {
			lost[c.Name] = c.Value
		}
	}
	if d := gocmp.Diff(map[string]uint64{"window_totals_differ": 1}, lost); d != "" {
		t.Error(d)
	}
	if r := s.windows.Reports(20, true); fmt.Sprint(r[0].Peak, r[0].Stacks[0].Outlived+r[0].Stacks[1].Outlived) != "120 1" {
		t.Errorf("%+v", r)
	}
}

// Stacks in windows beyond those that there is room for are counted.
func TestLossOfWindowStacks(t *testing.T) {
	s := New()
	s.Apply(&record.Trace{})
	s.Apply(&record.Process{Process: prog, Target: true, FromStart: true})
	s.Apply(window(5, true))
	for i := range uint64(windows.MaxSites + 1) {
		s.Apply(&event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Proc: prog, TID: prog.PID, Time: 10, Addr: (i + 1) << 20, Size: 8, Stack: i + 1, Handle: event.NoTotal, Part: event.NoTotal})
	}
	if n := s.lossOf("window_stacks_full"); n != 1 {
		t.Errorf("%d tensors are in no row, want one", n)
	}
}
