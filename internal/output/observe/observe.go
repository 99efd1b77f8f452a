// Package observe follows a recording while it is played, for outputs that show a whole
// run: what time it is, which processes hold memory, which call sites changed, and what
// each call site is once its process has ended. Outputs add up and draw.
package observe

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// MaxProcesses bounds the processes that an output of a run remembers.
const MaxProcesses = 1 << 16

// Hooks are what an output does at each step of a recording. T is what the output stores
// with a call site. Every hook but Meet and Count may be nil.
type Hooks[T any] struct {
	// Meet returns what to store with a new call site, or false to ignore the site.
	Meet func(*ledger.Site) (T, bool)
	// Count adds what a call site holds now, after a record changed it.
	Count func(*Site[T])
	// Drop subtracts what a call site held, when its process ends.
	Drop func(*Site[T])
	// Flush is called when everything that a record changed has been counted.
	Flush func()
	// Leave is called before the call sites of a process are forgotten. The name is that
	// of the event that ended the process, and may be empty.
	Leave func(id event.Process, name string)
	// Gone is called after Leave, if the process has ended.
	Gone func(event.Process)
	// Failed is called for each failure for want of memory, when it is over.
	Failed func(*state.Failure)
	// Name is called at the end, for each call site that was met.
	Name func(T, snapshot.Sample)
}

// A Site is a call site and what an output stores with it.
type Site[T any] struct {
	*ledger.Site
	Own     T
	changed bool
}

// An Observer follows a recording. replay.Options call its Before and Hear.
type Observer[T any] struct {
	Clock
	Hooks[T]
	State *state.State // as of the latest record

	native   stacks.Native
	sites    map[*ledger.Site]*Site[T]
	of       map[event.Process][]*Site[T]
	pids     map[uint32][]event.Process // the processes of the map above
	changed  []*Site[T]                 // by the latest record
	active   map[event.Process]bool     // processes that had an event
	fresh    []uint32                   // PIDs of processes whose first event was the latest record
	failures *state.Failures
	ended    []ended[T]
	// selection is that of the last of ended, nil where the next process needs another one.
	selection *state.View
}

// ended are the call sites of processes as they were when these ended.
type ended[T any] struct {
	own       []T
	selection *state.View
}

// New returns an Observer that has heard nothing.
func New[T any](native stacks.Native, hooks Hooks[T]) *Observer[T] {
	o := &Observer[T]{Hooks: hooks, native: native, sites: map[*ledger.Site]*Site[T]{}, of: map[event.Process][]*Site[T]{},
		pids: map[uint32][]event.Process{}, active: map[event.Process]bool{}}
	if hooks.Failed != nil {
		o.failures = state.NewFailures(hooks.Failed)
	}
	return o
}

// CompareProcesses orders processes by PID, and then by when they began.
func CompareProcesses(a, b event.Process) int {
	return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Start, b.Start))
}

// Before follows a record before the state applies it: the state shows what the record
// before it changed.
func (o *Observer[T]) Before(s *state.State, r record.Record) {
	o.State = s
	o.count()
	o.Clock.follow(r)
	switch r := r.(type) {
	case *record.Trace:
		o.selection = nil // it is of another trace
	case *record.Cut:
		o.leaveAll()
		for id := range o.of {
			o.drop(id)
		}
	case *event.Event:
		if !o.Rebuilding {
			o.event(r)
		}
	}
}

func (o *Observer[T]) event(e *event.Event) {
	if o.failures != nil && state.OutOfMemory(e) {
		o.failures.Add(o.State, e)
	}
	switch {
	case e.Op == event.OpExit:
		o.end(e.Proc, e.Name)
	case !o.active[e.Proc]:
		if len(o.active) >= MaxProcesses {
			clear(o.active)
		}
		o.active[e.Proc], o.fresh = true, append(o.fresh, e.Proc.PID)
	}
}

// Hear follows a change of what a call site holds.
func (o *Observer[T]) Hear(c ledger.Change) { o.Touch(c.Site) }

