package state

import (
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

const (
	// maxEnded bounds the ended processes whose counters are kept.
	maxEnded = 1024
	// maxKnown bounds all processes: as many as the ledger has.
	maxKnown = 1 << 16
)

var unknown = loss.Of("processes_unknown", "what was told of processes that are not followed because there are too many")

// processes knows the traced processes: those that live, and those that ended
// and whose counters are still shown.
type processes struct {
	all     bool // record.Trace.All: the trace has no last target
	known   map[event.Process]*process
	current map[uint32]event.Process // the living one of each PID
	ended   []event.Process          // in order of their end
	endedOf map[record.User]int      // how many of those each user has
	over    bool                     // every target has ended
	// settled is a process that lives and has its PID, or none: a call of it
	// tells nothing new of processes.
	settled event.Process
	refused uint64 // see unknown
}

type process struct {
	name string // comm when it was first seen, or last replaced its image
	// fromStart: traced before its first allocation.
	fromStart bool
	since     uint64            // CLOCK_MONOTONIC: when it was first told of
	end       uint64            // CLOCK_MONOTONIC, 0 while it lives
	program   *snapshot.Mapping // the file that it runs, nil when not known
	user      record.User       // that it runs as
	counts    record.User       // as whose it is in processes.endedOf
}

func newProcesses() processes {
	return processes{known: map[event.Process]*process{}, current: map[uint32]event.Process{}, endedOf: map[record.User]int{}}
}

// learn takes what a record says of a process at a time.
func (p *processes) learn(r *record.Process, at uint64) {
	x := p.known[r.Process]
	if r.Target {
		x = p.add(r.Process, at)
	}
	if x == nil {
		return // it ended before anybody could look at it
	}
	x.fromStart = x.fromStart || r.FromStart
	if x.name == "" {
		x.name = r.Name
	}
	if r.Program != nil {
		x.program = r.Program
	}
	if r.User != 0 {
		x.user = r.User
	}
}

// user returns the number of the user that a process runs as, if that is known.
func (p *processes) user(id event.Process) (uid uint32, known bool) {
	if x := p.known[id]; x != nil {
		return x.user.ID()
	}
	return 0, false
}

// An owner is a user, or a process whose user is not known.
type owner struct {
	user    record.User
	process event.Process
}

// owner returns who has a process.
func (p *processes) owner(id event.Process) owner {
	if x := p.known[id]; x != nil && x.user != 0 {
		return owner{user: x.user}
	}
	return owner{process: id}
}

// add makes id a traced process from a time on, unless it is one or there are too many. It has
// its PID unless a later one does.
func (p *processes) add(id event.Process, at uint64) *process {
	x := p.known[id]
	if x == nil {
		p.settled = event.Process{}
		x = &process{since: at}
		if len(p.known) >= maxKnown {
			p.refused++
			return x
		}
		p.known[id] = x
		if now, ok := p.current[id.PID]; !ok || now.Start < id.Start {
			p.current[id.PID] = id
		}
	}
	return x
}

// tells says whether e may tell anything of processes. It costs far less than
// event.
func (p *processes) tells(e *event.Event) bool {
	switch e.Op {
	case event.OpFork, event.OpExec, event.OpExit:
		return true
	}
	return e.Proc != p.settled || e.Proc == event.Process{}
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
		child := p.add(e.Child, e.Time)
		child.name, child.fromStart = e.Name, true
		if parent := p.known[e.Proc]; parent != nil {
			child.program, child.user = parent.program, parent.user
		}
	case event.OpExec:
		x := p.add(e.Proc, e.Time)
		x.fromStart = true
		if e.Name != "" { // which a keyframe's lacks
			x.name, x.program = e.Name, nil
		}
	case event.OpExit:
		if x := p.known[e.Proc]; x != nil && x.name == "" {
			x.name = e.Name
		}
		return append(ended, e.Proc)
	default:
		p.add(e.Proc, e.Time)
		if p.current[e.Proc.PID] == e.Proc {
			p.settled = e.Proc
		} else if p.lives(e.Proc) {
			ended = append(ended, e.Proc) // long ago: it was known no more
		}
	}
	return ended
}

// end says that id ended. It returns the processes that are kept no longer: id
// itself if it never held GPU memory, and, of the user who has most that ended, the one
// that ended longest ago.
func (p *processes) end(id event.Process, when uint64, active bool) (dropped []event.Process) {
	x := p.known[id]
	if x == nil || x.end != 0 {
		return nil
	}
	x.end = max(when, 1)
	p.settled = event.Process{}
	if p.current[id.PID] == id {
		delete(p.current, id.PID)
	}
	p.over = p.over || len(p.current) == 0 && !p.all
	if !active {
		delete(p.known, id)
		return []event.Process{id}
	}
	p.ended = append(p.ended, id)
	x.counts = x.user
	p.endedOf[x.user]++
	if len(p.ended) <= maxEnded {
		return nil
	}
	most := x.user
	for user, n := range p.endedOf {
		if n > p.endedOf[most] || n == p.endedOf[most] && user < most {
			most = user
		}
	}
	i := slices.IndexFunc(p.ended, func(id event.Process) bool { return p.known[id].counts == most })
	return p.drop(p.ended[i : i+1])
}

// drop forgets those of ids that have ended, and returns them.
func (p *processes) drop(ids []event.Process) (dropped []event.Process) {
	want := make(map[event.Process]bool, len(ids))
	for _, id := range ids {
		want[id] = true
	}
	p.ended = slices.DeleteFunc(p.ended, func(id event.Process) bool {
		if want[id] {
			counts := p.known[id].counts
			if p.endedOf[counts]--; p.endedOf[counts] == 0 {
				delete(p.endedOf, counts)
			}
			delete(p.known, id)
			dropped = append(dropped, id)
		}
		return want[id]
	})
	return dropped
}

// name returns a process's name, "" if it is not known.
func (p *processes) name(id event.Process) string {
	if x := p.known[id]; x != nil {
		return x.name
	}
	return ""
}

// endOf returns when a process ended, in nanoseconds of CLOCK_MONOTONIC, 0 if it has not.
func (p *processes) endOf(id event.Process) uint64 {
	if x := p.known[id]; x != nil {
		return x.end
	}
	return 0
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
