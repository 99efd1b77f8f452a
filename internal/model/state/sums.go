package state

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Sums keep what each process adds to Totals: those of the next moment then cost as much as
// there are processes of which something changed. They are of one State, and for one
// goroutine at a time, from State.View to View.Totals. The zero Sums keep nothing yet.
type Sums struct {
	processes map[event.Process]*sum // nil while most change from one moment to the next
}

// A sum is what one process adds, or what several do.
type sum struct {
	groups   map[Group]*GroupTotals // without their Counts
	uses     []Use
	accounts []settled
	waits    bool // for names, or stacks: the owner of memory may come to be another
}

// A settled is an account, and whose it is.
type settled struct {
	id event.Process
	snapshot.Account
}

// Where more processes than few change, and more than half of all, all are added up
// without keeping what each of them adds: that takes a third less.
const few = 16

// maxChanged bounds the processes that are told apart as changed.
const maxChanged = 2 * maxKnown

// changes are what Sums have not taken yet.
type changes struct {
	sums      *Sums // who is told, nil for nobody
	processes map[event.Process]bool
	all       bool // of every process
	named     bool // names came, or stacks
	full      bool // there are as many GPUs as are told apart
	last      event.Process
	again     bool // last is in processes
}

// touch says that a figure of a process may be another.
func (c *changes) touch(id event.Process) {
	if c.sums == nil || c.again && id == c.last {
		return
	}
	if len(c.processes) >= maxChanged {
		c.all = true
		clear(c.processes)
	}
	c.processes[id], c.last, c.again = true, id, true
}

// changed begins a look, and returns the processes of which it must see everything, nil
// for all.
func (s *State) changed(sums *Sums) map[event.Process]bool {
	c := &s.changes
	full := len(s.groups.gpus) >= maxGPUs
	// Without All an ended process is shown, or not, by how others end.
	all := c.sums != sums || c.all || c.full != full || !s.trace.All
	out, most := c.processes, len(c.processes) > max(few, len(s.procs.known)/2)
	switch {
	case most:
		out, sums.processes = nil, nil
	case all:
		out, sums.processes = nil, map[event.Process]*sum{}
	case c.named:
		for id, x := range sums.processes {
			if x.waits {
				out[id] = true
			}
		}
	}
	*c = changes{sums: sums, processes: map[event.Process]bool{}, full: full, all: most}
	return out
}

// sitesOf yields the call sites of some processes, or with nil of all.
func sitesOf(rows *ledger.Ledger, some map[event.Process]bool) func(func(*ledger.Site) bool) {
	if some == nil {
		return rows.Sites
	}
	return func(yield func(*ledger.Site) bool) {
		for id := range some {
			for x := range rows.SitesOf(id) {
				if !yield(x) {
					return
				}
			}
		}
	}
}

// take brings sums up to the moment of v, which shows what changed, and returns what all
// processes add up to.
func (sums *Sums) take(v *View) *sum {
	if sums.processes == nil {
		return v.sum()
	}
	for id, part := range v.parts(v.some()) {
		if x := part.sum(); x.waits || len(x.groups)+len(x.uses)+len(x.accounts) > 0 {
			sums.processes[id] = x
		} else {
			delete(sums.processes, id)
		}
	}
	out := &sum{groups: map[Group]*GroupTotals{}}
	for _, x := range sums.processes {
		for k, g := range x.groups {
			to := out.group(k)
			to.LiveObjects += g.LiveObjects
			to.LiveBytes += g.LiveBytes
			to.PeakBytes += g.PeakBytes
		}
		out.accounts = append(out.accounts, x.accounts...)
	}
	for _, p := range v.processes {
		if x := sums.processes[p.id]; x != nil {
			out.uses = append(out.uses, x.uses...)
		}
	}
	slices.SortFunc(out.accounts, func(a, b settled) int {
		return cmp.Or(cmp.Compare(a.id.PID, b.id.PID), cmp.Compare(a.id.Start, b.id.Start), cmp.Compare(a.GPU, b.GPU))
	})
	return out
}

// has tells whether v shows everything of a process.
func (v *View) has(id event.Process) bool { return v.only == nil || v.only[id] }

// some returns the processes that v shows everything of.
func (v *View) some() []event.Process {
	seen := map[event.Process]bool{}
	for id := range v.only {
		seen[id] = true
	}
	if v.only == nil {
		for _, p := range v.processes {
			seen[p.id] = true
		}
		for _, sites := range v.all() {
			for i := range sites {
				if i == 0 || sites[i].Proc != sites[i-1].Proc {
					seen[sites[i].Proc] = true
				}
			}
		}
	}
	out := make([]event.Process, 0, len(seen))
	for id := range seen {
		out = append(out, id)
	}
	return out
}

func (x *sum) group(k Group) *GroupTotals {
	g := x.groups[k]
	if g == nil {
		g = &GroupTotals{Group: k}
		x.groups[k] = g
	}
	return g
}

func (x *sum) hold(k Group, objects, inuse, peak int64) {
	if objects != 0 || inuse != 0 || peak != 0 {
		g := x.group(k)
		g.LiveObjects += objects
		g.LiveBytes += inuse
		g.PeakBytes += peak
	}
}

// sum adds up what v shows.
func (v *View) sum() *sum {
	out := &sum{groups: map[Group]*GroupTotals{}, uses: v.uses()}
	splits := v.splits()
	for i := range v.sites {
		x, k := &v.sites[i], v.sites[i].group
		objects := x.InuseObjects
		switch {
		case x.pool && v.partial: // see splits
			objects = 0
		case x.pool:
			k.Kind = event.KindCached
		}
		out.hold(k, objects, x.InuseBytes-x.handed.inuse, x.PeakBytes-x.handed.peak)
		out.waits = out.waits || x.waits
	}
	for _, sites := range [][]site{v.tensors, v.physical} {
		for i := range sites {
			x := &sites[i]
			if x.Kind.Class() != event.ClassDriver || apart(x.group.Kind) {
				out.hold(x.group, x.InuseObjects, x.InuseBytes, x.PeakBytes)
			}
			out.waits = out.waits || x.waits
		}
	}
	for _, s := range splits {
		for _, l := range s.lines {
			out.hold(Group{v.gpuGroup(s.gpu), l.kind, ownerAllocator}, l.InuseObjects, l.InuseBytes, l.PeakBytes)
		}
	}
	for s := range v.settlements(splits, func(i int) event.Kind { return v.physical[i].group.Kind }) {
		for _, r := range s.rest {
			out.hold(Group{v.gpuGroup(s.account.GPU), event.KindDriver, ownerDriver}, 0, r.inuse, r.peak)
		}
		if s.holds {
			out.accounts = append(out.accounts, settled{s.id, s.account})
		}
	}
	return out
}

// touchAll says that a figure of any process may be another.
func (s *State) touchAll() { s.changes.all = true }

// touchAllocators says so of those whose caching allocators r tells of.
func (s *State) touchAllocators(r *record.Tensors) {
	for i := range r.Allocators {
		s.changes.touch(r.Allocators[i].Process)
	}
}
