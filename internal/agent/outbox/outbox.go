// Package outbox sends what waits for a target, one message after the other, until the target has
// taken each or will not.
//
// Messages wait in memory. When there is no room, the oldest are dropped. Nobody who puts a message
// in waits for the target.
package outbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

const (
	firstWait  = time.Second
	longest    = time.Minute // wait, unless the target wants a longer one
	maxAfter   = time.Hour   // that a target may want
	maxProblem = 400         // bytes of the description of one
)

// A Message is one request.
type Message struct {
	Parts int // that count where it is lost
	Body  []byte
}

// A Verdict is what a target says of a message. The zero Verdict is that it took all.
type Verdict struct {
	Outcome Outcome
	Refused int           // parts that it did not take of a message that it took
	After   time.Duration // before which it wants no other try, 0 for not said
	Problem error         // what it said, nil if it took the message
}

// An Outcome is what became of a message.
type Outcome int

// The Outcomes. Busy: the same message may be taken later, and nothing is wrong with it. Failed: the
// target does not work, or not with this message.
const (
	Taken Outcome = iota
	Refused
	Busy
	Failed
)

// Losses are the causes of loss of an Outbox, in its Set. Again counts messages that are sent again.
type Losses struct{ Full, Refused, GaveUp, Unsent, Again int }

// Options say how an Outbox works.
type Options struct {
	Name string // of the target, in warnings
	// Send sends a message, once.
	Send func(ctx context.Context, body []byte) Verdict
	// Idle closes idle connections: the next try finds the target anew.
	Idle func()
	// MaxBytes and MaxMessages bound what waits, with what is being sent.
	MaxBytes    int64
	MaxMessages int
	// MaxFailures is how often one message may make the target fail before it is dropped.
	MaxFailures int
	Loss        *loss.Set
	Losses      Losses
	Warn        func(string) // of a target that fails, and that works again
	Wait        func(context.Context, time.Duration)
}

// An Outbox has the messages for one target, the oldest first. Several goroutines may call Put, and one
// calls Run.
type Outbox struct {
	Options
	mu       sync.Mutex
	size     int64 // bytes
	messages []*Message
	sending  *Message // that is being sent, nil for none
	ended    bool
	changed  chan struct{} // holds a value after a Put or an End
	problem  string        // of the last try, "" for none
}

// New returns an empty Outbox.
func New(o Options) *Outbox { return &Outbox{Options: o, changed: make(chan struct{}, 1)} }

// Sleep waits for a time, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// Put appends a message. It drops the oldest ones to make room, except the one that is being sent, and
// drops m if that is not enough.
func (q *Outbox) Put(m *Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	size := int64(len(m.Body))
	for size <= q.MaxBytes && (q.size+size > q.MaxBytes || len(q.messages) >= q.MaxMessages) {
		oldest := 0
		if len(q.messages) > 0 && q.messages[0] == q.sending {
			oldest = 1
		}
		if oldest == len(q.messages) {
			break
		}
		q.Loss.Add(q.Losses.Full, uint64(q.messages[oldest].Parts))
		q.remove(oldest)
	}
	if q.size+size > q.MaxBytes {
		q.Loss.Add(q.Losses.Full, uint64(m.Parts))
		return
	}
	q.messages = append(q.messages, m)
	q.size += size
	q.wake()
}

func (q *Outbox) remove(i int) {
	q.size -= int64(len(q.messages[i].Body))
	q.messages = append(q.messages[:i:i], q.messages[i+1:]...)
}

func (q *Outbox) wake() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// End makes Run return once nothing waits.
func (q *Outbox) End() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.wake()
}

// Run sends until ctx ends, or until nothing waits after an End. It counts what was not sent then.
func (q *Outbox) Run(ctx context.Context) {
	defer q.Idle()
	for m := q.take(ctx); m != nil && q.deliver(ctx, m); m = q.take(ctx) {
		q.done()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, m := range q.messages {
		q.Loss.Add(q.Losses.Unsent, uint64(m.Parts))
	}
}

// RunUntil runs until ctx ends, and then sends what waits for a while yet, with short pauses.
func (q *Outbox) RunUntil(ctx context.Context, grace time.Duration) {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() {
		q.End()
		time.AfterFunc(grace, stop)
	})
	wait := q.Wait
	q.Wait = func(sending context.Context, d time.Duration) {
		if ctx.Err() != nil {
			wait(sending, min(d, firstWait))
			return
		}
		wait(ctx, d)
	}
	q.Run(sending)
}

// take waits for a message and returns the oldest one, which stays until done. It returns nil when ctx
// ends, and when no more will come.
func (q *Outbox) take(ctx context.Context) *Message {
	for ctx.Err() == nil {
		m, ended := q.first()
		if m != nil || ended {
			return m
		}
		select {
		case <-ctx.Done():
		case <-q.changed:
		}
	}
	return nil
}

func (q *Outbox) first() (m *Message, ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.messages) == 0 {
		return nil, q.ended
	}
	q.sending = q.messages[0]
	return q.sending, false
}

// done removes the message that take returned.
func (q *Outbox) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(0) // Put never removes the message that is being sent
	q.sending = nil
}

// deliver sends a message until it is taken, refused or given up. It returns false if ctx ended before.
func (q *Outbox) deliver(ctx context.Context, m *Message) bool {
	failures := 0
	for try := 0; ; try++ {
		v := q.Send(ctx, m.Body)
		if v.Outcome != Taken && ctx.Err() != nil {
			return false
		}
		q.note(v.Problem)
		switch v.Outcome {
		case Taken:
			q.Loss.Add(q.Losses.Refused, uint64(min(v.Refused, m.Parts)))
			return true
		case Refused:
			q.Loss.Add(q.Losses.Refused, uint64(m.Parts))
			return true
		case Failed:
			if failures++; failures == q.MaxFailures {
				q.Loss.Add(q.Losses.GaveUp, uint64(m.Parts))
				return true
			}
		}
		q.Idle()
		q.Wait(ctx, backoff(try, v.After))
		if ctx.Err() != nil {
			return false
		}
		q.Loss.Add(q.Losses.Again, 1)
	}
}

// backoff is how long to wait after the try-th answer in a row, from 0 on, that was no
// success: twice as long each time, less a random part so that agents do not come
// together, and not before the target wants.
func backoff(try int, after time.Duration) time.Duration {
	d := min(firstWait<<min(try, 10), longest)
	d -= time.Duration(rand.Int64N(int64(d) / 2))
	return max(d, min(after, maxAfter))
}

// note warns of what changed.
func (q *Outbox) note(problem error) {
	before := q.problem
	q.problem = ""
	if problem != nil {
		q.problem = render.Clean(problem.Error())
		q.problem = strings.ToValidUTF8(q.problem[:min(len(q.problem), maxProblem)], "")
	}
	switch {
	case q.problem != "" && before == "":
		q.Warn(fmt.Sprintf("%s: %s", q.Name, q.problem))
	case q.problem == "" && before != "":
		q.Warn(q.Name + ": it works again")
	}
}
