package tensors

import (
	"iter"
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// An extent is an address range [from, to) of memory that the driver handed out.
type extent struct {
	from, to uint64
	used     uint64 // bytes of it that are in tensors
	handed   bool   // a tensor was in it
	device   int32  // the site's, or else that of the first tensor in it
	pool     *Pool
	private  PoolID
	tensors  map[uint64]struct{} // their addresses, made with the first one
}

// place finds the extents that t, at addr, lies in. If it cannot lie there, it returns
// the loss that this is.
func (p *process) place(t *tensor, addr uint64) (why int, ok bool) {
	end := addr + t.size
	add := func(in *extent, bytes uint64) {
		if t.first.bytes == 0 {
			t.first = part{in, bytes}
		} else {
			t.more = append(t.more, part{in, bytes})
		}
	}
	for x := range p.within(addr, end) {
		if x.from > addr {
			add(nil, x.from-addr)
			addr = x.from
		}
		bytes := min(end, x.to) - addr
		switch {
		case x.used+bytes > x.to-x.from:
			return lossOverlap, false
		case len(t.more) >= maxParts:
			return lossParts, false
		}
		add(x, bytes)
		addr += bytes
	}
	if addr < end {
		add(nil, end-addr)
	}
	return 0, true
}

// within yields the extents that share an address with [from, to), in order.
func (p *process) within(from, to uint64) iter.Seq[*extent] {
	return func(yield func(*extent) bool) {
		at, more := &extent{from: from}, true
		p.extents.DescendLessOrEqual(at, func(x *extent) bool {
			if x.from < from && x.to > from {
				more = yield(x)
			}
			return false
		})
		if more {
			p.extents.AscendRange(at, &extent{from: to}, yield)
		}
	}
}

func (l *Ledger) holdPart(p *process, addr uint64, x part, device int32, sign int64) {
	pool := p.outside[device]
	if x.in != nil {
		pool = x.in.pool
		x.in.hold(addr, sign*int64(x.bytes))
		l.hand(p, x.in)
		if x.in.device == event.NoDevice {
			x.in.device = device
		}
	}
	if l.Partial() {
		return
	}
	if pool == nil {
		pool = &Pool{Device: device, epoch: p.epoch}
		p.outside[device] = pool
	}
	p.settle(pool)
	pool.Inuse += sign * int64(x.bytes)
	l.pooled(pool)
}

// hold counts the bytes of the tensor at addr in, or out where they are negative.
func (x *extent) hold(addr uint64, bytes int64) {
	x.used += uint64(bytes)
	if x.tensors == nil {
		x.tensors = map[uint64]struct{}{}
	}
	if bytes > 0 {
		x.tensors[addr] = struct{}{}
	} else {
		delete(x.tensors, addr)
	}
}

// within says that tensors are or were in the extents that share an address with
// [from, to).
func (l *Ledger) within(p *process, from, to uint64) {
	for x := range p.within(from, to) {
		l.hand(p, x)
	}
}

// hand says that a tensor is or was in x.
func (l *Ledger) hand(p *process, x *extent) {
	if x.handed {
		return
	}
	x.handed, x.pool.handed = true, true
	x.pool.Site.Handed = true
	x.pool.Handed++
	if l.Partial() {
		p.settle(x.pool)
		x.pool.Inuse += x.bytes()
	}
	l.pooled(x.pool)
}

func (x *extent) bytes() int64 { return int64(x.to - x.from) }

// pooled tells the driver layer that other bytes of a pool are in tensors now, or that
// tensors were there.
func (l *Ledger) pooled(pool *Pool) {
	if l.driver != nil && pool.Site != nil {
		l.driver.Touch(pool.Site)
	}
}

// settle brings a pool's Peak up to the epoch, as ledger.Ledger.Mark does it.
func (p *process) settle(pool *Pool) {
	if pool.epoch != p.epoch {
		pool.Peak, pool.epoch = pool.Inuse, p.epoch
	}
}

// Began says that [from, to) is memory that the driver handed out at a call site. It
// is a ledger.Extents.
func (l *Ledger) Began(proc event.Process, from, to uint64, at *ledger.Site) {
	p := l.procs[proc]
	if p == nil && l.Layout {
		p = l.process(proc)
	}
	if p == nil || p.ended || from >= to {
		return
	}
	l.Ended(proc, from, to) // what is there ended without being seen
	pool := p.pool(at)
	pool.extents++
	x := &extent{from: from, to: to, device: at.Device, pool: pool, private: l.private(p, at)}
	p.extents.ReplaceOrInsert(x)
	l.lay(x.piece(proc))
}

// pool returns what is kept of a call site, made if need be.
func (p *process) pool(at *ledger.Site) *Pool {
	pool := p.pools[at]
	if pool == nil {
		if len(p.pools) >= p.tidyAt {
			maps.DeleteFunc(p.pools, func(_ *ledger.Site, old *Pool) bool { return old.extents == 0 })
			p.tidyAt = max(maxPools, 2*len(p.pools))
		}
		pool = &Pool{Site: at, Device: event.NoDevice, epoch: p.epoch}
		p.pools[at] = pool
	}
	return pool
}

// Moved says that the memory [from, to) counts at another call site now, with what of it
// is in tensors.
func (l *Ledger) Moved(proc event.Process, from, to uint64, at *ledger.Site) {
	p := l.procs[proc]
	if p == nil || p.ended {
		return
	}
	for x := range p.within(from, to) {
		if x.from != from || x.to != to {
			continue // of something else, which lies over it
		}
		old, pool := x.pool, p.pool(at)
		p.settle(old)
		p.settle(pool)
		bytes := int64(x.used)
		if l.Partial() {
			bytes = 0
			if x.handed {
				bytes = x.bytes()
			}
		}
		old.extents--
		pool.extents++
		old.Inuse -= bytes
		pool.Inuse += bytes
		if x.handed {
			old.Handed--
			pool.Handed++
			pool.handed, at.Handed = true, true
			l.pooled(old)
			l.pooled(pool)
		}
		x.pool = pool
		if old.extents == 0 && old.Peak == 0 {
			delete(p.pools, old.Site)
		}
	}
}

// Ended says that [from, to) is handed out no more.
func (l *Ledger) Ended(proc event.Process, from, to uint64) {
	p := l.procs[proc]
	if p == nil || p.ended {
		return
	}
	for _, x := range slices.Collect(p.within(from, to)) {
		p.extents.Delete(x)
		l.retire(proc, p, x)
		if x.pool.Handed > 0 {
			p.ends += int64(x.to - x.from)
		}
		p.settle(x.pool)
		l.lay(x.end(proc))
		x.pool.extents--
		if x.handed {
			x.pool.Handed--
			if l.Partial() {
				x.pool.Inuse -= x.bytes()
			}
			l.pooled(x.pool)
		}
		if x.pool.extents == 0 && x.pool.Peak == 0 {
			delete(p.pools, x.pool.Site)
		}
	}
}

// retire ends the tensors in an extent that ended: their frees were lost.
func (l *Ledger) retire(proc event.Process, p *process, x *extent) {
	// In order: the same events are followed by the same pieces.
	for _, addr := range slices.Sorted(maps.Keys(x.tensors)) {
		t := p.tensors[addr]
		l.end(p, addr, &t)
		l.loss.Add(lossSegment, 1)
		l.drop(proc, addr, t.time)
	}
}
