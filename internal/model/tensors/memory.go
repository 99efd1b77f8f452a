package tensors

import (
	"iter"
	"maps"
	"slices"

	"github.com/google/btree"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
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
	private  holder.PoolID
	tensors  map[uint64]struct{} // their addresses, made with the first one
}

func (x *extent) bytes() int64 { return int64(x.to - x.from) }

// A Pool is the memory of one call site of the driver layer from which tensors
// were handed out.
type Pool struct {
	// Site is nil for memory that was not seen allocated, on Device.
	Site   *ledger.Site
	Device int32
	// Inuse are bytes in tensors, and Peak what they were at the process's peak. Where
	// not every tensor is reported they are all of the extents that a tensor was in.
	Inuse, Peak   int64
	HandedExtents int // extents of it that a tensor was in

	handed  bool // HandedExtents was once not 0
	epoch   uint64
	extents int
}

// A memory is what the driver handed out to one process by address, and how much of it
// is in tensors.
type memory struct {
	p        *process
	extents  *btree.BTreeG[*extent] // by address, never overlapping
	pools    map[*ledger.Site]*Pool
	sweepAt  int             // how many pools there are when those without extents are dropped
	outside  map[int32]*Pool // tensors in memory that was not seen allocated, by device
	returned int64           // see Ledger.Returned
}

func newMemory(p *process) memory {
	return memory{p: p, extents: btree.NewG(16, func(a, b *extent) bool { return a.from < b.from }),
		pools: map[*ledger.Site]*Pool{}, outside: map[int32]*Pool{}, sweepAt: maxPools}
}

// split sets the parts of t, which is at addr: the extents that it lies in. If it cannot
// lie there, it returns the loss that this is.
func (m *memory) split(t *tensor, addr uint64) (why int, ok bool) {
	end := addr + t.size
	add := func(in *extent, bytes uint64) {
		if t.first.bytes == 0 {
			t.first = part{in, bytes}
		} else {
			t.more = append(t.more, part{in, bytes})
		}
	}
	for x := range m.within(addr, end) {
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
func (m *memory) within(from, to uint64) iter.Seq[*extent] {
	return func(yield func(*extent) bool) {
		at, more := &extent{from: from}, true
		m.extents.DescendLessOrEqual(at, func(x *extent) bool {
			if x.from < from && x.to > from {
				more = yield(x)
			}
			return false
		})
		if more {
			m.extents.AscendRange(at, &extent{from: to}, yield)
		}
	}
}

// add counts a part of the tensor at addr, or with sign -1 its end.
func (m *memory) add(addr uint64, x part, device int32, sign int64) {
	pool := m.outside[device]
	if x.in != nil {
		pool = x.in.pool
		x.in.add(addr, sign*int64(x.bytes))
		m.markHanded(x.in)
		if x.in.device == event.NoDevice {
			x.in.device = device
		}
	}
	if pool == nil {
		pool = &Pool{Device: device, epoch: m.p.epoch}
		m.outside[device] = pool
	}
	m.updatePeak(pool)
	pool.Inuse += sign * int64(x.bytes)
	m.reportPool(pool)
}

// add counts bytes of the tensor at addr, or takes them out if they are negative.
func (x *extent) add(addr uint64, bytes int64) {
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

// markHandedWithin marks the extents that share an address with [from, to).
func (m *memory) markHandedWithin(from, to uint64) {
	for x := range m.within(from, to) {
		m.markHanded(x)
	}
}

// markHanded records that a tensor is or was in x.
func (m *memory) markHanded(x *extent) {
	if x.handed {
		return
	}
	x.handed = true
	x.pool.countHanded()
	m.reportPool(x.pool)
}

// countHanded counts an extent that a tensor was in.
func (pool *Pool) countHanded() {
	pool.HandedExtents++
	pool.handed, pool.Site.HasTensors = true, true
}

// reportPool reports to whoever hears of the driver layer that tensors changed how much of a
// pool they use.
func (m *memory) reportPool(pool *Pool) {
	if driver := m.p.l.driver; driver != nil && pool.Site != nil {
		driver.SiteChanged(pool.Site)
	}
}

// updatePeak brings a pool's Peak up to the epoch, as ledger.Ledger.MarkPeak does it.
func (m *memory) updatePeak(pool *Pool) {
	if pool.epoch != m.p.epoch {
		pool.Peak, pool.epoch = pool.Inuse, m.p.epoch
	}
}

// each yields the pools that tensors were handed out of, with up-to-date peaks, and
// returns whether yield wanted all.
func (m *memory) each(yield func(event.Process, Pool) bool) bool {
	for _, pool := range m.pools {
		m.updatePeak(pool)
		if (pool.HandedExtents > 0 || pool.Peak != 0) && !yield(m.p.id, *pool) {
			return false
		}
	}
	for _, pool := range m.outside {
		m.updatePeak(pool)
		if !yield(m.p.id, *pool) {
			return false
		}
	}
	return true
}

// begin adds an extent that began by an event, nil for one that is not known.
func (m *memory) begin(x *ledger.Extent, e *event.Event) {
	m.end(x.From, x.To) // what is there ended without being seen
	m.insert(&extent{from: x.From, to: x.To, device: x.Site.Device, private: m.p.privatePool(x.Site, e)}, x.Site)
}

func (m *memory) insert(x *extent, at *ledger.Site) {
	x.pool = m.pool(at)
	x.pool.extents++
	m.extents.ReplaceOrInsert(x)
	m.p.l.pieces.Add(x.piece(m.p.id))
}

// pool returns the pool of a call site, made if need be.
func (m *memory) pool(at *ledger.Site) *Pool {
	pool := m.pools[at]
	if pool == nil {
		if len(m.pools) >= m.sweepAt {
			maps.DeleteFunc(m.pools, func(_ *ledger.Site, old *Pool) bool { return old.extents == 0 })
			m.sweepAt = max(maxPools, 2*len(m.pools))
		}
		pool = &Pool{Site: at, Device: event.NoDevice, epoch: m.p.epoch}
		m.pools[at] = pool
	}
	return pool
}

// removeExtent takes x out of its pool, and that out of m if nothing is left of it.
func (m *memory) removeExtent(x *extent) {
	pool := x.pool
	pool.extents--
	if x.handed {
		pool.HandedExtents--
		m.reportPool(pool)
	}
	if pool.extents == 0 && pool.Peak == 0 {
		delete(m.pools, pool.Site)
	}
}

// end ends the extents that share an address with [from, to), and the tensors in them:
// their frees were lost.
func (m *memory) end(from, to uint64) {
	for _, x := range slices.Collect(m.within(from, to)) {
		m.extents.Delete(x)
		// In order: the same events are followed by the same pieces.
		for _, addr := range slices.Sorted(maps.Keys(x.tensors)) {
			t := m.p.tensors[addr]
			m.p.end(addr, &t)
			m.p.l.loss.Add(lossSegment, 1)
			m.p.l.dropRow(m.p.id, addr, t.time)
		}
		if x.pool.HandedExtents > 0 {
			m.returned += x.bytes()
		}
		m.updatePeak(x.pool)
		m.p.l.pieces.Add(x.end(m.p.id))
		m.removeExtent(x)
	}
}
