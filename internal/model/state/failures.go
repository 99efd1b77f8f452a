package state

import (
	"cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// maxFailing bounds the threads whose failure may go on.
const maxFailing = 1024

// OutOfMemory reports whether e is a failure for want of memory: of a call, or of a
// framework's allocator that gave up.
func OutOfMemory(e *event.Event) bool {
	return e.Op == event.OpOutOfMemory || (e.Op == event.OpAlloc || e.Op == event.OpHandleCreate) && e.Result == event.OutOfMemory
}

// A Failure is one or more calls of a thread that failed for want of memory, one soon
// after the other: PyTorch asks for a segment in thousands of pieces.
type Failure struct {
	Proc      event.Process
	TID       uint32
	Time      uint64 // of the first
	Requested uint64 // bytes, by the first
	Calls     int64
	API       string // of the last, "" if no call failed
	GPU       string // label
	// Bytes that a framework's allocator reported, if it gave up.
	Framework                   bool
	Wanted, Allocated, Reserved uint64

	last uint64
}

// Size is how much memory was wanting, in bytes: for a framework the tensor's.
func (f *Failure) Size() uint64 {
	if f.Framework {
		return f.Wanted
	}
	return f.Requested
}

// Failures joins failed calls to Failures, for reports of everything that happened. An
// Incident, in contrast, has what was live at a failure.
type Failures struct {
	onEnd   func(*Failure)
	failing map[threadKey]*Failure
}

// NewFailures returns Failures that call onEnd with each Failure when it ends.
func NewFailures(over func(*Failure)) *Failures {
	return &Failures{over, map[threadKey]*Failure{}}
}

// Add adds an event that is OutOfMemory, the last one that s applied. It returns the
// Failure that begins with it, or nil.
func (x *Failures) Add(s *State, e *event.Event) (began *Failure) {
	key := threadKey{e.Proc, e.TID}
	f := x.failing[key]
	if f != nil && e.Time > f.last+recoveryWindow {
		x.end(key)
		f = nil
	}
	if f == nil {
		if len(x.failing) >= maxFailing {
			x.End()
		}
		f = &Failure{Proc: e.Proc, TID: e.TID, Time: e.Time, Requested: e.Size}
		f.GPU = s.GPU(&ledger.SiteKey{Proc: e.Proc, Kind: max(e.Kind, event.KindDevice), Device: e.Device})
		x.failing[key] = f
		began = f
	}
	f.last = max(f.last, e.Time)
	if e.Op == event.OpOutOfMemory {
		f.Framework, f.Wanted, f.Allocated, f.Reserved = true, e.Size, e.Handle, e.Part
		x.end(key)
		return began
	}
	f.API = s.trace.API(e.API)
	f.Calls++
	return began
}

func (x *Failures) end(key threadKey) {
	f := x.failing[key]
	delete(x.failing, key)
	x.onEnd(f)
}

// End ends the failures that may go on, in the order in which they began.
func (x *Failures) End() {
	keys := make([]threadKey, 0, len(x.failing))
	for key := range x.failing {
		keys = append(keys, key)
	}
	sorting.Stable(keys, func(a, b threadKey) int {
		return cmp.Or(cmp.Compare(x.failing[a].Time, x.failing[b].Time), a.proc.Compare(b.proc), cmp.Compare(a.tid, b.tid))
	})
	for _, key := range keys {
		x.end(key)
	}
}
