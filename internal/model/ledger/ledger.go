// Package ledger pairs allocations with frees and says, at any moment, who
// holds how much GPU memory: per process, per call site, and at the peak.
//
// It takes events one at a time, in the order in which the kernel delivered them,
// which is nearly that of time: where two events contradict each other, Event.Time
// decides. It never fails: what cannot be true counts as loss and changes nothing.
//
// A Ledger is not safe for concurrent use. Its views change it, too.
package ledger

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/share"
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
	// 65,536.
	MaxProcesses int
	// MaxEnded is the number of ended processes whose last state is kept.
	// Default 1,024.
	MaxEnded int
	// User, if set, tells which user a process runs as, if that is known already. All
	// processes of a user together have a share of each table: see Belongs.
	User func(event.Process) (user uint32, known bool)
	// Demoted, if set, hears of each allocation that loses its row to another process's.
	// Without it such an allocation counts beyond MaxLive; with it, it ends.
	Demoted func(proc event.Process, addr uint64)
	// Peaked hears of each new peak of a process's memory of class device.
	Peaked func(event.Process)
	// Weigh, if set, says for how much an allocation of so many bytes counts in every
	// sum: it stands for others, which are not told. Its row has its own size.
	Weigh func(size uint64) Weight
	// Extents, if set, hears of where memory of class device lies.
	Extents Extents
	// Changed, if set, hears of each Change, when it is in the ledger. The end of a
	// process is none: what it held stays.
	Changed func(Change)
	// Leaving, if set, hears of each call site that goes, just before: with its process,
	// or because its counters go to the synthetic site of its kind.
	Leaving func(*Site)
	// Touched, if set, hears of each process of which a figure may be another than it was:
	// by an event of it, or of another, whose call sites had no room. It is called very often.
	Touched func(event.Process)
}

func (l *Ledger) touched(p *process) {
	if l.opt.Touched != nil {
		l.opt.Touched(p.id)
	}
}

func (l *Ledger) leaves(s *Site) {
	if l.opt.Leaving != nil {
		l.opt.Leaving(s)
	}
}

// A Change is an allocation that came, or that ended. One beyond MaxLive has no Time, and
// the site that stands for such. An import whose size is learnt late comes again with it,
// after it came with none. What has a Site alone is no allocation: see Touch.
type Change struct {
	Allocation
	Ended bool
}

// changed tells Options.Changed.
func (l *Ledger) changed(a Allocation, ended bool) {
	if l.opt.Changed != nil {
		l.opt.Changed(Change{a, ended})
	}
}

// Touch tells Options.Changed of a site of which something else than an allocation is
// another now: what of its memory is in tensors.
func (l *Ledger) Touch(s *Site) {
	if l.opt.Changed != nil {
		l.opt.Changed(Change{Allocation: Allocation{Proc: s.Proc, Site: s}})
	}
}

// A Weight is what an allocation counts for: bytes, and objects in the unit that
// Options.Weigh has for them.
type Weight struct{ Objects, Bytes int64 }

func (w Weight) negative() Weight { return Weight{-w.Objects, -w.Bytes} }

// weigh returns what an allocation of size bytes counts for.
func (l *Ledger) weigh(size uint64) Weight {
	if l.opt.Weigh == nil {
		return Weight{1, int64(size)}
	}
	return l.opt.Weigh(size)
}

// Extents hears of address ranges [from, to) in which memory lies: when it comes to
// lie there, by the site of its allocation, when it has another site, and when it lies
// there no more. Ranges that a process has when it is frozen, dropped or forgotten do
// not end.
type Extents interface {
	Began(proc event.Process, from, to uint64, at *Site)
	Moved(proc event.Process, from, to uint64, at *Site)
	Ended(proc event.Process, from, to uint64)
}

