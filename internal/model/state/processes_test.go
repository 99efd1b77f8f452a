package state

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

func holder(pid uint32, start time.Duration) event.Process {
	return event.Process{PID: pid, Start: uint64(start)}
}

// A trace of everything does not end with the processes that it saw.
func TestAllIsNeverDone(t *testing.T) {
	for _, all := range []bool{false, true} {
		p := newProcesses()
		p.all = all
		id := holder(7, time.Second)
		p.add(id, 0)
		p.end(id, 1, true)
		if p.over == all {
			t.Errorf("every process is traced: %v; over after the last one: %v", all, p.over)
		}
	}
}

// Two holders of one PID are two processes, also when the first one's exit was
// lost.
func TestReusedPID(t *testing.T) {
	p := newProcesses()
	first, second := holder(7, time.Second), holder(7, time.Minute)
	p.add(first, 0).name = "first"
	ended := p.apply(&event.Event{Op: event.OpAlloc, Proc: second})
	if len(ended) != 1 || ended[0] != first {
		t.Fatalf("ended %v, want the first", ended)
	}
	p.end(first, 1, true)
	if p.Name(second) != "" || p.known[second].fromStart || !p.IsAlive(second) || p.IsAlive(first) {
		t.Errorf("the second one has what the first had: %+v", p.known[second])
	}
	forked := holder(7, time.Hour)
	p.add(holder(1, 0), 0).program = &snapshot.Mapping{Path: "/prog"}
	if ended := p.apply(&event.Event{Op: event.OpFork, Proc: holder(1, 0), Child: forked, Name: "third"}); len(ended) != 1 || ended[0] != second {
		t.Errorf("ended %v, want the second", ended)
	}
	if p.Name(forked) != "third" || !p.known[forked].fromStart || p.known[forked].program == nil {
		t.Errorf("%+v", p.known[forked])
	}
	p.end(second, 2, true)
	if late := p.apply(&event.Event{Op: event.OpAlloc, Proc: second}); len(late) != 0 {
		t.Errorf("a late event of an earlier holder ends %v", late)
	}
}

// Processes that never touched GPU memory leave nothing, and of those that did
// the last ones are kept.
func TestEndedAreBounded(t *testing.T) {
	p := newProcesses()
	p.all = true
	for i := range uint32(100_000) {
		id := holder(i%1000+1, time.Duration(i)*time.Second)
		p.add(id, 0)
		active := i%10 == 0
		dropped := p.end(id, uint64(i), active)
		if !active && (len(dropped) != 1 || dropped[0] != id) {
			t.Fatalf("dropped %v", dropped)
		}
	}
	if len(p.known) != maxEnded || len(p.ended) != maxEnded || len(p.current) != 0 {
		t.Errorf("%d known, %d ended, %d living", len(p.known), len(p.ended), len(p.current))
	}
}

// What ended after a report was put together is in the next one, also when the
// first of those in it went for want of room meanwhile.
func TestReportedAreDropped(t *testing.T) {
	p := newProcesses()
	p.all = true
	end := func(i int) {
		id := holder(uint32(i+1), time.Second)
		p.add(id, 0)
		p.end(id, uint64(i+1), true)
	}
	for i := range maxEnded {
		end(i)
	}
	reported := slices.Clone(p.ended)
	end(maxEnded)
	if dropped := p.drop(reported); len(dropped) != maxEnded-1 {
		t.Errorf("dropped %d, want %d", len(dropped), maxEnded-1)
	}
	if len(p.ended) != 1 || p.ended[0].PID != maxEnded+1 || len(p.known) != 1 {
		t.Errorf("%v stay", p.ended)
	}
}

// An event of an earlier holder of a PID, whose process is no longer known,
// does not take the later one's place.
func TestEarlierHolder(t *testing.T) {
	p := newProcesses()
	earlier, later := holder(7, time.Second), holder(7, time.Minute)
	p.add(later, 0)
	if ended := p.apply(&event.Event{Op: event.OpAlloc, Proc: earlier}); len(ended) != 1 || ended[0] != earlier {
		t.Errorf("ended %v, want the earlier one", ended)
	}
	if p.current[7] != later {
		t.Errorf("%v has the PID", p.current[7])
	}
	p.end(earlier, 2, true)
	if p.over {
		t.Error("over while a target runs")
	}
}

