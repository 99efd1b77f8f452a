package push

import (
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

func batchOf(n int, body string) *batch { return &batch{profiles: n, body: []byte(body)} }

func first(q *queue) *batch {
	b, _ := q.first()
	return b
}

// The oldest batches go first when there is no room, except the one that is being sent,
// and each profile counts.
func TestQueueFull(t *testing.T) {
	set := loss.New(causes)
	q := newQueue(15, set)
	q.put(batchOf(5, "body0"))
	q.put(batchOf(1, "body1"))
	q.put(batchOf(1, "body2"))
	q.put(batchOf(1, "body3")) // drops 0
	if b := first(q); string(b.body) != "body1" {
		t.Fatalf("%q is first", b.body)
	}
	q.put(batchOf(1, "body4")) // drops 2
	q.put(batchOf(7, strings.Repeat("x", 16)))
	q.put(batchOf(2, strings.Repeat("x", 11))) // drops 3 and 4, which is not enough
	q.done()
	if b := first(q); b != nil {
		t.Fatalf("%q is left", b.body)
	}
	if n := lossOf(t, set.Counters(), "push_queue_full"); n != 5+1+7+1+1+2 {
		t.Errorf("%d dropped", n)
	}
	if q.size != 0 {
		t.Errorf("%d bytes wait", q.size)
	}
}

// The number of small batches is bounded.
func TestQueueOfSmallBatches(t *testing.T) {
	set := loss.New(causes)
	q := newQueue(1<<30, set)
	for range maxBatches + 3 {
		q.put(batchOf(1, ""))
	}
	if len(q.batches) != maxBatches {
		t.Errorf("%d wait", len(q.batches))
	}
	if n := lossOf(t, set.Counters(), "push_queue_full"); n != 3 {
		t.Errorf("%d dropped", n)
	}
}

// Profiles that wait when the process ends are counted.
func TestQueueUnsent(t *testing.T) {
	set := loss.New(causes)
	q := newQueue(1<<20, set)
	q.put(batchOf(3, "one"))
	q.put(batchOf(4, "two"))
	if b := first(q); b == nil || string(b.body) != "one" {
		t.Fatalf("%+v", b)
	}
	q.done()
	q.close()
	if n := lossOf(t, set.Counters(), "push_unsent"); n != 4 {
		t.Errorf("%d unsent", n)
	}
}
