package timeline

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/series"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// maxProcesses bounds the processes of a run that are remembered.
const maxProcesses = 1 << 16

// A site is a call site, and how much of it is in the stream.
type site struct {
	*ledger.Site
	leaf    int32
	bytes   int64
	handed  int64 // bytes of it in tensors
	changed bool
}

// sites are the call sites of the processes that hold memory: which ones changed, and what each
// is once its process has ended.
type sites struct {
	known   map[*ledger.Site]*site
	of      map[event.Process][]*site
	pids    map[uint32][]event.Process // the processes of the map above
	changed []*site                    // by the latest record
	active  map[event.Process]bool     // processes that had an event
	fresh   []uint32                   // PIDs of processes whose first event was the latest record
	ended   []ended
	// selection is that of the last of ended, nil where the next process needs another one.
	selection *state.View
}

// ended are the call sites of processes as they were when these ended.
type ended struct {
	leaves    []int32
	selection *state.View
}

func newSites() sites {
	return sites{known: map[*ledger.Site]*site{}, of: map[event.Process][]*site{}, pids: map[uint32][]event.Process{}, active: map[event.Process]bool{}}
}

// event follows an event. A process whose first event it is may have the PID of another.
func (w *run) event(e *event.Event) {
	if state.OutOfMemory(e) {
		w.failing.Add(w.State, e)
	}
	switch {
	case e.Op == event.OpExit:
		w.end(e.Proc, e.Name)
	case !w.active[e.Proc]:
		if len(w.active) >= maxProcesses {
			clear(w.active)
		}
		w.active[e.Proc], w.fresh = true, append(w.fresh, e.Proc.PID)
	}
}

// touch marks a call site as changed by the latest record, and returns it.
func (w *run) touch(at *ledger.Site) *site {
	x := w.known[at]
	if x == nil {
		x = &site{Site: at, leaf: w.meet(at)}
		w.known[at] = x
		if w.of[at.Proc] == nil {
			w.pids[at.Proc.PID] = append(w.pids[at.Proc.PID], at.Proc)
		}
		w.of[at.Proc] = append(w.of[at.Proc], x)
	}
	if !x.changed {
		x.changed = true
		w.changed = append(w.changed, x)
	}
	return x
}

// holds reports whether a process has call sites.
func (w *run) holds(id event.Process) bool { return len(w.of[id]) > 0 }

// countChanged counts what the latest record changed. While the recording repeats what is live,
// nothing is counted.
func (w *run) countChanged() {
	if w.Rebuilding {
		return
	}
	// A process that has a PID shows that the one that had it before has ended.
	for _, pid := range w.fresh {
		for _, id := range slices.SortedFunc(slices.Values(w.pids[pid]), event.Process.Compare) {
			if !w.State.IsAlive(id) {
				w.end(id, "")
			}
		}
	}
	w.fresh = w.fresh[:0]
	for _, x := range w.changed {
		x.changed = false
		w.count(x)
	}
	w.changed = w.changed[:0]
	w.flush()
}

// end ends a process. The name is that of the event that ended it, and may be empty.
func (w *run) end(id event.Process, name string) {
	w.store(id, name)
	is := func(other event.Process) bool { return other == id }
	if w.holds(id) {
		w.steps.label(w.State, is)
	}
	maps.DeleteFunc(w.calls, func(key thread, _ *call) bool { return key.proc == id })
	w.dropRemainders(is)
	w.lives.endAll(w.Now, &id)
	delete(w.met, id)
	w.forget(id)
	delete(w.active, id)
}

// cut ends everything: the recording has a gap.
func (w *run) cut() {
	w.storeAll()
	for id := range w.of {
		w.forget(id)
	}
	clear(w.calls)
	w.caller = thread{}
	w.dropRemainders(func(event.Process) bool { return true })
	w.lives.endAll(w.Now, nil)
}

// store keeps what the page says of a process, and what its call sites are, to be named at the
// end.
func (w *run) store(id event.Process, name string) {
	all := w.of[id]
	if len(all) == 0 {
		return
	}
	w.names[id] = cmp.Or(w.State.RankName(id), w.State.Name(id), name, w.names[id])
	for key, leaf := range w.remainders {
		if l := &w.leaves[leaf]; key.proc == id && l.gpu == "" && w.State.IsAlive(id) {
			l.gpu = w.State.GPU(&l.key)
		}
	}
	p := w.seen[id]
	p.seen, p.late = w.State.SeesDriverCalls(id), w.State.AttachedLate(id)
	w.seen[id] = p

	sites := make([]*ledger.Site, len(all))
	for i, one := range all {
		sites[i] = one.Site
	}
	if v := w.State.Select(w.selection, sites, w.opts.Native); v != w.selection {
		w.selection, w.ended = v, append(w.ended, ended{selection: v})
	}
	last := &w.ended[len(w.ended)-1]
	for _, one := range all {
		last.leaves = append(last.leaves, one.leaf)
	}
}

func (w *run) storeAll() {
	for _, id := range sorting.Keys(w.of, event.Process.Compare) {
		w.store(id, "")
	}
}

// forget forgets the call sites of a process, and subtracts what they held.
func (w *run) forget(id event.Process) {
	all := w.of[id]
	if len(all) == 0 {
		return
	}
	for _, x := range all {
		w.subtract(x.leaf, x.bytes)
		delete(w.known, x.Site)
	}
	delete(w.of, id)
	if left := slices.DeleteFunc(w.pids[id.PID], func(other event.Process) bool { return other == id }); len(left) > 0 {
		w.pids[id.PID] = left
	} else {
		delete(w.pids, id.PID)
	}
	w.changed = slices.DeleteFunc(w.changed, func(x *site) bool { return x.Proc == id })
}

func (w *run) subtract(leaf int32, bytes int64) {
	if bytes != 0 {
		w.deltas = append(w.deltas, series.Delta{Line: leaf, Bytes: -bytes})
	}
}

// nameSites stores what each leaf of a call site is.
func (w *run) nameSites() {
	for _, x := range w.ended {
		i := 0
		for sample := range x.selection.Samples {
			w.leaves[x.leaves[i]].sample = &sample
			i++
		}
	}
	w.ended, w.selection = nil, nil
}
