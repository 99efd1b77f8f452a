// Package ledger pairs allocations with frees and knows, at any moment, who
// holds how much GPU memory: per process, per call site, and at the peak.
//
// It applies events one at a time, in the order in which the kernel delivered them,
// which is nearly that of time: where two events contradict each other, Event.Time
// decides. It never fails: what cannot be true counts as loss and changes nothing.
// The invariant: the sums of a process are always the sums over its call sites.
//
// A Ledger routes each event to its process, and a process to one of its tables: of
// call sites, allocations, physical memory, contexts, pools or graphs. A Ledger is not
// safe for concurrent use, not even its methods that return figures.
package ledger

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// Options bound what a Ledger holds. Zero means the default.
type Options struct {
	// MaxLive is the number of live allocations with a row of their own, over
	// all processes. Default 2,000,000.
	MaxLive int
	// MaxUnattributed is the number of live allocations beyond MaxLive whose
	// size is remembered and whose call site is not. Default 2 * MaxLive.
	MaxUnattributed int
	// MaxMappings is the number of live mappings of physical memory. Default
	// MaxLive + MaxUnattributed.
	MaxMappings int
	// MaxSites is the number of call sites. Default 262,144.
	MaxSites int
	// MaxProcesses is the number of processes, ended ones included. Default
	// 16,384.
	MaxProcesses int
	// MaxEnded is the number of ended processes whose last state stays.
	// Default 1,024.
	MaxEnded int

	// Changed, if set, is called after each change of a call site: of its memory in use, or of
	// how much of that lies in tensors. The end of a process is none: its last state stays.
	Changed func(*Site)
	// Leaving, if set, is called with a call site before it is removed: with its process, or
	// because its counters are added to the synthetic site of its kind.
	Leaving func(*Site)
	// Peaked, if set, is called at a new highest total of a process's memory of class device,
	// and returns whether that is its peak. If not, the peak is where MarkPeak is called.
	Peaked func(event.Process) bool
	// Extents, if set, returns whether TakeExtents has those of a process. Whoever applies events
	// calls that after each.
	Extents func(event.Process) bool
}

// SiteChanged calls Options.Changed. The tensor layer calls it where it changed how much of the
// memory of a site lies in tensors.
func (l *Ledger) SiteChanged(s *Site) {
	if l.opt.Changed != nil {
		l.opt.Changed(s)
	}
}

func (l *Ledger) leaving(s *Site) {
	if l.opt.Leaving != nil {
		l.opt.Leaving(s)
	}
}

// A tally counts allocations.
type tally struct{ objects, bytes int64 }

func (w tally) negative() tally { return tally{-w.objects, -w.bytes} }

// one is an allocation of size bytes.
func one(size uint64) tally { return tally{1, int64(size)} }

func (o Options) withDefaults() Options {
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&o.MaxLive, 2_000_000)
	set(&o.MaxUnattributed, 2*o.MaxLive)
	set(&o.MaxMappings, o.MaxLive+o.MaxUnattributed)
	set(&o.MaxSites, 1<<18)
	set(&o.MaxProcesses, 1<<14)
	set(&o.MaxEnded, 1024)
	return o
}

// A Ledger has the state of all traced processes.
type Ledger struct {
	opt   Options
	procs map[event.Process]*process
	order []*process // in order of appearance, nil where one was forgotten
	holes int        // of order

	reports uint64   // how many Reported there were
	last    *process // the process of the last event

	ended []*process // ended processes that touched GPU memory, oldest first
	idle  []*process // ended processes that never did
	gone  forgotten  // processes that were dropped: late events do not bring them back

	events    int
	visited   int             // rows visited to move graphs
	held      Held            // of all processes
	endedRows int             // rows that ended processes still show
	extents   Changes[Extent] // see TakeExtents

	loss     *loss.Set
	evidence *Evidence // of the event that is applied, nil for none
}

// New returns an empty Ledger.
func New(opt Options) *Ledger {
	opt = opt.withDefaults()
	return &Ledger{
		opt:   opt,
		procs: make(map[event.Process]*process),
		loss:  loss.New(causes),
		gone:  forgotten{max: opt.MaxEnded, set: make(map[event.Process]struct{})},
	}
}

// Apply applies one event. It does not keep e.
func (l *Ledger) Apply(e *event.Event) {
	if !valid(e) {
		l.loss.Add(lossInvalid, 1)
		return
	}
	if p := l.process(e.Proc); p != nil {
		l.events++
		p.apply(e)
	}
}

// ApplyEnd applies e, which may end a context, as Apply does, with evidence of it.
func (l *Ledger) ApplyEnd(e *event.Event, ev *Evidence) {
	l.evidence = ev
	l.Apply(e)
	l.evidence = nil
}

