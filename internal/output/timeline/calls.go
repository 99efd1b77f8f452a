package timeline

import (
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// longestCall is how long a call is waited for that took memory, in nanoseconds: its end may
// be lost.
const longestCall = 10e9

// calls are those that took memory from the kernel driver and have not returned, by thread.
// What they took becomes the program's when they return.
type calls map[thread]*call

type thread struct {
	proc event.Process
	tid  uint32
}

type call struct {
	since uint64
	took  map[int32]int64 // bytes by device
	at    thread
}

// follow ends the call of a thread at an event that is no call of the kernel driver.
func (w *run) follow(e *event.Event) {
	at := thread{e.Proc, e.TID}
	if !e.Op.Kernel() {
		w.settle(w.calls[at])
	}
	w.caller = at
}

// take adds bytes that the latest event took, or gave back (negative).
func (w *run) take(device int32, bytes int64) {
	if w.caller == (thread{}) {
		return // it was live where the recording begins, or goes on after a gap
	}
	c := w.calls[w.caller]
	if bytes < 0 {
		if c == nil {
			return // from before the call
		}
		bytes = max(bytes, -c.took[device])
	}
	if c == nil {
		if len(w.calls) >= maxProcesses {
			return
		}
		c = &call{since: w.Now, took: map[int32]int64{}, at: w.caller}
		w.calls[w.caller] = c
	}
	c.took[device] += bytes
	w.grow(remainder{proc: c.at.proc, role: roleCall, device: device}, bytes)
}

// settle ends a call, if there is one.
func (w *run) settle(c *call) {
	if c == nil {
		return
	}
	for _, device := range slices.Sorted(maps.Keys(c.took)) {
		w.grow(remainder{proc: c.at.proc, role: roleCall, device: device}, -c.took[device])
	}
	delete(w.calls, c.at)
}

// giveUp ends the calls that were waited for too long.
func (w *run) giveUp() {
	for _, c := range w.calls {
		if w.Now-min(w.Now, c.since) > longestCall {
			w.settle(c)
		}
	}
}
