package probes

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/ring"
)

const (
	// pollInterval bounds how long an event waits for the reader: the kernel side wakes it
	// only if much is waiting.
	pollInterval = 50 * time.Millisecond
	// idleInterval is the bound after idleAfter without an event.
	idleInterval = 100 * time.Millisecond
	idleAfter    = time.Second
	// maxBatch bounds the records between two calls of afterBatch, which a program that allocates
	// without a pause would prevent.
	maxBatch = 4096
)

// A reader reads the ring buffer.
type reader struct {
	ring     *ring.Reader
	targets  *targets
	loss     *loss.Set
	flushing atomic.Bool
}

func openReader(events *ebpf.Map, x *targets, lost *loss.Set) (r *reader, err error) {
	r = &reader{targets: x, loss: lost}
	if r.ring, err = ring.Open(events.FD(), int(events.MaxEntries())); err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return r, nil
}

// run passes records on until flush, and then those that are left.
func (r *reader) run(d *decoder, h Handler, afterBatch func(until time.Duration)) error {
	var rec []byte
	last := time.Now() // of the last event
	for {
		flushing := r.flushing.Load()
		var until time.Duration
		var n int
		var err error
		r.targets.meter.Do(noPlace, func() {
			n, until, err = r.batch(d, &rec, h)
			if err == nil && afterBatch != nil {
				afterBatch(until)
			}
		})
		switch {
		case err != nil:
			return fmt.Errorf("read events: %w", err)
		case until == 0:
			continue
		case flushing:
			r.flushing.Store(false)
			return nil
		}
		now, interval := time.Now(), pollInterval
		if n > 0 {
			last = now
		}
		if now.Sub(last) >= idleAfter {
			interval = clock.Until(idleInterval)
		}
		if err := r.ring.Wait(interval, r.flushing.Load); err != nil {
			return err
		}
	}
}

// batch passes n records on. There are no more from before the time until, or, if that is 0, more
// are waiting.
func (r *reader) batch(d *decoder, rec *[]byte, h Handler) (n int, until time.Duration, err error) {
	looked, came := clock.Monotonic(), false // since then
	for n < maxBatch {
		next, ok, err := r.ring.Read(*rec)
		switch {
		case err != nil:
			return n, 0, err
		case ok:
			*rec = next
			n, came = n+1, true
			if d.decode(next, h) != nil {
				r.loss.Add(lossMalformed, 1)
			}
			r.targets.MarkRead(d.user, next)
		case came: // and more may have come since the ring buffer was empty
			looked, came = clock.Monotonic(), false
		default:
			return n, looked, nil
		}
	}
	return n, 0, nil
}

// flush makes run return once the ring buffer is empty.
func (r *reader) flush() {
	r.flushing.Store(true)
	r.ring.Wake()
}

// A follower passes events on to a Handler. Before that it updates the libraries of a process by
// its fork, exec or exit, and after that the StackTaker.
type follower struct {
	Handler
	libs    *libraries
	stacks  StackTaker // may be nil
	decoder *decoder
}

// withStack are the operations of events that normally have a stack.
var withStack = []event.Op{event.OpAlloc, event.OpOpen, event.OpHandleCreate, event.OpHandleImport, event.OpObjectMemory, event.OpTensorAlloc}

func (f follower) Event(e *event.Event) {
	f.libs.followProcess(e)
	if f.decoder.shed && slices.Contains(withStack, e.Op) {
		f.libs.loss.Add(lossShed, 1)
	}
	f.Handler.Event(e)
	if f.stacks == nil {
		return
	}
	switch e.Op {
	case event.OpFork:
		f.stacks.Forked(int(e.Proc.PID), int(e.Child.PID))
	case event.OpExec:
		f.stacks.Replaced(int(e.Proc.PID))
	case event.OpExit:
		f.stacks.Ended(int(e.Proc.PID))
	}
}
