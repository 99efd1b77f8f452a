package session

import (
	"slices"
	"sync"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// allocators reports the totals of caching allocators, if the tracer reports a sample of the tensors.
type allocators struct {
	*sources

	mu   sync.Mutex // held while totals are read and applied, locked before store.mu
	last map[allocator]record.Allocator
}

// An allocator is a process's caching allocator on a device.
type allocator struct {
	id     event.Process
	device int32
}

func (a *allocators) wanted() bool { return a.opts.Tensors && a.opts.Partial() }

// report adds the totals that changed, with the time at.
func (a *allocators) report(at uint64) {
	if a.wanted() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.reportLocked(at, nil)
	}
}

// reportLocked adds the totals that changed of one process, or with nil of all processes.
func (a *allocators) reportLocked(at uint64, one *event.Process) {
	all, err := a.tracer.Allocators()
	if err != nil {
		a.warn(err.Error())
	}
	all = slices.DeleteFunc(all, func(x record.Allocator) bool {
		return one != nil && x.Process != *one || a.last[allocator{x.Process, x.Device}] == x
	})
	for _, x := range all {
		a.last[allocator{x.Process, x.Device}] = x
	}
	for some := range slices.Chunk(all, record.MaxAllocators) {
		a.apply(&record.Tensors{Sample: a.opts.TensorSample, Time: at, Allocators: some})
	}
}

// readLastTotals adds the last totals of a process before e ends its image, and removes them from
// the kernel.
func (a *allocators) readLastTotals(e *event.Event) {
	if e.Op != event.OpExit && e.Op != event.OpExec || !a.wanted() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forget(e.Proc) // report may have used a time after e
	a.reportLocked(e.Time-1, &e.Proc)
	if a.forget(e.Proc) {
		a.tracer.ForgetTensors(e.Proc)
	}
}

// forget forgets the reported totals of a process, and returns whether there were any.
func (a *allocators) forget(id event.Process) (had bool) {
	for x := range a.last {
		if x.id == id {
			delete(a.last, x)
			had = true
		}
	}
	return had
}
