package push

import (
	"context"
	"sync"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// A batch is one request, with the number of profiles in it.
type batch struct {
	profiles int
	body     []byte
}

// A queue holds the requests for one target in memory, the oldest first. Several
// goroutines may call put, and one may call take and done.
type queue struct {
	mu      sync.Mutex
	max     int64 // bytes
	size    int64 // bytes
	batches []*batch
	sending *batch // the batch that take returned last, nil after done
	ended   bool
	changed chan struct{} // holds a value after a put or an end
	loss    *loss.Set
}

// maxBatches bounds how many small requests wait.
const maxBatches = 1 << 14

func newQueue(maxBytes int64, set *loss.Set) *queue {
	return &queue{max: maxBytes, loss: set, changed: make(chan struct{}, 1)}
}

// put appends a batch. It drops the oldest batches to make room, except the one that is
// being sent, and drops b if that is not enough.
func (q *queue) put(b *batch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	size := int64(len(b.body))
	for size <= q.max && (q.size+size > q.max || len(q.batches) >= maxBatches) {
		oldest := 0
		if len(q.batches) > 0 && q.batches[0] == q.sending {
			oldest = 1
		}
		if oldest == len(q.batches) {
			break
		}
		q.loss.Add(lossFull, uint64(q.batches[oldest].profiles))
		q.remove(oldest)
	}
	if q.size+size > q.max {
		q.loss.Add(lossFull, uint64(b.profiles))
		return
	}
	q.batches = append(q.batches, b)
	q.size += size
	q.wake()
}

func (q *queue) remove(i int) {
	q.size -= int64(len(q.batches[i].body))
	q.batches = append(q.batches[:i:i], q.batches[i+1:]...)
}

func (q *queue) wake() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// take waits for a batch and returns the oldest one, which stays in the queue until done.
// It returns nil when ctx ends, and when the queue has ended and is empty.
func (q *queue) take(ctx context.Context) *batch {
	for ctx.Err() == nil {
		b, ended := q.first()
		if b != nil || ended {
			return b
		}
		select {
		case <-ctx.Done():
		case <-q.changed:
		}
	}
	return nil
}

func (q *queue) first() (b *batch, ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.batches) == 0 {
		return nil, q.ended
	}
	q.sending = q.batches[0]
	return q.sending, false
}

// done removes the batch that take returned.
func (q *queue) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.sending != nil {
		q.remove(0) // put never removes the batch that is being sent
		q.sending = nil
	}
}

// end makes take return nil once the queue is empty.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.wake()
}

// close counts the profiles that were not sent.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, b := range q.batches {
		q.loss.Add(lossUnsent, uint64(b.profiles))
	}
}
