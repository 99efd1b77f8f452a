package record

import (
	"slices"
	"sync"
)

// A queue passes full blocks to the goroutine that writes them. Putting a block in never
// waits.
type queue struct {
	mu     sync.Mutex
	filled sync.Cond
	blocks []*block
	busy   bool // the last block that next returned is being written
	free   []*block
	closed bool
	depth  int // blocks that may wait
	size   int // bytes of a block's payload
}

func newQueue(depth, size int) *queue {
	q := &queue{depth: depth, size: size}
	q.filled.L = &q.mu
	return q
}

// empty returns a block to fill.
func (q *queue) empty() *block {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.free); n > 0 {
		b := q.free[n-1]
		q.free = q.free[:n-1]
		*b = block{buf: b.buf[:0]}
		return b
	}
	return &block{buf: make([]byte, 0, q.size)}
}

// put hands over a block, unless as many as may are waiting and must is false.
func (q *queue) put(b *block, must bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.blocks) >= q.depth && !must {
		return false
	}
	q.blocks = append(q.blocks, b)
	q.filled.Signal()
	return true
}

// full reports whether put would refuse a block.
func (q *queue) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.blocks) >= q.depth
}

// next waits for a block; the one before has been written. It returns nil when the queue
// is closed and empty.
func (q *queue) next() *block {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.busy = false
	for len(q.blocks) == 0 && !q.closed {
		q.filled.Wait()
	}
	if len(q.blocks) == 0 {
		return nil
	}
	b := q.blocks[0]
	q.blocks = slices.Delete(q.blocks, 0, 1)
	q.busy = true
	return b
}

// release gives a block back for its buf, if it still has one.
func (q *queue) release(b *block) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if b.buf != nil && len(q.free) < q.depth {
		q.free = append(q.free, b)
	}
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Signal()
}

// unwritten returns how many blocks wait or are being written.
func (q *queue) unwritten() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy {
		return len(q.blocks) + 1
	}
	return len(q.blocks)
}
