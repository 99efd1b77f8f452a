package tensors

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Where not every tensor is told, nobody knows what of a segment is in tensors. Then a
// segment in which one was seen is all handed out to its allocator (Pool), and what the
// allocator says of its device as a whole splits it (Allocator).

// An Allocator is what is known of a caching allocator on one device where not every
// tensor is told.
type Allocator struct {
	Index     int32 // CUDA ordinal inside the process
	Now, Peak Moment
	// Made and Freed are all tensors since the trace began, but for the Small ones.
	Made, Freed, SmallMade, SmallFreed record.Tally
	// What was made at the last Reported.
	ReportedMade, ReportedSmall record.Tally
	// Older: it had handed out memory when the trace began.
	Older bool

	epoch uint64
	time  uint64 // of Now's totals
	told  bool   // by the kernel

	reserved uint64 // what it said last to hold
}

// A Moment is what an allocator has at one moment, in bytes.
type Moment struct {
	Allocated int64 // handed out
	Outside   int64 // held in memory that was not seen allocated
	Small     int64 // in tensors that are too small to be told, made since the trace began
}

// Partial tells whether there may be tensors that are not told.
func (l *Ledger) Partial() bool { return l.sample != 0 || l.min != 0 }

// Telling returns which tensors are told, as in record.Tensors.
func (l *Ledger) Telling() (sample, least uint64) { return l.sample, l.min }

// Tell takes a record. Which tensors are told does not change after the first one.
func (l *Ledger) Tell(r *record.Tensors) {
	if !l.seen {
		l.sample, l.min = min(r.Sample, maxSample), r.Min
	}
	if !l.Partial() {
		return
	}
	for i := range r.Allocators {
		x := &r.Allocators[i]
		if p := l.process(x.Process); p != nil && !p.ended && r.Time+1 >= l.Rows.Since(x.Process) {
			l.seen = true
			p.tell(x, r.Time)
		}
	}
}

func (p *process) tell(x *record.Allocator, t uint64) {
	a := p.allocator(x.Device)
	a.Made, a.Freed, a.SmallMade, a.SmallFreed = x.Made, x.Freed, x.SmallMade, x.SmallFreed
	a.Now.Small = max(difference(x.SmallMade, x.SmallFreed).bytes, 0)
	net := difference(x.Made, x.Freed).bytes + difference(x.SmallMade, x.SmallFreed).bytes
	allocated, reserved := x.Allocated, x.Reserved
	if allocated == event.NoTotal {
		allocated = uint64(max(net, 0))
	}
	if !a.told {
		a.Older, a.told = int64(allocated) > net, true
	}
	if t >= a.time {
		a.total(t, allocated)
		p.outsideOf(a, reserved)
	}
}

// outsideOf takes what an allocator holds: what is not in pools is elsewhere. Each
// change of it comes with an event. What is said again may be old: giving memory back
// is told of by CUDA's calls alone.
func (p *process) outsideOf(a *Allocator, reserved uint64) {
	if reserved == event.NoTotal || reserved == a.reserved {
		return
	}
	a.reserved = reserved
	a.Now.Outside = max(int64(reserved)-p.pooled(a), 0)
}

// pooled returns the bytes in pools of a.
func (p *process) pooled(a *Allocator) (sum int64) {
	for _, pool := range p.pools {
		if d := pool.Site.Device; d == a.Index || d == event.NoDevice && len(p.allocators) == 1 {
			sum += pool.Inuse
		}
	}
	return sum
}

type net struct{ count, bytes int64 }

// difference returns what of made was not freed.
func difference(made, freed record.Tally) net {
	return net{int64(made.Count - freed.Count), int64(made.Bytes - freed.Bytes)}
}

// Live returns how many tensors there are that were made since the trace began, less
// those from before that were freed, and of them the small ones.
func (a *Allocator) Live() (all, small int64) {
	small = difference(a.SmallMade, a.SmallFreed).count
	return difference(a.Made, a.Freed).count + small, small
}

// total takes what an allocator said at time t to have handed out.
func (a *Allocator) total(t, allocated uint64) {
	if t >= a.time {
		a.time, a.Now.Allocated = t, int64(allocated)
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
	p.settleAllocator(a)
	return a
}

// settleAllocator brings a's Peak up to the epoch.
func (p *process) settleAllocator(a *Allocator) {
	if a.epoch != p.epoch {
		a.Peak, a.epoch = a.Now, p.epoch
	}
}

// Allocators yields those of each process, where not every tensor is told.
func (l *Ledger) Allocators(yield func(event.Process, *Allocator) bool) {
	for id, p := range l.procs {
		for _, a := range p.allocators {
			p.settleAllocator(a)
			if !yield(id, a) {
				return
			}
		}
	}
}

// Reported keeps what was made so far, beside what is made.
func (l *Ledger) Reported() {
	l.Rows.Reported()
	for _, p := range l.procs {
		for _, a := range p.allocators {
			a.ReportedMade, a.ReportedSmall = a.Made, a.SmallMade
		}
	}
}

// Handed returns what the allocators of a process have handed out, in bytes, as far as
// that is known: where every tensor is told, what was seen made.
func (l *Ledger) Handed(proc event.Process) (sum int64) {
	if !l.Partial() {
		return l.Bytes(proc)
	}
	if p := l.procs[proc]; p != nil {
		for _, a := range p.allocators {
			sum += a.Now.Allocated
		}
	}
	return sum
}

// Told returns what Tell was told of the allocators of living processes, for a keyframe.
func (l *Ledger) Told() *record.Tensors {
	out := &record.Tensors{Sample: l.sample, Min: l.min}
	for id, p := range l.procs {
		if p.ended {
			continue
		}
		out.Time = max(out.Time, l.Rows.Since(id))
		for _, a := range p.allocators {
			out.Time = max(out.Time, a.time)
			out.Allocators = append(out.Allocators, record.Allocator{
				Process: id, Device: a.Index, Allocated: uint64(a.Now.Allocated), Reserved: uint64(a.Now.Outside + p.pooled(a)),
				Made: a.Made, Freed: a.Freed, SmallMade: a.SmallMade, SmallFreed: a.SmallFreed,
			})
		}
	}
	return out
}
