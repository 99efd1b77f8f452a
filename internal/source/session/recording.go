package session

import (
	"errors"
	"fmt"
	"os"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// Record has the trace recorded in a file from here on, and in no other any more; nil is
// none. The file is empty, and the session closes it. What holds memory comes first. With
// an error the recording before goes on. It is for one goroutine.
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
		s.settle()
		s.name()
	}
	s.mu.Lock()
	if s.stopped && next != nil {
		s.mu.Unlock()
		return errors.Join(errors.New("the trace has ended"), next.Close())
	}
	before := s.writer
	s.writer = next
	s.failing = false
	s.mu.Unlock()
	if before == nil {
		return nil
	}
	if err := before.Close(); err != nil {
		s.warn(fmt.Sprintf("the end of a recording was not written: %v", err))
	}
	s.mu.Lock()
	s.recorded = loss.Sum(s.recorded, before.Loss())
	s.mu.Unlock()
	return nil
}

// recorder returns who writes the recording, nil for none.
func (s *Session) recorder() *record.Writer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writer
}

// recordingLoss is what all recordings have lost.
func (s *Session) recordingLoss() []loss.Counter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer == nil {
		return s.recorded
	}
	return loss.Sum(s.recorded, s.writer.Loss())
}
