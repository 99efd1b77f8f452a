package state

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

const (
	// maxEnded bounds the ended processes that have counters.
	maxEnded = 1024
	// maxKnown bounds all processes: as many as the ledger has.
	maxKnown = 1 << 16
)

var lossUnknown = loss.Of("processes_unknown", "records about processes that are not followed because there are too many")

// processes knows the traced processes: those that live, and those that ended
// and whose counters are still shown.
type processes struct {
	all     bool // record.Trace.All: the trace has no last target
	known   map[event.Process]*process
	current map[uint32]event.Process // the living one of each PID
	ended   []event.Process          // in order of their end
	// endedOf is how many of those each user has. They do not count by tenant, because a recording
	// has none: the state that it makes must forget the same processes.
	endedOf map[record.User]int
	over    bool // every target has ended
	// confirmed is a process that lives and has its PID, or none: a call of it
	// shows nothing new of processes.
	confirmed event.Process
	tenant    uint16 // of confirmed
	refused   uint64 // see lossUnknown
}

type process struct {
	name string // comm when it was first seen, or last replaced its image
	// fromStart: traced before its first allocation.
	fromStart bool
	since     uint64            // CLOCK_MONOTONIC: of the first record with it
	end       uint64            // CLOCK_MONOTONIC, 0 while it lives
	program   *snapshot.Mapping // the file that it runs, nil when not known
	user      record.User       // that it runs as
	counts    record.User       // its user in processes.endedOf
	tenant    uint16            // see event.Event.Tenant
	// who it belongs to, nil where nothing is known. What it points to does not change:
	// processes and views share it.
	who *snapshot.Who
	// parent is its parent, with Start 0 if that is not known here. children are those that have it as
	// their parent; some of them may have ended.
	parent   event.Process
	children []event.Process
	// parentEnd is as record.Process.ParentEnd.
	parentEnd uint64
}

func newProcesses() *processes {
	return &processes{known: map[event.Process]*process{}, current: map[uint32]event.Process{}, endedOf: map[record.User]int{}}
}

// learn applies the record of a process at a time.
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
	if r.Parent != 0 && x.parent.PID == 0 {
		p.adopt(r.Process, x, cmp.Or(p.current[r.Parent], event.Process{PID: r.Parent}))
	}
	x.parentEnd = max(x.parentEnd, r.ParentEnd)
	who := r.Who
	if uid, known := r.User.ID(); known && who.User == "" && (x.who == nil || x.who.User == "") {
		who.User = "root"
		if uid != 0 {
			who.User = strconv.FormatUint(uint64(uid), 10)
		}
	}
	x.learn(who)
}

// adopt says which parent a process has.
func (p *processes) adopt(id event.Process, x *process, parent event.Process) {
	x.parent = parent
	y := p.known[parent]
	if y == nil || parent == id {
		return
	}
	if len(y.children) == cap(y.children) { // it may have many, one after the other
		y.children = slices.DeleteFunc(y.children, func(id event.Process) bool { return !p.IsAlive(id) })
	}
	y.children = append(y.children, id)
}

// learn says who a process belongs to, as far as that is known.
func (x *process) learn(who snapshot.Who) {
	if x.who != nil {
		who = x.who.Learn(who)
	} else {
		who = snapshot.Who{}.Learn(who)
	}
	if who != (snapshot.Who{}) && (x.who == nil || *x.who != who) {
		x.who = &who
	}
}

// An owner is a user, or a process whose user is not known.
type owner struct {
	user    record.User
	process event.Process
}

// owner returns the owner of a process.
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
		p.confirmed = event.Process{}
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

// concerns reports whether e may show anything new of processes. It costs far less than
// apply.
func (p *processes) concerns(e *event.Event) bool {
	switch e.Op {
	case event.OpFork, event.OpExec, event.OpExit:
		return true
	}
	return e.Proc != p.confirmed || e.Tenant != p.tenant || e.Proc == event.Process{}
}

