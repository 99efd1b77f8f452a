package ledger

import (
	"maps"

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
	handle      uint64     // of a device's default pool, if it is known: key has 0
	destroyed   bool       // it goes with its last allocation, as CUDA documents
	kind        event.Kind // of its memory, KindNone where no call showed its place
	device      int32      // NoDevice for memory that is on none
}

// A poolTable has the memory pools of one process. Pool 0 stands for those beyond the
// limit.
type poolTable struct {
	slots[pool]
	at          map[poolKey]uint32
	current     map[int32]uint64 // by device: the pool that was set for its plain allocations
	inuse, high int64            // of all pools on GPUs
	loss        *loss.Set
}

func newPoolTable(lost *loss.Set) poolTable {
	return poolTable{slots: slots[pool]{all: make([]pool, 1)}, at: map[poolKey]uint32{}, current: map[int32]uint64{}, loss: lost}
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

// keyOf returns the key of the pool that e allocates from, on a device if e names none.
func (t *poolTable) keyOf(e *event.Event, device int32) poolKey {
	switch handle := t.current[device]; {
	case e.Handle != 0:
		return poolKey{handle: e.Handle}
	case handle != 0:
		return poolKey{handle: handle}
	}
	return poolKey{device: device}
}

// place returns e, an allocation from a pool, with the kind and the device of its pool, which need
// not be the calling thread's. It returns e itself if they are.
func (t *poolTable) place(e *event.Event) *event.Event {
	i, ok := t.named(e)
	q := &t.all[i]
	if !ok || e.Kind != event.KindAsync || q.kind == event.KindNone || q.kind == e.Kind && q.device == e.Device {
		return e
	}
	placed := *e
	placed.Kind, placed.Device, placed.Ctx = q.kind, q.device, 0 // the context is the thread's, perhaps on another device
	return &placed
}

// PlaceOf returns the kind and the device of e's memory: those of its pool, if it comes from one whose
// place is known.
func (l *Ledger) PlaceOf(e *event.Event) (kind event.Kind, device int32) {
	if p := l.procs[e.Proc]; p != nil {
		e = p.pools.place(e)
	}
	return e.Kind, e.Device
}

// add changes what pool i has in use of a kind.
func (t *poolTable) add(i uint32, kind event.Kind, objects int, bytes int64) {
	q := &t.all[i]
	q.live += objects
	if kind != event.KindAsync {
		t.removeUnused(i)
		return
	}
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

// removeUnused removes pool i if it is destroyed and has no allocations with a row. Those without
// one do not say which pool they are in. If such a pool gives out more memory all the same, which
// CUDA does not allow, that is taken for memory of the thread's device.
func (t *poolTable) removeUnused(i uint32) {
	q := &t.all[i]
	if !q.destroyed || q.live != 0 {
		return
	}
	t.setHigh(q, 0)
	delete(t.at, q.key)
	t.unset(q.key.handle)
	if q.handle != 0 {
		delete(t.at, poolKey{handle: q.handle})
		t.unset(q.handle)
	}
	t.release(i)
	*q = pool{}
}

func (t *poolTable) create(e *event.Event) {
	if e.Handle == 0 {
		return
	}
	key := poolKey{handle: e.Handle}
	if e.Part == event.PoolDefault && !e.Kind.Async() && t.at[key] == 0 {
		// Handle 0 names it, too.
		if i := t.index(poolKey{device: e.Device}); i != 0 && t.all[i].handle == 0 {
			t.at[key], t.all[i].handle = i, e.Handle
		}
	}
	i := t.index(key)
	if i == 0 {
		return
	}
	q := &t.all[i]
	if q.kind, q.device = e.Kind, e.Device; !q.kind.Async() {
		q.kind = event.KindAsync
	}
	if q.handle == e.Handle { // a device's default pool is always that
		q.kind, q.device = event.KindAsync, q.key.device
	}
	switch e.Part {
	case 0:
		q.destroyed = false
		t.setHigh(q, q.inuse)
	case event.PoolCurrent:
		if q.kind == event.KindAsync && (len(t.current) < maxPools || t.current[e.Device] != 0) {
			t.current[e.Device] = e.Handle
		}
	}
}

// unset gives the devices that a pool was set for their default pools again.
func (t *poolTable) unset(handle uint64) {
	maps.DeleteFunc(t.current, func(_ int32, h uint64) bool { return h == handle })
}

// destroy applies OpPoolDestroy. The pool's allocations live on, and a device that it was set for has
// its default pool again.
func (t *poolTable) destroy(e *event.Event) {
	i, ok := t.named(e)
	if ok && t.all[i].handle == e.Handle {
		return // CUDA does not destroy a default pool
	}
	t.unset(e.Handle)
	if ok {
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
	clear(t.current)
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
