package session

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
)

// A store is the state, and the recording of the records that made it. Records enter both by
// applyLocked alone. Beside them the gate folds call sites and refuses stacks; no recording has that.
type store struct {
	fetch func(*state.Wants) // asks the sources for what the state wants; it does not wait
	users *users
	done  chan struct{} // closed when every target has ended

	mu      sync.Mutex // never held during a wait
	state   *state.State
	gate    *gate
	trace   record.Trace
	over    bool // done is closed
	stopped bool // the probes are off, or about to be
	awaited uint64

	writer   *record.Writer // nil without a recording
	recorded []loss.Counter // of closed recordings
	failing  bool           // this recording failed, and recordingFailed returned its error
}

func newStore(trace record.Trace) *store {
	return &store{fetch: func(*state.Wants) {}, users: newUsers(), done: make(chan struct{}), state: state.New(), gate: newGate(), trace: trace}
}

// apply adds a record.
func (s *store) apply(r record.Record) {
	if e, ok := r.(*event.Event); ok && (e.Op == event.OpObjectShare || e.Op == event.OpObjectExport) {
		s.hideForeignShare(e)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate.admit(s.state, r) {
		s.applyLocked(r)
	}
}

// gateLosses returns what the gate kept out, and notes about it.
func (s *store) gateLosses() ([]loss.Counter, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gate.lost.Counters(), s.gate.notes(s.state)
}

func (s *store) applyLocked(r record.Record) {
	if s.writer != nil {
		s.writer.Append(r) // first: it may ask the state for a keyframe, which is of the time before r
	}
	s.state.Apply(r)
	if w := s.state.Wants(); w != nil {
		s.fetch(w)
	}
	if s.state.Over() && !s.over {
		s.over = true
		close(s.done)
	}
}

// hideForeignShare removes the object that e shares or exports from e, if a process of another user owns it. One
// goroutine applies events.
func (s *store) hideForeignShare(e *event.Event) {
	s.mu.Lock()
	owner, known := s.state.ShareOwner(e)
	s.mu.Unlock()
	if known && !s.users.mayShare(e.Proc, owner) {
		e.Addr = 0
	}
}

// retrace changes the description of the trace.
func (s *store) retrace(change func(*record.Trace)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.trace)
	t := s.trace
	s.applyLocked(&t)
}

// Read adds a Moment, and calls read with the state. read must not change the state, nor use it after
// it returns. No record is added during the call.
func (s *store) Read(read func(*state.State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.applyLocked(moment(monotonic(), false))
	}
	read(s.state)
}

func locked[T any](s *store, f func(*state.State) T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f(s.state)
}

func (s *store) subjects() []record.Subject { return locked(s, (*state.State).Subjects) }

func (s *store) hasIncidents() bool { return locked(s, (*state.State).HasIncidents) }

// Seen returns the time up to which every event was applied, in nanoseconds of CLOCK_MONOTONIC. It
// advances as long as the reader of events works, also without an event.
func (s *store) Seen() uint64 { return locked(s, (*state.State).Seen) }

// Done returns a channel that is closed when all targets and their traced children have ended. With
// All it is never closed.
func (s *store) Done() <-chan struct{} { return s.done }

// Target describes the targets, such as "pid 4711 (python3)".
func (s *store) Target() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trace.Target
}

// Reported removes the processes that have ended from all later views, if every process is traced.
func (s *store) Reported() { s.apply(&record.Reported{}) }

// AllowReports bounds the failures for want of memory that are reported since the trace began.
func (s *store) AllowReports(n int) { s.retrace(func(t *record.Trace) { t.Incidents = n }) }

// awaits reports whether events from before at may still come.
func (s *store) awaits(at uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaited = max(s.awaited, at)
	return s.state.Seen() < at && !s.stopped
}

// afterBatch adds the time, between batches of events. All events before until were applied. If
// until is 0, only those up to the last event were. quiet means that no event came since the last
// call: the time is then added only now and then. The time never goes back: a view that showed a
// later time would lack events.
func (s *store) afterBatch(until time.Duration, quiet bool) (drained bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, drained := uint64(until), until != 0
	if !drained {
		at = s.state.Seen()
	}
	now := s.state.Now()
	awaited := s.state.WaitsForTime() || s.awaited > s.state.Seen()
	if at < now || quiet && at < now+quietInterval && !awaited {
		return quiet
	}
	s.applyLocked(moment(at, drained))
	return drained
}

// quietInterval is the time between two records of the time if no event comes.
const quietInterval = uint64(500 * time.Millisecond)

// replace ends the recording, and begins another recording with next, unless next is nil. It returns
// the writer of the old recording.
func (s *store) replace(next *record.Writer) (before *record.Writer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped && next != nil {
		return nil, errors.New("the trace has ended")
	}
	before = s.writer
	s.writer, s.failing = next, false
	return before, nil
}

// Record ends the current recording, if there is one, and begins another in file, unless file is nil.
// The file must be empty, and the session closes it. The new recording begins with everything that
// holds memory. After an error the current recording goes on. One goroutine may call Record.
func (s *Session) Record(file *os.File, opts record.WriterOptions) error {
	var next *record.Writer
	if file != nil {
		opts.Keyframe = s.state.Keyframe
		s.Read(func(st *state.State) { opts.Since = st.Now() })
		var err error
		if next, err = record.Create(file, opts); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	if s.recorder() != nil {
		s.wait()
		s.name()
	}
	before, err := s.replace(next)
	if err != nil {
		return errors.Join(err, next.Close())
	}
	if before == nil {
		return nil
	}
	if err := before.Close(); err != nil {
		s.warn(fmt.Sprintf("the end of a recording was not written: %v", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recorded = loss.Sum(s.recorded, before.Loss())
	return nil
}

// recorder returns the writer of the recording, nil for none.
func (s *store) recorder() *record.Writer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writer
}

// recordingLoss returns the losses of all recordings.
func (s *store) recordingLoss() []loss.Counter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer == nil {
		return s.recorded
	}
	return loss.Sum(s.recorded, s.writer.Loss())
}

// recordingFailed returns the error of the recording, once for each recording.
func (s *store) recordingFailed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer == nil || s.failing || s.writer.Err() == nil {
		return nil
	}
	s.failing = true
	return s.writer.Err()
}

// monotonic returns CLOCK_MONOTONIC in nanoseconds, as events have it.
func monotonic() uint64 { return uint64(clock.Monotonic()) }

func moment(at uint64, drained bool) *record.Moment {
	return &record.Moment{Time: at, Slept: uint64(clock.Boot() - clock.Monotonic()), Drained: drained}
}
