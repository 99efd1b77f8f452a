package main

import (
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/oomdir"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// An oomWriter writes out-of-memory reports, and says so.
type oomWriter struct {
	dir *oomdir.Dir
	log logger
}

// newOOMWriter returns nil when no directory was given.
func newOOMWriter(f *traceFlags, log logger) (*oomWriter, error) {
	if f.oomDir == "" {
		return nil, nil
	}
	dir, err := oomdir.Open(f.oomDir, 0o755, false)
	return &oomWriter{dir, log}, err
}

// reports returns what takes incidents, nil for a nil w.
func (w *oomWriter) reports(f *traceFlags) func(*state.Incident) {
	if w == nil {
		return nil
	}
	return func(in *state.Incident) { w.write(in.OutOfMemory(f.want(false))) }
}

func (w *oomWriter) write(o *snapshot.OutOfMemory) {
	page, err := w.dir.Write(o)
	if err != nil {
		w.log.warn(err.Error())
		return
	}
	w.log.warn(fmt.Sprintf("process %d ran out of GPU memory: see %s", o.PID, page))
}
