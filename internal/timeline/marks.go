package timeline

import (
	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/state"
)

// failed keeps a failure to be marked.
func (w *watcher) failed(f *state.Failure) {
	if len(w.failures) >= maxMarks {
		w.lost.Add(lossMarks, 1)
		return
	}
	w.failures = append(w.failures, *f)
}

// failureText says what failed.
func failureText(f *state.Failure) string {
	s := "out of memory: " + bytefmt.Format(int64(min(f.Size(), 1<<62))) + " asked for"
	if f.API != "" {
		s += " by " + f.API
	}
	return s
}
