package ledger

import (
	"iter"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// ProcessTotals are the figures of one process. Bytes of different classes are never
// added up.
type ProcessTotals struct {
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

// Processes yields the totals of each process that called CUDA's memory
// functions, in order of appearance.
func (l *Ledger) Processes(yield func(ProcessTotals) bool) {
	for p := range l.inOrder {
		if p.active && !yield(p.totals()) {
			return
		}
	}
}

// unknown is the state of a process that is not known.
var unknown = process{end: never}

// lookup returns the state of proc, to be read.
func (l *Ledger) lookup(proc event.Process) *process {
	if p := l.procs[proc]; p != nil {
		return p
	}
	return &unknown
}

// Active returns whether proc called CUDA's memory functions and is known.
func (l *Ledger) Active(proc event.Process) bool { return l.lookup(proc).active }

// Exited returns whether proc's last thread ended.
func (l *Ledger) Exited(proc event.Process) bool { return l.lookup(proc).exited }

// ImageStart returns the earliest time that belongs to the image that proc runs.
func (l *Ledger) ImageStart(proc event.Process) uint64 { return l.lookup(proc).exec + 1 }

// InUse returns what proc holds of a class, in bytes.
func (l *Ledger) InUse(proc event.Process, class event.Class) int64 {
	return l.lookup(proc).sites.inuse[class]
}

// DeviceOf returns the device of a context of proc, or event.NoDevice.
func (l *Ledger) DeviceOf(proc event.Process, ctx uint64) int32 {
	if p := l.lookup(proc); p.active {
		return p.contexts.all[p.contexts.at[ctx]].device
	}
	return event.NoDevice
}

// UseByDevice returns proc's holding on each device that an allocation call of it
// named, empty ones too, and on no known device if that is not empty. Its cost does
// not depend on the number of allocations or sites.
func (l *Ledger) UseByDevice(proc event.Process) iter.Seq[DeviceUse] {
	return func(yield func(DeviceUse) bool) {
		for i, h := range l.lookup(proc).sites.devices {
			if (uint32(i) != deviceUnknown || h.Bytes != 0) && !yield(h) {
				return
			}
		}
	}
}

// Sites yields every call site, by process and in order of appearance. What
// is yielded is the ledger's own: it is valid until the next Apply or Forget.
// The sum of a process's InuseBytes is its total in use, and of its PeakBytes
// of class device its Peak, unless Options.Peaked has other peaks.
func (l *Ledger) Sites(yield func(*Site) bool) {
	for p := range l.inOrder {
		if !p.sites.each(yield) {
			return
		}
	}
}

// SiteCount returns how many call sites Sites yields, or more.
func (l *Ledger) SiteCount() (n int) {
	for p := range l.inOrder {
		n += len(p.sites.all)
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
	for p := range l.inOrder {
		if !p.eachLive(yield) {
			return
		}
	}
}

// LiveOf yields those of one process.
func (l *Ledger) LiveOf(proc event.Process) iter.Seq[Allocation] {
	return func(yield func(Allocation) bool) { l.lookup(proc).eachLive(yield) }
}

// eachLive returns whether yield wanted all.
func (p *process) eachLive(yield func(Allocation) bool) bool {
	for x := range p.items {
		if !yield(p.allocation(&x)) {
			return false
		}
	}
	return true
}

// RowCount returns how many allocations Live yields.
func (l *Ledger) RowCount() int { return l.held[Rows] }
