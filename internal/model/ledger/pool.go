package ledger

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

const maxPools = 4096

// A poolKey names a pool. CUDA has one default pool for each device, which
// allocations name by handle 0.
type poolKey struct {
	handle uint64
	device int32 // 0 unless handle is 0
}

// A pool is one memory pool. No call says what it reserves on the device. The most
// that was in use since it was last trimmed (high) is an upper bound, except for
// rounding: a pool grows only when it is full, and gives back only unused memory.
type pool struct {
	key         poolKey
	inuse, high int64
	live        int
	destroyed   bool // it goes with its last allocation, as CUDA documents
}

// A poolTable has the memory pools of one process. Pool 0 stands for those beyond the
// limit.
type poolTable struct {
	slots[pool]
	at          map[poolKey]uint32
	inuse, high int64 // of all pools
	loss        *loss.Set
}

func newPoolTable(lost *loss.Set) poolTable {
	return poolTable{slots: slots[pool]{all: make([]pool, 1)}, at: map[poolKey]uint32{}, loss: lost}
}

// index returns the index of a pool, which is 0 when there are too many.
func (t *poolTable) index(key poolKey) uint32 {
	if i, ok := t.at[key]; ok {
		return i
	}
	i, ok := t.put(1+maxPools, pool{key: key})
	if !ok {
		t.loss.Add(lossPools, 1)
		return 0
	}
	t.at[key] = i
	return i
}

// named returns the index of the pool that an event's handle names.
func (t *poolTable) named(e *event.Event) (i uint32, ok bool) {
	i, ok = t.at[poolKey{handle: e.Handle}]
	return i, ok && e.Handle != 0
}

// add changes what pool i has in use.
func (t *poolTable) add(i uint32, objects int, bytes int64) {
	q := &t.all[i]
	q.live += objects
	q.inuse += bytes
	t.inuse += bytes
	if q.inuse > q.high || q.destroyed {
		t.setHigh(q, q.inuse)
	}
	t.removeUnused(i)
}

func (t *poolTable) setHigh(q *pool, high int64) {
	t.high += high - q.high
	q.high = high
}

// removeUnused removes pool i if it is destroyed and has no allocations.
func (t *poolTable) removeUnused(i uint32) {
	q := &t.all[i]
	if !q.destroyed || q.live != 0 {
		return
	}
	t.setHigh(q, 0)
	delete(t.at, q.key)
	t.release(i)
	q.destroyed = false
}

func (t *poolTable) create(e *event.Event) {
	if e.Handle == 0 {
		return
	}
	if i := t.index(poolKey{handle: e.Handle}); i != 0 {
		t.all[i].destroyed = false
		t.setHigh(&t.all[i], t.all[i].inuse)
	}
}

// destroy applies OpPoolDestroy. The pool's allocations live on.
func (t *poolTable) destroy(e *event.Event) {
	if i, ok := t.named(e); ok {
		t.all[i].destroyed = true
		t.setHigh(&t.all[i], t.all[i].inuse)
		t.removeUnused(i)
	}
}

// trim applies OpPoolTrim. A default pool has a handle here, which no allocation shows:
// an unknown handle is taken for the default pool if only one is in use.
func (t *poolTable) trim(e *event.Event) {
	i, ok := t.named(e)
	if !ok {
		i = 0
		for key, j := range t.at {
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
	if q := &t.all[i]; uint64(q.high) > e.Size {
		t.setHigh(q, max(q.inuse, int64(e.Size)))
	}
}

// reset removes the pools that no allocation uses any more.
func (t *poolTable) reset() {
	for _, i := range t.at {
		q := &t.all[i]
		t.setHigh(q, q.inuse)
		if q.live == 0 {
			q.destroyed = true
			t.removeUnused(i)
		}
	}
	t.setHigh(&t.all[0], t.all[0].inuse)
}
