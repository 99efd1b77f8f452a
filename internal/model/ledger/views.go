package ledger

import (
	"iter"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// Totals are the figures of one process. Bytes of different classes are never
// added up.
type Totals struct {
	Proc   event.Process
	Exited bool // the figures in use are those of that moment

	Inuse, Peak, Allocated         int64 // bytes of owned device memory
	Managed, Host, Imported, Graph int64 // live bytes of those classes
	LiveObjects                    int64

	Failed      int64 // failed allocation calls
	OutOfMemory int64 // those that failed for want of memory

	// UnmatchedFrees are frees of addresses never seen allocated: memory from
	// before the trace began.
	UnmatchedFrees int64

	// Unattributed is the part of Inuse that is at synthetic sites because of
	// MaxLive.
	Unattributed int64
	// UnknownBytes, of any class, may be live and are in no other figure in
	// use: true totals lie between those and those plus UnknownBytes.
	UnknownBytes int64

	// AsyncInuse is the part of Inuse that came from memory pools, AsyncHigh
	// the most that the pools may hold for it: the sum of each pool's highest
	// use since it was last trimmed.
	AsyncInuse, AsyncHigh int64
}

func (p *process) totals() Totals {
	t := p.sums
	t.Proc, t.Exited = p.id, p.exited
	t.Inuse, t.Managed, t.Host = p.inuse[event.ClassDevice], p.inuse[event.ClassManaged], p.inuse[event.ClassHost]
	t.Imported, t.Graph = p.inuse[event.ClassImported], p.inuse[event.ClassGraph]
	t.Unattributed = p.unattributed[event.ClassDevice]
	return t
}

// Processes yields the totals of each process that called CUDA's memory
// functions, in order of appearance.
func (l *Ledger) Processes(yield func(Totals) bool) {
	for _, p := range l.order {
		if p.active && !yield(p.totals()) {
			return
		}
	}
}

// Sites yields every call site, by process and in order of appearance. What
// is yielded is the ledger's own: it is valid until the next Apply or Forget.
// The sum of a process's InuseBytes is its total in use, and of its PeakBytes
// of class device its Peak.
func (l *Ledger) Sites(yield func(*Site) bool) {
	for _, p := range l.order {
		if !p.yieldSites(yield) {
			return
		}
	}
}

// SitesOf yields those of one process.
func (l *Ledger) SitesOf(proc event.Process) iter.Seq[*Site] {
	return func(yield func(*Site) bool) {
		if p := l.procs[proc]; p != nil {
			p.yieldSites(yield)
		}
	}
}

func (p *process) yieldSites(yield func(*Site) bool) bool {
	for _, s := range p.sites {
		if s == nil {
			continue
		}
		p.settle(s)
		if !yield(s) {
			return false
		}
	}
	return true
}

// Len returns how many call sites Sites yields, or more.
func (l *Ledger) Len() (n int) {
	for _, p := range l.order {
		n += len(p.sites)
	}
	return n
}

// An Allocation is one live allocation.
type Allocation struct {
	Proc event.Process
	// Handle is the handle of physical memory (cuMemCreate and imports),
	// which is in no Space and has no Addr; 0 for all else.
	Handle uint64
	Space  event.Space
	Addr   uint64
	Size   uint64 // bytes
	Time   uint64 // when it was allocated, as Event.Time
	Site   *Site
}

// Live yields the live allocations that have a row, in no order within a
// process. Those of an ended process are what it held when it ended.
func (l *Ledger) Live(yield func(Allocation) bool) {
	for _, p := range l.order {
		if !p.yieldLive(yield) {
			return
		}
	}
}

// Rows returns how many allocations Live yields.
func (l *Ledger) Rows() int { return l.tables[SharedRows].Held() }

func (p *process) yieldLive(yield func(Allocation) bool) bool {
	for space, rows := range p.live {
		for addr, r := range rows {
			if !yield(p.allocation(event.Space(space), addr, &r)) {
				return false
			}
		}
	}
	for _, ph := range p.handles {
		if !ph.extra && !yield(p.allocated(ph)) {
			return false
		}
	}
	return true
}

// allocation returns what has the row r.
func (p *process) allocation(space event.Space, addr uint64, r *row) Allocation {
	return Allocation{Proc: p.id, Space: space, Addr: addr, Size: r.size, Time: r.time, Site: p.sites[r.site]}
}

// beyond returns what has the extra row r.
func (p *process) beyond(space event.Space, addr uint64, r extraRow) Allocation {
	_, s := p.synthetic(r.kind())
	return Allocation{Proc: p.id, Space: space, Addr: addr, Size: uint64(r.size()), Site: s}
}

// allocated returns what ph is.
func (p *process) allocated(ph *physical) Allocation {
	a := Allocation{Proc: p.id, Handle: ph.handle, Size: ph.size, Time: ph.time, Site: p.sites[ph.site]}
	if ph.extra {
		a.Time = 0
	}
	return a
}
