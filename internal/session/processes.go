package session

import (
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// maxEnded bounds the ended processes whose counters are kept.
const maxEnded = 1024

// processes knows the traced processes: those that live, and those that ended
// and whose counters are still shown.
type processes struct {
	all     bool // with Options.All: the trace has no last target
	known   map[event.Process]*process
	current map[uint32]event.Process // the living one of each PID
	ended   []event.Process          // in order of their end
	done    chan struct{}
	over    bool // done is closed
}

type process struct {
	name string // comm when it was first seen, or last replaced its image
	// fromStart: traced before its first allocation.
	fromStart bool
	end       uint64            // CLOCK_MONOTONIC, 0 while it lives
	program   *snapshot.Mapping // the file that it runs, nil when not known
}

func newProcesses(all bool) processes {
	return processes{all: all, known: map[event.Process]*process{}, current: map[uint32]event.Process{}, done: make(chan struct{})}
}

// identify returns who has a PID now.
func identify(pid int) (event.Process, error) {
	ticks, err := proc.StartTicks(pid)
	return event.Process{PID: uint32(pid), Start: ticks * event.StartUnit}, err
}

// add makes id a traced process, unless it is one.
func (p *processes) add(id event.Process) *process {
	x := p.known[id]
	if x == nil {
		x = &process{}
		p.known[id] = x
		p.current[id.PID] = id
	}
	return x
}

// event follows one event, and returns the processes that ended by it: its own,
// and one whose PID it shows to have another holder.
func (p *processes) event(e *event.Event) (ended []event.Process) {
	if old, ok := p.current[e.Proc.PID]; ok && old != e.Proc && old.Start < e.Proc.Start {
		ended = append(ended, old) // its exit was lost
	}
	switch e.Op {
	case event.OpFork:
		if old, ok := p.current[e.Child.PID]; ok && old != e.Child {
			ended = append(ended, old)
		}
		child := p.add(e.Child)
		child.name, child.fromStart = e.Name, true
		if parent := p.known[e.Proc]; parent != nil {
			child.program = parent.program
		}
	case event.OpExec:
		x := p.add(e.Proc)
		x.name, x.fromStart, x.program = e.Name, true, nil
	case event.OpExit:
		if x := p.known[e.Proc]; x != nil && x.name == "" {
			x.name = e.Name
		}
		return append(ended, e.Proc)
	default:
		p.add(e.Proc)
	}
	return ended
}

// end says that id ended. It returns the processes that are kept no longer: id
// itself if it never held GPU memory, and those that ended longest ago.
func (p *processes) end(id event.Process, when uint64, active bool) (dropped []event.Process) {
	x := p.known[id]
	if x == nil || x.end != 0 {
		return nil
	}
	x.end = max(when, 1)
	if p.current[id.PID] == id {
		delete(p.current, id.PID)
	}
	if len(p.current) == 0 && !p.over && !p.all {
		p.over = true
		close(p.done)
	}
	if !active {
		delete(p.known, id)
		return []event.Process{id}
	}
	p.ended = append(p.ended, id)
	return p.drop(len(p.ended) - maxEnded)
}

// drop forgets the n processes that ended first, and returns them.
func (p *processes) drop(n int) (dropped []event.Process) {
	n = min(max(n, 0), len(p.ended))
	dropped = slices.Clone(p.ended[:n])
	for _, id := range dropped {
		delete(p.known, id)
	}
	p.ended = slices.Delete(p.ended, 0, n)
	return dropped
}

// name returns a process's name, "" if it is not known.
func (p *processes) name(id event.Process) string {
	if x := p.known[id]; x != nil {
		return x.name
	}
	return ""
}

// lives tells whether a process has not ended.
func (p *processes) lives(id event.Process) bool {
	x := p.known[id]
	return x != nil && x.end == 0
}

// together is how far apart the ends of processes may lie that end as one job:
// the ranks of a training run do.
const together = uint64(2 * time.Second)

// held returns the ended processes whose memory a snapshot shows: none while a
// traced process lives. After that, what each held when its exit began, of
// those that ended with the last one. They were all there at one time: what
// their bytes add up to was held.
func (p *processes) held(sinceBoot uint64) map[event.Process]bool {
	if p.all || len(p.current) > 0 || len(p.ended) == 0 {
		return nil
	}
	out := map[event.Process]bool{}
	last := p.known[p.ended[len(p.ended)-1]].end
	started := uint64(0) // the latest of those held
	for _, id := range slices.Backward(p.ended) {
		end := p.known[id].end
		if last-min(end, last) > together || end+sinceBoot <= started {
			continue
		}
		out[id] = true
		started = max(started, id.Start)
	}
	return out
}
