package session

import (
	"slices"
	"sync"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// An allocatorOf says whose caching allocator on which device it is.
type allocatorOf struct {
	id     event.Process
	device int32
}

// allocators has what caching allocators say of themselves, where not every tensor is
// told. What did not change is told once.
type allocators struct {
	mu   sync.Mutex // held from reading them to telling, before Session.mu
	told map[allocatorOf]record.Allocator
}

// current tells what allocators say now, and waits for the events of until then: what
// they say goes with the tensors of that moment.
func (s *Session) current() {
	s.allocated(monotonic(), nil)
	s.catchUp()
}

// allocated tells what allocators say, as of the time at, of one process or with nil of
// all.
func (s *Session) allocated(at uint64, one *event.Process) {
	if !s.opts.Tensors || !s.opts.Partial() {
		return
	}
	s.allocators.mu.Lock()
	defer s.allocators.mu.Unlock()
	s.tellAllocators(at, one)
}

// tellAllocators does so, with s.allocators.mu held.
func (s *Session) tellAllocators(at uint64, one *event.Process) {
	all, err := s.tracer.Allocators()
	if err != nil {
		s.warn(err.Error())
	}
	if one != nil {
		all = slices.DeleteFunc(all, func(a record.Allocator) bool { return a.Process != *one })
	}
	all = slices.DeleteFunc(all, func(a record.Allocator) bool {
		return s.allocators.told[allocatorOf{a.Process, a.Device}] == a
	})
	for _, a := range all {
		s.allocators.told[allocatorOf{a.Process, a.Device}] = a
	}
	for some := range slices.Chunk(all, record.MaxAllocators) {
		s.apply(&record.Tensors{Sample: s.opts.TensorSample, Min: s.opts.TensorMin, Time: at, Allocators: some})
	}
}

// ended says what a process's allocators said last, before e ends its image, and makes
// room for those of others.
func (s *Session) ended(e *event.Event) {
	if e.Op != event.OpExit && e.Op != event.OpExec || !s.opts.Tensors || !s.opts.Partial() {
		return
	}
	s.allocators.mu.Lock()
	defer s.allocators.mu.Unlock()
	s.untell(e.Proc) // a moment ago it may have been told as of one that comes after e
	s.tellAllocators(e.Time-1, &e.Proc)
	if s.untell(e.Proc) {
		s.tracer.ForgetTensors(e.Proc)
	}
}

// untell forgets what was told of a process's allocators, and returns whether anything was.
func (s *Session) untell(id event.Process) (had bool) {
	for of := range s.allocators.told {
		if of.id == id {
			delete(s.allocators.told, of)
			had = true
		}
	}
	return had
}
