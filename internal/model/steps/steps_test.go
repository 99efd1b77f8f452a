package steps

import (
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

var prog = event.Process{PID: 17, Start: event.StartUnit}

// Which calls begin steps. A letter is a tensor that is made: a, b, c in a call of an
// optimizer; k, l where gradients are clipped; A of an optimizer in another thread; . outside
// of any; ? where that is not known; ! where a stack was not told in time.
func TestStepBoundaries(t *testing.T) {
	for _, c := range []struct {
		name, made string
		want       string // before which of them one begins
		unsure     uint64
	}{
		{"none", "......", "", 0},
		{"plain", "..a..a..a..", "  ^  ^  ^  ", 0},
		{"several in one", "..aaa..aa.a", "  ^    ^  ^", 0},
		{"not known", "..a?a..a?.a", "  ^    ^  ^", 0},
		{"attached in one", "aa..a..a", "    ^  ^", 0},
		{"attached, nothing outside", "aaaaaa", "", 0},
		{"another thread is outside", "..a,a,a..a", "  ^      ^", 0},
		{"a GAN", "..a..b..a..b..a", "  ^     ^     ^", 0},
		{"two, one after the other", "..ab..ab..ab", "  ^   ^   ^", 0},
		{"more of the other", "..a..b..b..a..b..b", "  ^     ^     ^  ^", 1},
		{"after warming up", "..a..a..b..b..b", "  ^  ^     ^  ^", 1},
		{"two threads", "..a,,A..a,,A..a", "  ^     ^     ^", 0},
		{"late", "..a..!..a..a", "  ^     ^  ^", 1},
		{"late before the first", "!..a..a", "   ^  ^", 0},
		{"clipped", "..ka..ka..ka", "   ^   ^   ^", 0},
		{"clipped each time gradients are added", "..k..k..ka..k..k..ka..k..k..ka", "        ^" + "         ^^" + "         ^", 1},
		{"more often", "..k..k..k..k..ka..k..k..k..k..ka", "        ^  ^  ^" + "         ^  ^  ^^", 1},
		{"a fused optimizer", "..ka..k..k..k..k..k", "   ^        ^  ^  ^", 1},
		{"attached to one", "..k..k..k..k..k", "        ^  ^  ^", 0},
		{"two that are fused", "..ka.lb..k.l..k.l..k", "   ^" + "          " + "^    ^", 1},
		{"an optimizer that makes no tensors for long", "..k..k..k..a..k..k..a..k..k..k..k", "        ^" + "           ^", 1},
	} {
		for _, keyframes := range []bool{false, true} {
			s := New(nil)
			x := newProcess()
			var got []byte
			for i, made := range c.made {
				if keyframes {
					x = restored(x)
				}
				m, p := tensor{time: uint64(i), thread: 1, bytes: 1}, call{known: true}
				switch made {
				case 'a', 'b', 'c', 'k', 'l':
					p.ID, p.Clips = uint64(made), made >= 'k'
				case 'A':
					m.thread, p.ID = 2, 'a'
				case ',':
					m.thread = 2
				case '?':
					p.known = false
				case '!':
					p.known = false
					x.uncertain = true
				}
				before := x.began
				began := x.steps + x.unsure
				if s.count(x, &m, p); x.began != before || x.steps+x.unsure != began {
					got = append(got, '^')
				} else {
					got = append(got, ' ')
				}
			}
			if strings.TrimRight(string(got), " ") != strings.TrimRight(c.want, " ") || x.unsure != c.unsure {
				t.Errorf("%s, keyframes %v:\n%s\n%s, %d unsure, want\n%s, %d", c.name, keyframes, c.made, got, x.unsure, c.want, c.unsure)
			}
		}
	}
}

// restored returns a process as a keyframe restores it.
func restored(p *process) *process {
	s, out := New(nil), New(nil)
	s.processes[prog] = p
	var data []byte
	record.WriteFields(record.OfSteps, s.Visit, func(r record.Record) { data = append(data, r.(*record.Part).Data...) })
	record.ReadFields(data, out.Visit)
	return out.processes[prog]
}

// After a keyframe, growth is counted as it would be without one: of the step under way as well.
func TestGrowthAfterKeyframe(t *testing.T) {
	for cut := range 5 * GrowthInterval {
		s := New(nil)
		x := newProcess()
		for i := range 3 * GrowthInterval {
			if i == cut {
				x = restored(x)
			}
			s.count(x, &tensor{time: uint64(2 * i), thread: 1, bytes: 1, stack: 1}, call{Call: stacks.Call{ID: 'a'}, known: true})
			if 2*i+1 == cut {
				x = restored(x)
			}
			s.count(x, &tensor{time: uint64(2*i + 1), thread: 1, bytes: 3, stack: uint64(2 + i%7)}, call{known: true})
		}
		s.processes[prog] = x
		r := s.Reports(time.Time{})[0]
		if r.Steps.Over == 0 || r.Steps.Grown != 4*r.Steps.Over || x.growing != len(x.devices[0].growth) || x.growing != 8 {
			t.Fatalf("cut before tensor %d: %d bytes in %d steps, %d stacks", cut, r.Steps.Grown, r.Steps.Over, x.growing)
		}
	}
}

// The threads whose last call is known are bounded.
func TestThreadsAreBounded(t *testing.T) {
	c := newCallers()
	for thread := range uint32(2*maxThreads + 5) {
		c.enter(thread, 'a')
		if len(c.inside) > maxThreads {
			t.Fatalf("%d threads", len(c.inside))
		}
	}
}

// Stacks that grow are bounded.
func TestStepsAreBounded(t *testing.T) {
	s := New(func(uint64) []*record.Place { return []*record.Place{} })
	x := newProcess()
	x.began, s.processes[prog] = 1, x
	for i := range uint64(maxGrowing + 5) {
		e := &event.Event{Time: i, TID: uint32(i), Stack: i + 1}
		s.Apply(&tensors.Piece{Proc: prog, To: 1, Stack: i + 1}, e)
	}
	if n := len(x.devices[0].growth); n != maxGrowing || s.loss.Counters()[lossGrowth].Value != 5 || len(x.optimizers.inside) > maxThreads || len(x.clippings.inside) > maxThreads || len(s.calls) > maxCalls {
		t.Errorf("%d stacks, %+v", n, s.loss.Counters())
	}
	for pid := range uint32(maxProcesses) {
		s.Apply(&tensors.Piece{Proc: event.Process{PID: pid + 1000}, To: 1, Stack: 1}, nil)
	}
	if len(s.processes) != maxProcesses || s.loss.Counters()[lossProcesses].Value != 1 {
		t.Errorf("%d processes, %+v", len(s.processes), s.loss.Counters())
	}
	if got := x.devices[0].current.AllocObjects; got != maxGrowing+5 {
		t.Errorf("%d tensors", got)
	}
}

// Tensors that wait for a stack that never comes are bounded: the oldest are counted
// without it, and what follows them goes on waiting.
func TestWaitingIsBounded(t *testing.T) {
	s := New(func(uint64) []*record.Place { return nil })
	const more = 10
	for i := range uint64(maxWaiting + more) {
		s.Apply(&tensors.Piece{Proc: prog, To: 1, Stack: 1}, &event.Event{Time: i, Stack: 1})
	}
	p := s.processes[prog]
	if n := len(p.waiting); n != maxWaiting || s.loss.Counters()[lossLate].Value != more || p.devices[0].current.AllocObjects != more {
		t.Errorf("%d wait, %+v", n, s.loss.Counters())
	}
}
