package tensors

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Older versions could record a sample of the tensors. Where not every tensor is reported, it
// is not known how much of a segment is in tensors. Then a segment in which a tensor was seen counts as handed out to its allocator (Pool),
// and what the allocator reports of its device as a whole splits it (Allocator).

// An Allocator is what is known of a caching allocator on one device where not every
// tensor is reported.
type Allocator struct {
	Index     int32 // CUDA ordinal inside the process
	Now, Peak Moment
	// Made and Freed are all tensors since the trace began.
	Made, Freed record.Tally
	// What was made at the last Reported.
	ReportedMade record.Tally
	// Older: it had handed out memory when the trace began.
	Older bool

	epoch uint64
	time  uint64 // of Now's totals
	known bool   // the kernel side has reported it

	reserved uint64 // what it reported last to hold
	reports  uint64 // how many Reported there were, as far as ReportedMade is updated
}

// updateReported makes ReportedMade current.
func (l *Ledger) updateReported(a *Allocator) {
	if a.reports != l.reports {
		a.reports, a.ReportedMade = l.reports, a.Made
	}
}

// A Moment is what an allocator has at one moment, in bytes.
type Moment struct {
	Allocated int64 // handed out
	Outside   int64 // held in memory that was not seen allocated
}

// Partial returns whether there may be tensors that are not reported.
func (l *Ledger) Partial() bool { return l.sample != 0 }

// Sample returns which tensors are reported, as in record.Tensors.
func (l *Ledger) Sample() uint64 { return l.sample }

// ApplyRecord applies a record. Which tensors are reported does not change after the first one.
func (l *Ledger) ApplyRecord(r *record.Tensors) {
	if !l.seen {
		l.sample = min(r.Sample, maxSample)
	}
	if !l.Partial() {
		return
	}
	for i := range r.Allocators {
		x := &r.Allocators[i]
		if p := l.process(x.Process); p != nil && !p.ended && r.Time+1 >= l.Rows.ImageStart(x.Process) {
			l.seen = true
			p.applyAllocatorRecord(x, r.Time)
		}
	}
}

func (p *process) applyAllocatorRecord(x *record.Allocator, at uint64) {
	a := p.allocator(x.Device)
	p.l.updateReported(a)
	a.Made, a.Freed = x.Made, x.Freed
	net := int64(x.Made.Bytes - x.Freed.Bytes)
	allocated, reserved := x.Allocated, x.Reserved
	if allocated == event.NoTotal {
		allocated = uint64(max(net, 0))
	}
	if !a.known {
		a.Older, a.known = int64(allocated) > net, true
	}
	if at >= a.time {
		a.setAllocated(at, allocated)
		p.setReserved(a, reserved)
	}
}

// setReserved sets what an allocator holds: what is not in pools is elsewhere. Each
// change of it comes with an event. A value that is repeated may be old: only CUDA's
// calls show that memory is given back.
func (p *process) setReserved(a *Allocator, reserved uint64) {
	if reserved == event.NoTotal || reserved == a.reserved {
		return
	}
	a.reserved = reserved
	a.Now.Outside = max(int64(reserved)-p.pooled(a), 0)
}

// pooled returns the bytes in pools of a.
func (p *process) pooled(a *Allocator) (sum int64) {
	for _, pool := range p.memory.pools {
		if d := pool.Site.Device; d == a.Index || d == event.NoDevice && len(p.allocators) == 1 {
			sum += pool.Inuse
		}
	}
	return sum
}

// Live returns how many tensors there are that were made since the trace began, less
// those from before that were freed.
func (a *Allocator) Live() int64 { return int64(a.Made.Count - a.Freed.Count) }

// setAllocated sets what an allocator reported at a time to have handed out.
func (a *Allocator) setAllocated(at, allocated uint64) {
	if at >= a.time {
		a.time, a.Now.Allocated = at, int64(allocated)
	}
}

// allocator returns the one of a device, which is about to change.
func (p *process) allocator(device int32) *Allocator {
	a := p.allocators[device]
	if a == nil {
		p.device(device)
		a = &Allocator{Index: device, epoch: p.epoch}
		p.allocators[device] = a
	}
	p.updateAllocatorPeak(a)
	return a
}

// updateAllocatorPeak brings a's Peak up to the epoch.
func (p *process) updateAllocatorPeak(a *Allocator) {
	if a.epoch != p.epoch {
		a.Peak, a.epoch = a.Now, p.epoch
	}
}

// Allocators yields those of each process, where not every tensor is reported.
func (l *Ledger) Allocators(yield func(event.Process, *Allocator) bool) {
	for id, p := range l.procs {
		for _, a := range p.allocators {
			p.updateAllocatorPeak(a)
			l.updateReported(a)
			if !yield(id, a) {
				return
			}
		}
	}
}

// MarkReported records what was made so far, beside what is made.
func (l *Ledger) MarkReported() {
	l.Rows.MarkReported()
	l.reports++
}

// HandedOut returns what the allocators of a process have handed out, in bytes, as far as
// that is known: where every tensor is reported, what was seen made.
func (l *Ledger) HandedOut(proc event.Process) (sum int64) {
	if !l.Partial() {
		return l.Bytes(proc)
	}
	for _, a := range l.lookup(proc).allocators {
		sum += a.Now.Allocated
	}
	return sum
}