// ApplyUnlisted ends the allocations in contexts of proc that are not newer than at: NVML then
// listed it on no GPU, so it had no context.
func (l *Ledger) ApplyUnlisted(proc event.Process, at uint64) {
	if p := l.procs[proc]; p != nil && p.active && !p.exited && !p.frozen {
		p.contexts.endAllocations(at, func(uint32, int32) bool { return true })
	}
}

// MarkPeak makes what each site of proc holds on GPUs its PeakBytes: the moment is the
// process's peak. Memory of class driver and of tensors has no other.
func (l *Ledger) MarkPeak(proc event.Process) {
	if p := l.procs[proc]; p != nil {
		p.sites.markPeak()
	}
}

// MarkReported records what each call site has allocated so far, beside what it allocates. It
// visits none of them.
func (l *Ledger) MarkReported() { l.reports++ }

// ResetCounts makes what was ever allocated, failed calls, unmatched frees and peaks count
// from this moment on. What is in use is at its peak.
func (l *Ledger) ResetCounts() {
	for p := range l.inOrder {
		p.sites.resetCounts()
		p.allocs.unmatchedFrees = 0
	}
}

// allocates returns whether a success of op brings memory.
func allocates(op event.Op) bool {
	switch op {
	case event.OpAlloc, event.OpOpen, event.OpHandleCreate, event.OpHandleImport:
		return true
	}
	return false
}

// ends returns whether a success of op ends memory.
func ends(op event.Op) bool {
	switch op {
	case event.OpFree, event.OpHandleRelease, event.OpUnmap, event.OpUnmapArray,
		event.OpContextDestroy, event.OpPrimaryReset:
		return true
	}
	return false
}

// maxBytes is more than any address space that CUDA runs in (57 bits).
const maxBytes = 1 << 57

// valid returns whether e could have come from a real call.
func valid(e *event.Event) bool {
	if e.Op == event.OpNone || e.Op > event.OpExit || e.Space >= event.NumSpaces {
		return false
	}
	if allocates(e.Op) && (e.Kind == event.KindNone || e.Kind >= event.NumKinds) {
		return false
	}
	if e.Result != event.Success {
		return true // a failed call's size is what was asked for, however absurd
	}
	if e.Op == event.OpPoolTrim {
		return true // "keep everything" is a size too
	}
	if e.Size > maxBytes {
		return false
	}
	if e.Op == event.OpMap || e.Op == event.OpUnmap {
		return e.Size != 0 && e.Addr+e.Size > e.Addr
	}
	return !allocates(e.Op) || e.Addr+e.Size >= e.Addr
}

// Accepts returns whether an event changes the memory of the image that its process runs:
// it succeeded, could have come from a real call, and belongs to that image.
func (l *Ledger) Accepts(e *event.Event) bool {
	p := l.procs[e.Proc]
	_, gone := l.gone.set[e.Proc]
	return valid(e) && e.Result == event.Success && !gone && (p == nil || !p.over(e.Time))
}

// Room returns whether there is a row for one more allocation of a process.
func (l *Ledger) Room(proc event.Process) bool {
	p := l.process(proc)
	if p == nil {
		return false
	}
	p.activate()
	return p.rowRoom()
}

// Release ends what proc, which has exited, held when it did. Its counters and
// its peak stay.
func (l *Ledger) Release(proc event.Process) {
	if p := l.procs[proc]; p != nil && p.exited {
		p.endMemory(never)
	}
}

// Forget removes all that is known of proc. An event of it that arrives
// afterwards is counted as loss.
func (l *Ledger) Forget(proc event.Process) {
	p := l.procs[proc]
	if p == nil {
		return
	}
	for _, s := range p.sites.all {
		if s != nil {
			l.leaving(s)
		}
	}
	p.freeze()
	p.count(Sites, -p.held[Sites])
	delete(l.procs, proc)
	l.order[p.at] = nil
	if l.holes++; 2*l.holes > len(l.order) {
		l.compact()
	}
	for _, list := range []*[]*process{&l.ended, &l.idle} {
		if len(*list) > 0 && (*list)[0] == p { // nearly always
			(*list)[0], *list = nil, (*list)[1:]
		} else if i := slices.Index(*list, p); i >= 0 {
			*list = slices.Delete(*list, i, i+1)
		}
	}
	if l.last == p {
		l.last = nil
	}
	if p.active {
		l.gone.add(proc)
	}
}

// compact removes the holes of l.order.
func (l *Ledger) compact() {
	l.order, l.holes = slices.Collect(l.inOrder), 0
	for i, p := range l.order {
		p.at = i
	}
}
