package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

const maxPools = 4096

// A poolKey names a pool. CUDA has one default pool for each device, which
// allocations name by handle 0.
type poolKey struct {
	handle uint64
	device int32 // 0 unless handle is 0
}

// A pool is one memory pool. No call tells what it reserves on the device. The most
// that was in use since it was last trimmed (high) is an upper bound, except for
// rounding: a pool grows only when it is full, and gives back only unused memory.
type pool struct {
	key         poolKey
	inuse, high int64
	live        int
	destroyed   bool // it goes with its last allocation, as CUDA documents
}

// poolOf returns the index of the pool key, which is 0 when there are too
// many.
func (l *Ledger) poolOf(p *process, key poolKey) uint32 {
	if i, ok := p.poolAt[key]; ok {
		return i
	}
	i, ok := put(&p.pools, &p.freePool, 1+maxPools, pool{key: key})
	if !ok {
		l.loss.Add(lossPools, 1)
		return 0
	}
	p.poolAt[key] = i
	return i
}

// poolHold changes what pool i has in use.
func (p *process) poolHold(i uint32, objects int, bytes int64) {
	q := &p.pools[i]
	q.live += objects
	q.inuse += bytes
	p.sums.AsyncInuse += bytes
	if q.inuse > q.high || q.destroyed {
		p.setHigh(q, q.inuse)
	}
	if q.destroyed && q.live == 0 {
		p.removePool(i)
	}
}

func (p *process) setHigh(q *pool, high int64) {
	p.sums.AsyncHigh += high - q.high
	q.high = high
}

func (p *process) removePool(i uint32) {
	q := &p.pools[i]
	p.setHigh(q, 0)
	delete(p.poolAt, q.key)
	p.freePool = append(p.freePool, i)
	q.destroyed = false
}

func (l *Ledger) poolCreate(p *process, e *event.Event) {
	if e.Handle == 0 {
		return
	}
	if i := l.poolOf(p, poolKey{handle: e.Handle}); i != 0 {
		p.pools[i].destroyed = false
		p.setHigh(&p.pools[i], p.pools[i].inuse)
	}
}

// poolDestroy applies OpPoolDestroy. Its allocations live on.
func (*Ledger) poolDestroy(p *process, e *event.Event) {
	i, ok := p.poolAt[poolKey{handle: e.Handle}]
	if !ok || e.Handle == 0 {
		return
	}
	q := &p.pools[i]
	q.destroyed = true
	p.setHigh(q, q.inuse)
	if q.live == 0 {
		p.removePool(i)
	}
}

// poolTrim applies OpPoolTrim. A default pool has a handle here, which no
// allocation shows: an unknown handle is the default pool where only one is
// in use.
func (*Ledger) poolTrim(p *process, e *event.Event) {
	i, ok := p.poolAt[poolKey{handle: e.Handle}]
	if !ok || e.Handle == 0 {
		i = 0
		for key, j := range p.poolAt {
			if key.handle == 0 {
				if i != 0 {
					return
				}
				i = j
			}
		}
		if i == 0 {
			return
		}
	}
	q := &p.pools[i]
	if uint64(q.high) > e.Size {
		p.setHigh(q, max(q.inuse, int64(e.Size)))
	}
}

// resetPools forgets p's pools, but for what newer allocations use.
func (p *process) resetPools() {
	for _, i := range p.poolAt {
		q := &p.pools[i]
		p.setHigh(q, q.inuse)
		if q.live == 0 {
			p.removePool(i)
		}
	}
	p.setHigh(&p.pools[0], p.pools[0].inuse)
}