// apply follows one event, and returns the processes that ended by it: its own,
// and one whose PID it shows to have another holder.
func (p *processes) apply(e *event.Event) (ended []event.Process) {
	if old, ok := p.current[e.Proc.PID]; ok && old != e.Proc && old.Start < e.Proc.Start {
		ended = append(ended, old) // its exit was lost
	}
	switch e.Op {
	case event.OpFork:
		if old, ok := p.current[e.Child.PID]; ok && old != e.Child {
			ended = append(ended, old)
		}
		child := p.add(e.Child, e.Time)
		child.name, child.fromStart, child.tenant = e.Name, true, e.Tenant
		p.adopt(e.Child, child, e.Proc)
		if parent := p.known[e.Proc]; parent != nil {
			child.program, child.user, child.who = parent.program, parent.user, parent.who
		}
	case event.OpExec:
		x := p.add(e.Proc, e.Time)
		x.fromStart, x.tenant = true, e.Tenant
		if e.Name != "" {
			x.name, x.program = e.Name, nil
			if x.who != nil {
				who := *x.who
				who.Command, who.Rank, who.LocalRank, who.WorldSize = "", "", "", ""
				x.who = &who
			}
		}
	case event.OpExit:
		if x := p.known[e.Proc]; x != nil && x.name == "" {
			x.name = e.Name
		}
		return append(ended, e.Proc)
	default:
		p.add(e.Proc, e.Time).tenant = e.Tenant
		if p.current[e.Proc.PID] == e.Proc {
			p.confirmed, p.tenant = e.Proc, e.Tenant
		} else if p.IsAlive(e.Proc) {
			ended = append(ended, e.Proc) // long ago: it was known no more
		}
	}
	return ended
}

// end says that id ended. It returns the processes that were dropped: id itself if it never
// held GPU memory, and, of the user with the most ended processes, the one that ended
// longest ago.
func (p *processes) end(id event.Process, when uint64, active bool) (dropped []event.Process) {
	x := p.known[id]
	if x == nil || x.end != 0 {
		return nil
	}
	x.end = max(when, 1)
	p.confirmed = event.Process{}
	if p.current[id.PID] == id {
		delete(p.current, id.PID)
	}
	p.over = p.over || len(p.current) == 0 && !p.all
	if !active {
		delete(p.known, id)
		return []event.Process{id}
	}
	p.addEnded(id, x)
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
	oldest := p.ended[i]
	p.ended = slices.Delete(p.ended, i, i+1)
	p.forget(oldest)
	return []event.Process{oldest}
}

func (p *processes) addEnded(id event.Process, x *process) {
	p.ended = append(p.ended, id)
	x.counts = x.user
	p.endedOf[x.user]++
}

// forget forgets a process that was in p.ended.
func (p *processes) forget(id event.Process) {
	counts := p.known[id].counts
	if p.endedOf[counts]--; p.endedOf[counts] == 0 {
		delete(p.endedOf, counts)
	}
	delete(p.known, id)
}

// drop forgets those of ids that have ended, and returns them.
func (p *processes) drop(ids []event.Process) (dropped []event.Process) {
	want := make(map[event.Process]bool, len(ids))
	for _, id := range ids {
		want[id] = true
	}
	p.ended = slices.DeleteFunc(p.ended, func(id event.Process) bool {
		if want[id] {
			p.forget(id)
			dropped = append(dropped, id)
		}
		return want[id]
	})
	return dropped
}

// Name returns the name of a process, "" if it is not known.
func (p *processes) Name(id event.Process) string {
	if x := p.known[id]; x != nil {
		return x.name
	}
	return ""
}

// Tenant returns the tenant of a process's last call, as event.Event.Tenant has it.
func (p *processes) Tenant(id event.Process) uint16 {
	if x := p.known[id]; x != nil {
		return x.tenant
	}
	return 0
}

// who returns who a process belongs to, nil where nothing is known.
func (p *processes) who(id event.Process) *snapshot.Who {
	if x := p.known[id]; x != nil {
		return x.who
	}
	return nil
}

