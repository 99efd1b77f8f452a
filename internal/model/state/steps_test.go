package state

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/steps"
)

// Stacks of a training: where its tensors are made.
const (
	atLoad = iota + 1
	atForward
	atBackward // of autograd's thread: nothing of Python
	atStep
	atOtherStep // of another optimizer
	atLeak
)

// program tells the stacks of a training, as records.
func program() map[uint64]*record.Stack {
	s := New()
	main := [][2]string{{"main", "/home/user/train.py"}, {"<module>", "/home/user/train.py"}}
	optimizer := func(file string, by ...[2]string) [][2]string {
		return slices.Concat([][2]string{{"step", torch + "optim/" + file}, {"Optimizer.profile_hook_step.<locals>.wrapper", torch + "optim/optimizer.py"}}, by, main)
	}
	for id, python := range map[uint64][][2]string{
		atLoad: main, atForward: slices.Concat(inLinear(), main), atBackward: nil, atLeak: slices.Concat([][2]string{{"log", "/home/user/train.py"}}, main),
		atStep: optimizer("adam.py"), atOtherStep: optimizer("adam.py", [2]string{"update", "/home/user/gan.py"}),
	} {
		trained(s, id, []string{"at::_ops::empty::call"}, python...)
	}
	out := map[uint64]*record.Stack{}
	for st := range s.stacks.All {
		out[st.ID] = st
	}
	return out
}

// A training is told as records, with the time in its events.
type trainer struct {
	tell func(record.Record)
	at   uint64
	next uint64
}

const workers = 2 // the first thread of autograd

func (x *trainer) make(thread uint32, stack, size uint64) (addr uint64) {
	x.at, x.next = x.at+10, x.next+1
	e := tensor(x.at, x.next<<30, size, stack, event.NoTotal)
	e.TID = thread
	x.tell(e)
	return e.Addr
}

func (x *trainer) free(addr, size uint64) {
	x.at += 10
	x.tell(tensorEnd(x.at, addr, size, event.NoTotal))
}

// iterate is one step of a training that makes an activation, a gradient and, in its
// optimizer, something temporary; leak bytes stay.
func (x *trainer) iterate(leak uint64, optimizers ...uint64) {
	activation := x.make(prog.PID, atForward, 100)
	if leak > 0 {
		x.make(prog.PID, atLeak, leak)
	}
	gradient := x.make(workers, atBackward, 40)
	x.free(activation, 100)
	for _, stack := range optimizers {
		for range 2 {
			x.free(x.make(prog.PID, stack, 8), 8)
		}
	}
	x.free(gradient, 40)
}

// seen returns the steps of the one device.
func seen(t *testing.T, s *State) snapshot.Steps {
	t.Helper()
	all := s.View(Want{Steps: true}).Snapshot().Steps
	if len(all) != 1 {
		t.Fatalf("%d devices, want 1", len(all))
	}
	return all[0]
}

func steady(in string, list []snapshot.Step) string {
	for i := range list {
		if m := list[i].Moved; m != list[0].Moved {
			return fmt.Sprintf("%s: step %d: %+v, the first %+v", in, list[i].Number, m, list[0].Moved)
		}
	}
	return ""
}

