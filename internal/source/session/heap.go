package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// HeapOptions say when to read the heaps of the traced processes. With neither Every nor Ends none is
// read.
type HeapOptions struct {
	// Every is the shortest time between two readings. It becomes longer if readings would
	// take more than a tenth of a core. A failure for want of memory and the end of the trace
	// cause further readings.
	Every time.Duration
	// Ends: heaps are read at the beginning and the end, without a warning where there is none.
	Ends bool
	// Keys are those that paths show.
	Keys heap.Keys
	// Fresh makes each view that wants holders read the heaps first.
	Fresh bool
}

const (
	// heapPatience bounds the time to read one heap, and allHeaps the time to read the heaps
	// of all processes, one after the other.
	heapPatience = 5 * time.Second
	allHeaps     = 15 * time.Second
	// Readings take at most one part in heapShare of the time.
	heapShare = 10
	// heapTries is the number of failures in a row after which a heap is not read any more.
	heapTries = 3
	never     = 1 << 62 * time.Nanosecond
)

// A heapReader reads the heaps of the traced processes. Only its goroutine and views wait for
// a reading. A nil heapReader reads nothing.
type heapReader struct {
	session *Session
	opts    HeapOptions
	soon    chan struct{} // a reading is wanted now
	ctx     context.Context
	cancel  context.CancelFunc

	mu sync.Mutex // held while heaps are read
	// failed counts the failures in a row to read the heap of each process.
	failed map[event.Process]int
}

func newHeapReader(s *Session, o HeapOptions) *heapReader {
	if o.Every <= 0 && !o.Ends {
		return nil
	}
	h := &heapReader{session: s, opts: o, soon: make(chan struct{}, 1), failed: map[event.Process]int{}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// run reads the heaps from time to time until end is closed.
func (h *heapReader) run(end <-chan struct{}) {
	if h == nil {
		return
	}
	every := cmp.Or(h.opts.Every, never)
	tick := time.NewTimer(every)
	defer tick.Stop()
	for {
		select {
		case <-end:
			return
		case <-tick.C:
		case <-h.soon:
		}
		began := time.Now()
		h.read()
		tick.Reset(max(every, heapShare*time.Since(began)))
	}
}

// event requests a reading after a failure for want of memory. It does not wait.
func (h *heapReader) event(e *event.Event) {
	if h == nil || e.Result != event.OutOfMemory && e.Op != event.OpOutOfMemory {
		return
	}
	select {
	case h.soon <- struct{}{}:
	default: // there is a request already
	}
}

// look reads the heaps for a view that wants holders, with Fresh.
func (h *heapReader) look(wanted bool) {
	if h != nil && h.opts.Fresh && wanted {
		h.read()
	}
}

// end reads the heaps a last time, while the probes are still on.
func (h *heapReader) end() {
	if h != nil {
		h.read()
		h.cancel()
	}
}

// read reads the heap of each traced process.
func (h *heapReader) read() {
	h.mu.Lock()
	defer h.mu.Unlock()
	ctx, cancel := context.WithTimeout(h.ctx, allHeaps)
	defer cancel()
	current := map[event.Process]bool{}
	for _, x := range h.session.subjects() {
		id := x.Process
		current[id] = true
		if h.failed[id] >= heapTries || ctx.Err() != nil {
			continue
		}
		// A job may have dozens of workers that prepare data.
		if h.opts.Every == 0 && !locked(h.session.store, func(s *state.State) bool { return s.MayHold(id) }) {
			continue
		}
		h.session.meter.Do(0, func() { h.one(ctx, id, len(x.Ordinals) > 0) })
	}
	maps.DeleteFunc(h.failed, func(id event.Process, _ int) bool { return !current[id] })
}

// one reads the heap of one process. The first failure in a row causes a warning, except for
// a process without Python that uses no GPU: it may only have started the program that does.
func (h *heapReader) one(ctx context.Context, id event.Process, uses bool) {
	r, err := heap.Read(ctx, int(id.PID), heap.Options{Keys: h.opts.Keys, MaxTime: heapPatience})
	switch {
	case ctx.Err() != nil || proc.EndedSince(int(id.PID), id.Ticks()):
		return
	case errors.Is(err, heap.ErrNoPython) && (h.opts.Every == 0 || !uses):
		return
	case err != nil:
		h.fail(id, err.Error())
		return
	case r.Refused != "":
		h.fail(id, r.Refused)
		return
	}
	delete(h.failed, id)
	for _, part := range record.Heaps(id, r) {
		h.session.apply(part)
	}
	for _, part := range record.BlocksOf(id, r) {
		h.session.apply(part)
	}
}

func (h *heapReader) fail(id event.Process, why string) {
	if h.failed[id]++; h.failed[id] > 1 {
		return
	}
	h.session.warn(fmt.Sprintf("the holders of process %d's memory are not known: %s", id.PID, why))
}
