package timeline

import (
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// maxProcesses bounds the processes of a run that are remembered.
const maxProcesses = 1 << 16

// A follower is what hears of a recording: a run.
type follower interface {
	// meet returns what to store with a new call site, or false to ignore the site.
	meet(*ledger.Site) (held, bool)
	// count adds what a call site holds now, after a record changed it.
	count(*site)
	// drop subtracts what a call site held, when its process ends.
	drop(*site)
	// flush is called when everything that a record changed has been counted.
	flush()
	// leave is called before the call sites of a process are forgotten. The name is that
	// of the event that ended the process, and may be empty.
	leave(id event.Process, name string)
	// gone is called after leave, if the process has ended.
	gone(event.Process)
	// failed is called for each failure for want of memory, when it is over.
	failed(*state.Failure)
	// name is called at the end, for each call site that was met.
	name(held, snapshot.Sample)
}

// A site is a call site and what it holds.
type site struct {
	*ledger.Site
	own     held
	changed bool
}

// An observer follows a recording while it is played: what time it is, which processes hold
// memory, which call sites changed, and what each call site is once its process has ended.
type observer struct {
	Clock
	to    follower
	State *state.State // as of the latest record

	native   stacks.Native
	sites    map[*ledger.Site]*site
	of       map[event.Process][]*site
	pids     map[uint32][]event.Process // the processes of the map above
	changed  []*site                    // by the latest record
	active   map[event.Process]bool     // processes that had an event
	fresh    []uint32                   // PIDs of processes whose first event was the latest record
	failures *state.Failures
	ended    []ended
	// selection is that of the last of ended, nil where the next process needs another one.
	selection *state.View
}

// ended are the call sites of processes as they were when these ended.
type ended struct {
	own       []held
	selection *state.View
}

func newObserver(native stacks.Native, to follower) *observer {
	return &observer{to: to, native: native, sites: map[*ledger.Site]*site{}, of: map[event.Process][]*site{},
		pids: map[uint32][]event.Process{}, active: map[event.Process]bool{}, failures: state.NewFailures(to.failed)}
}

// observe follows a record before the state applies it: the state shows what the record
// before it changed.
func (o *observer) observe(s *state.State, r record.Record) {
	o.State = s
	o.countChanged()
	o.Clock.follow(r)
	switch r := r.(type) {
	case *record.Trace:
		o.selection = nil // it is of another trace
	case *record.Cut:
		o.storeAll()
		for id := range o.of {
			o.forget(id)
		}
	case *event.Event:
		if !o.Rebuilding {
			o.event(r)
		}
	}
}

func (o *observer) event(e *event.Event) {
	if state.OutOfMemory(e) {
		o.failures.Add(o.State, e)
	}
	switch {
	case e.Op == event.OpExit:
		o.end(e.Proc, e.Name)
	case !o.active[e.Proc]:
		if len(o.active) >= maxProcesses {
			clear(o.active)
		}
		o.active[e.Proc], o.fresh = true, append(o.fresh, e.Proc.PID)
	}
}

// hear follows a change of what a call site holds.
func (o *observer) hear(c ledger.Change) { o.touch(c.Site) }

// touch marks a call site as changed by the latest record, and returns it; nil if it is
// ignored.
func (o *observer) touch(at *ledger.Site) *site {
	x := o.sites[at]
	if x == nil {
		own, ok := o.to.meet(at)
		if !ok {
			return nil
		}
		x = &site{Site: at, own: own}
		o.sites[at] = x
		if o.of[at.Proc] == nil {
			o.pids[at.Proc.PID] = append(o.pids[at.Proc.PID], at.Proc)
		}
		o.of[at.Proc] = append(o.of[at.Proc], x)
	}
	if !x.changed {
		x.changed = true
		o.changed = append(o.changed, x)
	}
	return x
}

// Holds reports whether a process has call sites.
func (o *observer) Holds(id event.Process) bool { return len(o.of[id]) > 0 }

// countChanged has the follower count what the latest record changed. While the recording repeats
// what is live, nothing is counted.
func (o *observer) countChanged() {
	if o.Rebuilding {
		return
	}
	// A process that has a PID shows that the one that had it before has ended.
	for _, pid := range o.fresh {
		for _, id := range slices.SortedFunc(slices.Values(o.pids[pid]), event.Process.Compare) {
			if !o.State.IsAlive(id) {
				o.end(id, "")
			}
		}
	}
	o.fresh = o.fresh[:0]
	for _, x := range o.changed {
		x.changed = false
		o.to.count(x)
	}
	o.changed = o.changed[:0]
	o.to.flush()
}

// end ends a process.
func (o *observer) end(id event.Process, name string) {
	o.store(id, name)
	o.to.gone(id)
	o.forget(id)
	delete(o.active, id)
}

// store keeps what the call sites of a process are, to be named at the end.
func (o *observer) store(id event.Process, name string) {
	o.to.leave(id, name)
	all := o.of[id]
	if len(all) == 0 {
		return
	}
	sites := make([]*ledger.Site, len(all))
	for i, one := range all {
		sites[i] = one.Site
	}
	if v := o.State.Select(o.selection, sites, o.native); v != o.selection {
		o.selection, o.ended = v, append(o.ended, ended{selection: v})
	}
	last := &o.ended[len(o.ended)-1]
	for _, one := range all {
		last.own = append(last.own, one.own)
	}
}

func (o *observer) storeAll() {
	for _, id := range slices.SortedFunc(maps.Keys(o.of), event.Process.Compare) {
		o.store(id, "")
	}
}

// forget forgets the call sites of a process.
func (o *observer) forget(id event.Process) {
	all := o.of[id]
	if len(all) == 0 {
		return
	}
	for _, x := range all {
		o.to.drop(x)
		delete(o.sites, x.Site)
	}
	delete(o.of, id)
	if left := slices.DeleteFunc(o.pids[id.PID], func(other event.Process) bool { return other == id }); len(left) > 0 {
		o.pids[id.PID] = left
	} else {
		delete(o.pids, id.PID)
	}
	o.changed = slices.DeleteFunc(o.changed, func(x *site) bool { return x.Proc == id })
}

// finish counts the last record. The recording has ended.
func (o *observer) finish(s *state.State) {
	o.State, o.Rebuilding = s, false
	o.countChanged()
	o.storeAll()
}

// nameSites has the follower name every call site that was met.
func (o *observer) nameSites() {
	for _, x := range o.ended {
		i := 0
		for sample := range x.selection.Samples {
			o.to.name(x.own[i], sample)
			i++
		}
	}
	o.ended, o.selection = nil, nil
}

// A Clock is the time of the latest record, in nanoseconds of CLOCK_MONOTONIC.
type Clock struct {
	Trace      record.Trace
	Begin, Now uint64
	Gap        uint64 // when the latest gap of the recording began
	Slept      uint64 // as in record.Moment
	// Rebuilding: after a gap the recording repeats what is live. Until it has done so, sums
	// are too small.
	Rebuilding bool
}

func (c *Clock) follow(r record.Record) {
	switch r := r.(type) {
	case *record.Trace:
		c.Trace = *r
	case *record.Cut:
		c.Gap = c.Now
		c.Now, c.Rebuilding = max(c.Now, r.Time), true
	case *record.Moment:
		c.Now, c.Slept, c.Rebuilding = max(c.Now, r.Time), r.Slept, false
	case *event.Event:
		if !c.Rebuilding {
			c.Now = max(c.Now, r.Time)
		}
	}
	if c.Begin == 0 && !c.Rebuilding {
		c.Begin = c.Now
	}
}