// Each step has what came and went from one call of the optimizer's step to the next.
func TestSteps(t *testing.T) {
	s := begun(record.Trace{})
	for _, st := range program() {
		s.Apply(st)
	}
	x := &trainer{tell: s.Apply}
	x.make(prog.PID, atLoad, 1000)
	x.iterate(0, atStep)
	if got := seen(t, s); !got.Begun || got.Seen != 0 || len(got.Last) != 0 || got.Over != 0 {
		t.Errorf("after one call: %+v", got)
	}
	began := x.at
	for range 5 {
		x.iterate(0, atStep)
	}
	got := seen(t, s)
	want := snapshot.Moved{AllocBytes: 156, AllocObjects: 4, FreedBytes: 156, FreedObjects: 4, PeakBytes: 1140, InuseBytes: 1040}
	if got.Seen != 5 || len(got.Last) != 5 || got.Last[1].Moved != want || got.Grown != 0 || len(got.Grew) != 0 {
		t.Errorf("got %+v, want 5 of %+v", got, want)
	}
	if d := steady("of all", got.Last); d != "" {
		t.Error(d)
	}
	if first := got.Last[0]; first.Number != 1 || first.Took != 80 || !first.Begin.Equal(s.Wall(began-40)) {
		t.Errorf("the first: %+v", first)
	}
	if all := got.Total; all.AllocBytes != 5*156 || all.FreedObjects != 20 || all.PeakBytes != 1140 || all.InuseBytes != 1040 {
		t.Errorf("total %+v", all)
	}
	// What leaks is what grew, where it is made.
	for range 3 {
		x.iterate(7, atStep)
	}
	got = seen(t, s)
	if got.Grown != 21 || got.Over != 8 || len(got.Grew) != 1 || got.Grew[0].Bytes != 21 || !strings.Contains(fmt.Sprint(*got.Grew[0].Sample.Stack[1]), "log") {
		t.Errorf("it leaks: grown %d over %d, %+v", got.Grown, got.Over, got.Grew)
	}
	if n := got.Last[7].Net(); n != 7 || got.Last[2].Net() != 0 {
		t.Errorf("net %d, and %d before", n, got.Last[2].Net())
	}
	// Growth is told over the last steps alone.
	for range 3 * steps.GrowthInterval {
		x.iterate(0, atStep)
	}
	if got = seen(t, s); got.Grown != 0 || len(got.Grew) != 0 || got.Over < steps.GrowthInterval || got.Over > 2*steps.GrowthInterval {
		t.Errorf("long after: grown %d over %d", got.Grown, got.Over)
	}
	for range steps.MaxLast {
		x.iterate(0, atStep)
	}
	if got = seen(t, s); len(got.Last) != steps.MaxLast || got.Seen != 8+3*steps.GrowthInterval+steps.MaxLast || got.Last[steps.MaxLast-1].Number != got.Seen {
		t.Errorf("%d kept of %d", len(got.Last), got.Seen)
	}
	for _, c := range s.loss() {
		if strings.HasPrefix(c.Name, "steps_") && c.Value != 0 {
			t.Errorf("%s %d", c.Name, c.Value)
		}
	}
	s.Apply(&event.Event{Op: event.OpExec, Time: x.at + 10, Proc: prog})
	if left := s.View(Want{Steps: true}).Snapshot().Steps; len(left) != 0 {
		t.Errorf("after an exec: %+v", left)
	}
}

// From a moment on those steps are shown that begin after it, under their numbers, and
// growth is what came in them.
func TestStepsAfresh(t *testing.T) {
	s := begun(record.Trace{})
	for _, st := range program() {
		s.Apply(st)
	}
	x := &trainer{tell: s.Apply}
	for range 4 {
		x.iterate(5, atStep)
	}
	x.make(prog.PID, atLoad, 1000) // in the step that is under way
	s.ResetCounts()
	if got := seen(t, s); got.Seen != 0 || len(got.Last) != 0 || got.Over != 0 || got.Total != (snapshot.Moved{}) || got.Grown != 0 {
		t.Errorf("at the moment: %+v", got)
	}
	for n := range int64(5) {
		x.iterate(7, atStep)
		got := seen(t, s)
		if got.Seen != n || len(got.Last) != int(n) || got.Over != n || got.Grown != 7*n || got.Unsure != 0 {
			t.Errorf("after %d calls: %+v", n+1, got)
		}
		if n > 0 && (got.Last[0].Number != 5 || got.Total.AllocBytes != n*(156+7) || got.Total.PeakBytes != got.Last[n-1].PeakBytes) {
			t.Errorf("after %d calls: %+v", n+1, got)
		}
	}
}

// It makes no difference when a stack is told, if it is told in time.
func TestStepsWithLateStacks(t *testing.T) {
	var want snapshot.Steps
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := begun(record.Trace{})
		late := program()
		told := func(share int) {
			for _, id := range []uint64{atLoad, atForward, atBackward, atStep, atOtherStep, atLeak} {
				if st := late[id]; st != nil && rng.IntN(share) == 0 {
					delete(late, id)
					s.Apply(st)
				}
			}
		}
		x := &trainer{tell: func(r record.Record) {
			s.Apply(r)
			if seed > 0 {
				told(60)
			}
		}}
		if seed == 0 {
			told(1)
		}
		x.make(prog.PID, atLoad, 1000)
		for i := range 20 {
			x.iterate(uint64(i%3), atStep, atOtherStep)
		}
		told(1)
		got := seen(t, s)
		if seed == 0 {
			if want = got; want.Seen != 19 || want.Unsure != 0 {
				t.Fatalf("%d steps", want.Seen)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, d)
		}
	}
}

