package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/gpumemtrace/gpumemtrace/internal/atomicfile"
	"github.com/gpumemtrace/gpumemtrace/internal/export"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/state"
	"github.com/gpumemtrace/gpumemtrace/pprofout"
)

// An oomWriter puts each failure for want of memory into a directory: a page
// of text, and the profile of everything live at that moment.
type oomWriter struct {
	dir string
	log logger

	mu sync.Mutex
	n  int
}

// newOOMWriter returns nil when no directory was given, and creates it
// otherwise: what is wrong with it is found before the trace.
func newOOMWriter(f *traceFlags, log logger) (*oomWriter, error) {
	if f.oomDir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(f.oomDir, 0o755); err != nil {
		return nil, fmt.Errorf("make a place for out-of-memory reports: %w", err)
	}
	w := &oomWriter{dir: f.oomDir, log: log}
	return w, atomicfile.Check(filepath.Join(f.oomDir, "probe"), true)
}

// reports returns what takes incidents, nil for a nil w.
func (w *oomWriter) reports(f *traceFlags) func(*state.Incident) {
	if w == nil {
		return nil
	}
	return func(in *state.Incident) { w.write(in.OutOfMemory(f.want(false))) }
}

func (w *oomWriter) write(o *snapshot.OutOfMemory) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n++
	base := filepath.Join(w.dir, fmt.Sprintf("oom-%s-%d-%03d", o.Time.UTC().Format("20060102-150405"), o.PID, w.n))
	for path, content := range map[string]func(io.Writer) error{
		base + ".pb.gz": func(f io.Writer) error { return pprofout.Write(f, o.Snapshot) },
		base + ".txt":   func(f io.Writer) error { return export.OutOfMemory(f, o) },
	} {
		if err := atomicfile.Write(path, true, content); err != nil {
			w.log.warn(err.Error())
			return
		}
	}
	w.log.warn(fmt.Sprintf("process %d ran out of GPU memory: see %s.txt", o.PID, base))
}