// WhoOf returns who a process belongs to, as far as that is known.
func WhoOf(s *State, id event.Process) snapshot.Who {
	if who := s.processes.who(id); who != nil {
		return *who
	}
	return snapshot.Who{}
}

// RankName returns what a process that is a rank is called, as Snapshot.Ranks does, "" for others.
func (s *State) RankName(id event.Process) string {
	x := s.processes.known[id]
	if x == nil || x.who == nil {
		return ""
	}
	if parent := s.processes.who(x.parent); parent != nil && parent.Rank == x.who.Rank && s.peaks.byProcess[x.parent] != nil {
		return ""
	}
	return x.who.RankName()
}

// endOf returns when a process ended, in nanoseconds of CLOCK_MONOTONIC, 0 if it has not.
func (p *processes) endOf(id event.Process) uint64 {
	if x := p.known[id]; x != nil {
		return x.end
	}
	return 0
}

// IsAlive reports whether a process is traced and has not ended.
func (p *processes) IsAlive(id event.Process) bool {
	x := p.known[id]
	return x != nil && x.end == 0
}

// children returns the children of a process, as far as they are known. Some may have ended.
func (p *processes) children(id event.Process) []event.Process {
	if x := p.known[id]; x != nil {
		return x.children
	}
	return nil
}

// sameProgram reports whether two processes are known to run one program.
func (p *processes) sameProgram(a, b event.Process) bool {
	x, y := p.known[a], p.known[b]
	return x != nil && y != nil && x.program != nil && y.program != nil && x.program.Path == y.program.Path
}

// Current returns the process that lives and has a PID, the zero Process for none.
func (p *processes) Current(pid uint32) event.Process { return p.current[pid] }

// jobWindow is how far apart the ends of processes may lie that end as one job:
// the ranks of a training run do.
const jobWindow = uint64(2 * time.Second)

// heldAtEnd returns the ended processes whose memory a snapshot shows, as it was when their
// exit began: none while a traced process lives, after that those that ended with the last
// one. They all lived at one time: their bytes may be added up.
func (p *processes) heldAtEnd(sinceBoot uint64) map[event.Process]bool {
	if p.all || len(p.current) > 0 || len(p.ended) == 0 {
		return nil
	}
	out := map[event.Process]bool{}
	last := p.known[p.ended[len(p.ended)-1]].end
	started := uint64(0) // the latest of theirs
	for _, id := range slices.Backward(p.ended) {
		end := p.known[id].end
		if last-min(end, last) > jobWindow || end+sinceBoot <= started {
			continue
		}
		out[id] = true
		started = max(started, id.Start)
	}
	return out
}

// shown returns which processes' memory in use is shown: of those that live, and of
// heldAtEnd.
func (p *processes) shown(sinceBoot uint64) func(event.Process) bool {
	held := p.heldAtEnd(sinceBoot)
	var last event.Process // sites come by process
	is := held[last] || p.IsAlive(last)
	return func(id event.Process) bool {
		if id != last {
			last, is = id, held[id] || p.IsAlive(id)
		}
		return is
	}
}

// Over reports whether every target, and every child of theirs that is traced,
// has ended. Where every process is traced it is never.
func (p *processes) Over() bool { return p.over }

// Knows reports whether a process is traced, or was.
func (p *processes) Knows(id event.Process) bool {
	_, known := p.known[id]
	return known
}

// Known yields the processes that are known: those that run, and those that have ended and are not
// forgotten yet. It has no order.
func (p *processes) Known(yield func(event.Process) bool) {
	for id := range p.known {
		if !yield(id) {
			return
		}
	}
}

// CountLiving returns how many traced processes have not ended.
func (p *processes) CountLiving() int { return len(p.current) }

// Living yields the traced processes that have not ended, and whether each has
// a name.
func (p *processes) Living(yield func(id event.Process, named bool) bool) {
	for _, id := range p.current {
		if !yield(id, p.Name(id) != "") {
			return
		}
	}
}
