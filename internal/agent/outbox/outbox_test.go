package outbox

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// The causes of loss of a test.
var (
	causes loss.Causes
	losses = Losses{causes.Add("full", ""), causes.Add("refused", ""), causes.Add("gave_up", ""), causes.Add("unsent", ""), causes.Add("again", "")}
)

// bounded returns an Outbox for a target that takes nothing before its context ends.
func bounded(bytes int64, messages int) *Outbox {
	return New(Options{
		Send: func(ctx context.Context, _ []byte) Verdict { <-ctx.Done(); return Verdict{Outcome: Busy} },
		Idle: func() {}, Wait: Sleep, Warn: func(string) {}, MaxBytes: bytes, MaxMessages: messages, Loss: loss.New(causes), Losses: losses,
	})
}

func (q *Outbox) lost(i int) uint64 { return q.Loss.Counters()[i].Value }

func messageOf(n int, body string) *Message { return &Message{n, []byte(body)} }

func first(q *Outbox) *Message {
	m, _ := q.first()
	return m
}

// The oldest messages go first when there is no room, except the one that is being sent,
// and each part counts.
func TestFull(t *testing.T) {
	q := bounded(15, 1<<14)
	q.Put(messageOf(5, "body0"))
	q.Put(messageOf(1, "body1"))
	q.Put(messageOf(1, "body2"))
	q.Put(messageOf(1, "body3")) // drops 0
	if m := first(q); string(m.Body) != "body1" {
		t.Fatalf("%q is first", m.Body)
	}
	q.Put(messageOf(1, "body4")) // drops 2
	q.Put(messageOf(7, strings.Repeat("x", 16)))
	q.Put(messageOf(2, strings.Repeat("x", 11))) // drops 3 and 4, which is not enough
	q.done()
	if m := first(q); m != nil {
		t.Fatalf("%q is left", m.Body)
	}
	if n := q.lost(losses.Full); n != 5+1+7+1+1+2 {
		t.Errorf("%d dropped", n)
	}
	if q.size != 0 {
		t.Errorf("%d bytes wait", q.size)
	}
}

// The number of small messages is bounded.
func TestSmallMessages(t *testing.T) {
	q := bounded(1<<30, 5)
	for range 8 {
		q.Put(messageOf(1, ""))
	}
	if len(q.messages) != 5 {
		t.Errorf("%d wait", len(q.messages))
	}
	if n := q.lost(losses.Full); n != 3 {
		t.Errorf("%d dropped", n)
	}
}

// What was not sent when Run ends is counted, with what was being sent.
func TestUnsent(t *testing.T) {
	q := bounded(1<<20, 5)
	q.Put(messageOf(3, "one"))
	q.Put(messageOf(4, "two"))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	q.RunUntil(ctx, 0)
	if n := q.lost(losses.Unsent); n != 7 || q.lost(losses.Again) != 0 {
		t.Errorf("%d unsent", n)
	}
}

// However often a target failed, and whatever it wants, the wait is neither nothing nor endless.
func TestBackoff(t *testing.T) {
	for _, try := range []int{0, 1, 9, 10, 1 << 40} {
		for _, after := range []time.Duration{0, 1, time.Minute, math.MaxInt64} {
			if d := backoff(try, after); d < firstWait/2 || d < min(after, maxAfter) || d > max(longest, maxAfter) {
				t.Errorf("%v after try %d, as wanted %v", d, try, after)
			}
		}
	}
}

// What failed once, and waits for the next try, is tried again when the time has come to end.
func TestLastTry(t *testing.T) {
	q := bounded(1<<20, 5)
	ctx, stop := context.WithCancel(t.Context())
	tries := 0
	q.Send = func(context.Context, []byte) Verdict {
		if tries++; tries > 1 {
			return Verdict{}
		}
		return Verdict{Outcome: Busy, After: time.Hour}
	}
	q.Wait = func(ctx context.Context, d time.Duration) {
		stop()
		Sleep(ctx, d)
	}
	q.Put(messageOf(1, "late"))
	if q.RunUntil(ctx, time.Hour); tries != 2 || q.lost(losses.Unsent) != 0 || q.lost(losses.Again) != 1 {
		t.Errorf("%d tries, %+v", tries, q.Loss.Counters())
	}
}

// A target that stays busy while the time comes to end is given a pause between tries.
func TestLastTriesPause(t *testing.T) {
	q := bounded(1<<20, 5)
	ctx, stop := context.WithCancel(t.Context())
	tries, pauses := 0, 0
	q.Send = func(context.Context, []byte) Verdict {
		if tries++; tries > 4 {
			return Verdict{}
		}
		return Verdict{Outcome: Busy}
	}
	q.Wait = func(waits context.Context, d time.Duration) {
		stop()
		if waits.Err() == nil && 0 < d && d <= firstWait {
			pauses++
		}
	}
	q.Put(messageOf(1, "late"))
	if q.RunUntil(ctx, time.Hour); tries != 5 || pauses != 3 || q.lost(losses.Unsent) != 0 {
		t.Errorf("%d tries, %d pauses", tries, pauses)
	}
}