// What is shown as held after the end was held at one time.
func TestHeld(t *testing.T) {
	type life struct{ start, end time.Duration }
	for _, c := range []struct {
		name  string
		lives []life
		want  []int
	}{
		{"one", []life{{1, 5}}, []int{0}},
		{"ranks of one job", []life{{1, 50}, {1, 51}, {2, 50}, {1, 51}}, []int{0, 1, 2, 3}},
		{"one after the other", []life{{1, 10}, {11, 20}, {21, 30}}, []int{2}},
		{"one right after the other", []life{{1, 10}, {10, 11}, {11, 12}}, []int{2}},
		{"children that ended before their parent", []life{{10, 20}, {20, 30}, {1, 100}}, []int{2}},
		{"a rank that died early", []life{{1, 20}, {1, 50}, {1, 51}}, []int{1, 2}},
	} {
		p := newProcesses()
		var ids []event.Process
		for i, l := range c.lives {
			id := holder(uint32(i+1), l.start*time.Second)
			ids = append(ids, id)
			p.add(id, 0)
		}
		if len(p.heldAtEnd(0)) != 0 {
			t.Errorf("%s: ended before the end", c.name)
		}
		for t := range time.Duration(200) {
			for i, l := range c.lives {
				if l.end == t {
					p.end(ids[i], uint64(t*time.Second), true)
				}
			}
		}
		held := p.heldAtEnd(0)
		for i, id := range ids {
			want := false
			for _, w := range c.want {
				want = want || w == i
			}
			if held[id] != want {
				t.Errorf("%s: process %d held %v, want %v", c.name, i, held[id], want)
			}
		}
	}
}

// Who looks at a process may come too late: what is told of one that has ended
// and left the state does not bring it back.
func TestLateIdentity(t *testing.T) {
	p := newProcesses()
	id := holder(7, time.Second)
	p.learn(&record.Process{Process: id, Target: true}, 0)
	p.learn(&record.Process{Process: id, Name: "prog"}, 0)
	if p.Name(id) != "prog" {
		t.Errorf("name %q", p.Name(id))
	}
	p.end(id, 1, false)
	p.learn(&record.Process{Process: id, Name: "prog", Program: &snapshot.Mapping{Path: "/prog"}}, 0)
	if len(p.known)+len(p.current) != 0 {
		t.Errorf("it is back: %v", p.known)
	}
}

// What is known of processes does not depend on whether the last one settled.
func TestSettled(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		quick, slow := New(), New()
		for i := range 300 {
			some := func() event.Process {
				return event.Process{PID: rng.Uint32N(3), Start: rng.Uint64N(4) * event.StartUnit}
			}
			e := &event.Event{Time: uint64(i + 1), Proc: some(), Op: event.OpAlloc, Kind: event.KindDevice, Addr: uint64(i+1) << 9, Size: 512}
			if rng.IntN(4) == 0 {
				e.Op = []event.Op{event.OpFork, event.OpExec, event.OpExit}[rng.IntN(3)]
				e.Child, e.Name = some(), "name"
			}
			var r record.Record = e
			switch rng.IntN(20) {
			case 0:
				r = &record.Process{Process: some(), Target: true}
			case 1:
				r = &record.Reported{}
			case 2:
				r = &record.Trace{All: rng.IntN(2) == 0}
			}
			quick.Apply(r)
			slow.processes.confirmed = event.Process{}
			slow.Apply(r)
			got, want := *quick.processes, *slow.processes
			got.confirmed, want.confirmed = event.Process{}, event.Process{}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, event %d: %+v, want %+v", seed, i, got, want)
			}
			if a, b := quick.Wants(), slow.Wants(); !reflect.DeepEqual(a, b) {
				t.Fatalf("seed %d, event %d: wants %+v, want %+v", seed, i, a, b)
			}
		}
	}
}

// Processes by the million, which a recording may name, take bounded room, and
// those beyond are counted.
func TestProcessesAreBounded(t *testing.T) {
	s := New()
	s.Apply(&record.Trace{})
	const more = 1000
	for i := range uint32(maxKnown + more) {
		s.Apply(&record.Process{Process: event.Process{PID: i + 1, Start: event.StartUnit}, Target: true})
	}
	extra := event.Process{PID: maxKnown + 1, Start: event.StartUnit}
	s.Apply(&event.Event{Op: event.OpExit, Time: 1, Proc: extra}) // of one that is not followed
	if n := s.Size().Processes; n != maxKnown || s.processes.refused != more || s.Over() {
		t.Errorf("%d processes, %d refused, over %v", n, s.processes.refused, s.Over())
	}
	s.Apply(&event.Event{Op: event.OpExit, Time: 1, Proc: event.Process{PID: 1, Start: event.StartUnit}})
	s.Apply(&record.Process{Process: extra, Target: true})
	if !s.Knows(extra) {
		t.Error("no room after one has ended")
	}
}