// A step in which a stack was not told in time is left out, and counted.
func TestStepsWithoutStacks(t *testing.T) {
	s := begun(record.Trace{})
	all := program()
	for _, id := range []uint64{atForward, atBackward, atStep} {
		s.Apply(all[id])
	}
	x := &trainer{tell: s.Apply}
	for range 3 {
		x.iterate(0, atStep)
	}
	x.make(prog.PID, atLeak, 5)
	x.iterate(0, atStep)
	if got := seen(t, s); got.Seen != 2 {
		t.Errorf("while it is waited for: %d steps", got.Seen)
	}
	s.Apply(&record.Loss{})
	x.make(prog.PID, atForward, 1)
	if got := seen(t, s); got.Seen != 2 {
		t.Errorf("at the first moment to tell it: %d steps", got.Seen)
	}
	s.Apply(&record.Loss{})
	x.iterate(0, atStep)
	got := seen(t, s)
	if got.Seen != 3 || got.Unsure != 1 || got.Last[2].Number != 3 || got.Last[2].PeakBytes != 146 {
		t.Errorf("given up: %+v", got)
	}
	for range 1 << 13 { // more tensors than may wait
		x.make(prog.PID, atOtherStep, 1) // never told
		x.iterate(0, atStep)
	}
	if got = seen(t, s); got.Seen != 3 {
		t.Errorf("%d steps while many tensors wait", got.Seen)
	}
	lost := map[string]uint64{}
	for _, c := range s.loss() {
		lost[c.Name] = c.Value
	}
	if lost["steps_stacks_late"] < 2 {
		t.Errorf("lost %v", lost)
	}
}

// A state that begins with a keyframe has the same steps, there and from there on.
func TestStepsAfterKeyframe(t *testing.T) {
	all := func(s *State) []snapshot.Steps { return s.View(Want{Steps: true}).Snapshot().Steps }
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		late := program()
		whole, cut := begun(record.Trace{}), (*State)(nil)
		at, n := 20+rng.IntN(400), 0
		tell := func(r record.Record) {
			whole.Apply(r)
			if cut != nil {
				cut.Apply(r)
			}
			if n++; n == at {
				cut = New()
				cut.Apply(&record.Cut{Time: whole.Now()})
				whole.Keyframe(cut.Apply)
				if d := cmp.Diff(all(whole), all(cut)); d != "" {
					t.Fatalf("seed %d: where it begins (-whole +cut):\n%s", seed, d)
				}
			}
		}
		tell(&record.Process{Process: prog, Target: true})
		x := &trainer{tell: tell}
		tell(&record.Loss{})
		for i := range 70 {
			x.iterate(uint64(rng.IntN(3)), atStep, atOtherStep)
			if id := uint64(1 + rng.IntN(6)); i > 10 && late[id] != nil {
				tell(late[id])
				delete(late, id)
			}
			if i%25 == 0 {
				tell(&record.Loss{})
			}
		}
		got := seen(t, cut)
		if d := cmp.Diff(seen(t, whole), got); d != "" || got.Seen == 0 {
			t.Fatalf("seed %d: %d steps at the end (-whole +cut):\n%s", seed, got.Seen, d)
		}
	}
}

// Whatever numbers a recording has, steps are made of them, and go on.
func TestStepsOfAnyNumbers(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := begun(record.Trace{})
		for _, st := range program() {
			s.Apply(st)
		}
		r := &record.Part{Of: record.OfSteps}
		for range rng.IntN(300) {
			r.Data = append(r.Data, byte(rng.Uint32())>>rng.IntN(8))
		}
		s.Apply(r)
		x := &trainer{tell: s.Apply}
		for range 3 {
			x.iterate(1, atStep)
			s.Apply(&record.Loss{})
		}
		s.View(Want{Steps: true}).Snapshot()
		s.Keyframe(New().Apply)
	}
}