// Touch marks a call site as changed by the latest record, and returns it; nil if it is
// ignored.
func (o *Observer[T]) Touch(site *ledger.Site) *Site[T] {
	x := o.sites[site]
	if x == nil {
		own, ok := o.Meet(site)
		if !ok {
			return nil
		}
		x = &Site[T]{Site: site, Own: own}
		o.sites[site] = x
		if o.of[site.Proc] == nil {
			o.pids[site.Proc.PID] = append(o.pids[site.Proc.PID], site.Proc)
		}
		o.of[site.Proc] = append(o.of[site.Proc], x)
	}
	if !x.changed {
		x.changed = true
		o.changed = append(o.changed, x)
	}
	return x
}

// Site returns a call site, nil if it was not met.
func (o *Observer[T]) Site(site *ledger.Site) *Site[T] { return o.sites[site] }

// Holds reports whether a process has call sites.
func (o *Observer[T]) Holds(id event.Process) bool { return len(o.of[id]) > 0 }

// count lets the output count what the latest record changed. While the recording repeats
// what is live, nothing is counted.
func (o *Observer[T]) count() {
	if o.Rebuilding {
		return
	}
	// A process that has a PID shows that the one that had it before has ended.
	for _, pid := range o.fresh {
		for _, id := range slices.SortedFunc(slices.Values(o.pids[pid]), CompareProcesses) {
			if !o.State.IsAlive(id) {
				o.end(id, "")
			}
		}
	}
	o.fresh = o.fresh[:0]
	for _, x := range o.changed {
		x.changed = false
		o.Count(x)
	}
	o.changed = o.changed[:0]
	if o.Flush != nil {
		o.Flush()
	}
}

// end ends a process.
func (o *Observer[T]) end(id event.Process, name string) {
	o.leave(id, name)
	if o.Gone != nil {
		o.Gone(id)
	}
	o.drop(id)
	delete(o.active, id)
}

// leave stores what the call sites of a process are, to be named at the end.
func (o *Observer[T]) leave(id event.Process, name string) {
	if o.Leave != nil {
		o.Leave(id, name)
	}
	all := o.of[id]
	if len(all) == 0 || o.Name == nil {
		return
	}
	sites := make([]*ledger.Site, len(all))
	for i, one := range all {
		sites[i] = one.Site
	}
	if v := o.State.Select(o.selection, sites, o.native); v != o.selection {
		o.selection, o.ended = v, append(o.ended, ended[T]{selection: v})
	}
	last := &o.ended[len(o.ended)-1]
	for _, one := range all {
		last.own = append(last.own, one.Own)
	}
}

func (o *Observer[T]) leaveAll() {
	for _, id := range slices.SortedFunc(maps.Keys(o.of), CompareProcesses) {
		o.leave(id, "")
	}
}

// drop forgets the call sites of a process.
func (o *Observer[T]) drop(id event.Process) {
	all := o.of[id]
	if len(all) == 0 {
		return
	}
	for _, x := range all {
		if o.Drop != nil {
			o.Drop(x)
		}
		delete(o.sites, x.Site)
	}
	delete(o.of, id)
	if left := slices.DeleteFunc(o.pids[id.PID], func(other event.Process) bool { return other == id }); len(left) > 0 {
		o.pids[id.PID] = left
	} else {
		delete(o.pids, id.PID)
	}
	o.changed = slices.DeleteFunc(o.changed, func(x *Site[T]) bool { return x.Proc == id })
}

// Prune forgets call sites that hold nothing, if there are more than most.
func (o *Observer[T]) Prune(most int, empty func(*Site[T]) bool) {
	if len(o.sites) < most {
		return
	}
	for id, all := range o.of {
		o.of[id] = slices.DeleteFunc(all, func(x *Site[T]) bool {
			forget := !x.changed && empty(x)
			if forget {
				delete(o.sites, x.Site)
			}
			return forget
		})
	}
}

// Finish counts the last record. The recording has ended.
func (o *Observer[T]) Finish(s *state.State) {
	o.State, o.Rebuilding = s, false
	o.count()
	o.leaveAll()
}

// EndFailures reports the failures that are not over.
func (o *Observer[T]) EndFailures() { o.failures.End() }

// NameSites has the output name every call site that was met.
func (o *Observer[T]) NameSites() {
	for _, x := range o.ended {
		i := 0
		for sample := range x.selection.Samples {
			o.Name(x.own[i], sample)
			i++
		}
	}
	o.ended, o.selection = nil, nil
}
