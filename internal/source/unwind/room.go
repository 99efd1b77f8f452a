package unwind

import "sync"

// maxAtOnce bounds the unwind information that is read at a time, in bytes of files. An
// analysis needs about nine times the memory.
const maxAtOnce = 12 << 20

// A room bounds how much is read at a time. It also admits a reader of any size if it has no
// other, and one more reader beyond the limit. So the two largest files are read at the same
// time, and all others are read beside the largest one.
type room struct {
	limit int64

	mu     sync.Mutex
	freed  *sync.Cond
	used   int64
	excess bool // a reader is beyond the limit
}

func newRoom(limit int64) *room {
	r := &room{limit: limit}
	r.freed = sync.NewCond(&r.mu)
	return r
}

// enter waits until size bytes may be read, and returns what to call after that.
func (r *room) enter(size int64) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		switch {
		case size <= r.limit-r.used || r.used == 0:
			r.used += size
			return func() { r.free(func() { r.used -= size }) }
		case !r.excess:
			r.excess = true
			return func() { r.free(func() { r.excess = false }) }
		}
		r.freed.Wait()
	}
}

func (r *room) free(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	r.freed.Broadcast()
}