// Tell has hears hear of the ranges that proc has, oldest first, as if they began.
func (l *Ledger) Tell(proc event.Process, hears Extents) {
	p := l.procs[proc]
	if p == nil {
		return
	}
	type extent struct {
		from, to, time uint64
		at             *Site
	}
	var all []extent
	for addr, r := range p.live[event.SpacePointer] {
		all = append(all, extent{addr, addr + r.size, r.time, p.sites[r.site]})
	}
	if p.ranges != nil {
		p.ranges.Ascend(func(m *mapping) bool {
			if m.ph != nil && !m.ph.dead {
				all = append(all, extent{m.addr, m.end, m.time, p.sites[m.ph.site]})
			}
			return true
		})
	}
	slices.SortFunc(all, func(a, b extent) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
	for _, x := range all {
		if x.at.Kind.Class() == event.ClassDevice {
			hears.Began(proc, x.from, x.to, x.at)
		}
	}
}

// began tells Extents of memory of p's at s.
func (l *Ledger) began(p *process, space event.Space, from, to uint64, s *Site) {
	if l.opt.Extents != nil && space == event.SpacePointer && s.Kind.Class() == event.ClassDevice {
		l.opt.Extents.Began(p.id, from, to, s)
	}
}

// moved tells Extents that memory is at another site.
func (l *Ledger) moved(p *process, space event.Space, from, to uint64, s *Site) {
	if l.opt.Extents != nil && space == event.SpacePointer && s.Kind.Class() == event.ClassDevice {
		l.opt.Extents.Moved(p.id, from, to, s)
	}
}

func (l *Ledger) finished(p *process, space event.Space, from, to uint64) {
	if l.opt.Extents != nil && space == event.SpacePointer {
		l.opt.Extents.Ended(p.id, from, to)
	}
}

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

// A Ledger holds the state of all traced processes.
type Ledger struct {
	opt   Options
	procs map[event.Process]*process
	order []*process // in order of appearance
	last  *process   // the process of the last event

	ended []*process // ended processes that touched GPU memory, oldest first
	idle  []*process // ended processes that never did
	gone  forgotten  // processes that were dropped: late events do not bring them back

	events    int
	looked    int // rows looked at to move graphs
	tables    [NumShared]*share.Table[*process]
	endedRows int // rows that ended processes still show

	loss *loss.Set

	evidence *Evidence // of the event that is applied, nil for none

	// Scratch of the mapping code.
	hits     []*mapping
	from, to mapping
}

// New returns an empty Ledger.
func New(opt Options) *Ledger {
	opt = opt.withDefaults()
	l := &Ledger{
		opt:   opt,
		procs: make(map[event.Process]*process),
		loss:  loss.New(causes),
		gone:  forgotten{max: opt.MaxEnded, set: make(map[event.Process]struct{})},
	}
	l.makeTables()
	return l
}

// Apply takes one event into account. It does not keep e.
func (l *Ledger) Apply(e *event.Event) {
	if !valid(e) {
		l.loss.Add(lossInvalid, 1)
		return
	}
	p := l.process(e.Proc)
	if p == nil {
		return
	}
	l.touched(p)
	l.events++
	switch e.Op {
	case event.OpFork:
		return // a child has none of its parent's GPU memory
	case event.OpExec:
		l.exec(p, e.Time)
		return
	case event.OpExit:
		l.exit(p, e.Time)
		return
	}
	l.begin(p)
	if e.Time > p.exec {
		l.context(p, e.Ctx)
	}
	switch {
	case e.Result != event.Success:
		l.failed(p, e)
	case p.over(e.Time):
		l.late(p, e)
	default:
		if effect := effects[e.Op]; effect != nil {
			effect(l, p, e)
		}
	}
}

// effects are what a success of each Op does to a living process. One that is
// left out does nothing: address space (OpReserve, OpUnreserve) is no memory.
var effects = [event.OpExit + 1]func(*Ledger, *process, *event.Event){
	event.OpAlloc:            (*Ledger).alloc,
	event.OpFree:             (*Ledger).free,
	event.OpOpen:             (*Ledger).open,
	event.OpHandleCreate:     (*Ledger).handleCreate,
	event.OpHandleImport:     (*Ledger).handleImport,
	event.OpHandleRetain:     (*Ledger).handleRetain,
	event.OpHandleRelease:    (*Ledger).handleRelease,
	event.OpMap:              (*Ledger).mapRange,
	event.OpUnmap:            (*Ledger).unmapRange,
	event.OpMapArray:         (*Ledger).mapPart,
	event.OpUnmapArray:       (*Ledger).unmapPart,
	event.OpCaptureBegin:     (*Ledger).captureBegin,
	event.OpCaptureEnd:       (*Ledger).captureEnd,
	event.OpGraphInstantiate: (*Ledger).graphInstantiate,
	event.OpGraphMove:        (*Ledger).graphMove,
	event.OpGraphDestroy:     (*Ledger).graphDestroy,
	event.OpPoolCreate:       (*Ledger).poolCreate,
	event.OpPoolDestroy:      (*Ledger).poolDestroy,
	event.OpPoolTrim:         (*Ledger).poolTrim,
	event.OpContextCreate:    (*Ledger).contextCreate,
	event.OpContextSeen:      (*Ledger).contextSeen,
	event.OpContextDestroy:   (*Ledger).contextDestroy,
	event.OpPrimaryRelease:   (*Ledger).primaryRelease,
	event.OpPrimaryReset:     (*Ledger).primaryReset,
}

// failed applies a call that failed: one that would have brought memory counts
// in nothing but the failed figures.
func (l *Ledger) failed(p *process, e *event.Event) {
	switch {
	case allocates(e.Op):
		_, s := l.site(p, e)
		s.seen(e.Time)
		s.FailedObjects++
		s.FailedBytes = addSaturated(s.FailedBytes, e.Size)
		p.sums.Failed++
		if e.Result == event.OutOfMemory {
			p.sums.OutOfMemory++
		}
	case e.Op == event.OpCaptureEnd && !p.over(e.Time):
		l.captureEnd(p, e)
	}
}

// late applies a successful call that came after the exec or the exit of its
// process: the memory that it brought is gone, and what it ended had ended before.
func (l *Ledger) late(p *process, e *event.Event) {
	switch {
	case allocates(e.Op):
		_, s := l.site(p, e)
		w := l.weigh(e.Size)
		p.count(s, e.Time, w.Objects, uint64(w.Bytes))
	case ends(e.Op) && e.Time >= p.end:
		// The process's end had ended it.
	default:
		l.loss.Add(lossLate, 1)
	}
}

// allocates says whether a success of op brings memory.
func allocates(op event.Op) bool {
	switch op {
	case event.OpAlloc, event.OpOpen, event.OpHandleCreate, event.OpHandleImport:
		return true
	}
	return false
}

// ends says whether a success of op ends memory.
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

// valid says whether e could have come from a real call.
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

// Takes tells whether an event changes the memory of the image that its process runs: it
// succeeded, could have come from a real call, and belongs to that image.
func (l *Ledger) Takes(e *event.Event) bool {
	p := l.procs[e.Proc]
	_, gone := l.gone.set[e.Proc]
	return valid(e) && e.Result == event.Success && !gone && (p == nil || !p.over(e.Time))
}

// Exited tells whether proc's last thread ended.
func (l *Ledger) Exited(proc event.Process) bool {
	p := l.procs[proc]
	return p != nil && p.exited
}

// Room tells whether there is a row for an allocation more of a process. If that takes
// it, others lose rows.
func (l *Ledger) Room(proc event.Process) bool {
	p := l.process(proc)
	if p == nil {
		return false
	}
	l.begin(p)
	if !l.rowRoom(p) {
		p.shares[SharedRows].Lose(1)
		return false
	}
	return true
}

// Since returns the earliest time that belongs to the image that proc runs.
func (l *Ledger) Since(proc event.Process) uint64 {
	if p := l.procs[proc]; p != nil {
		return p.exec + 1
	}
	return 1
}

// Peak returns the highest total of class device that proc had, in bytes.
func (l *Ledger) Peak(proc event.Process) int64 {
	if p := l.procs[proc]; p != nil {
		return p.sums.Peak
	}
	return 0
}

// Inuse returns what proc holds of class device, in bytes.
func (l *Ledger) Inuse(proc event.Process) int64 {
	if p := l.procs[proc]; p != nil {
		return p.inuse[event.ClassDevice]
	}
	return 0
}

// DeviceOf returns the device of a context of proc, or event.NoDevice.
func (l *Ledger) DeviceOf(proc event.Process, ctx uint64) int32 {
	p := l.procs[proc]
	if p == nil {
		return event.NoDevice
	}
	return p.contexts[p.contextAt[ctx]].device
}

// Forget removes all that is known of proc. An event of it that arrives
// afterwards is counted as loss.
func (l *Ledger) Forget(proc event.Process) {
	p := l.procs[proc]
	if p == nil {
		return
	}
	l.touched(p)
	for _, s := range p.sites {
		if s != nil {
			l.leaves(s)
		}
	}
	l.freeze(p)
	for i := range p.shares {
		p.shares[i].Leave()
	}
	delete(l.procs, proc)
	for _, list := range []*[]*process{&l.order, &l.ended, &l.idle} {
		*list = slices.DeleteFunc(*list, func(q *process) bool { return q == p })
	}
	if l.last == p {
		l.last = nil
	}
	if p.active {
		l.gone.add(proc)
	}
}
