package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/oomdir"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
)

// An oomWriter writes out-of-memory reports, and says so.
type oomWriter struct {
	dir *oomdir.Dir
	log logger
	// explain, if set, puts into it which settings of the allocator would have helped.
	explain func(*snapshot.OutOfMemory)
}

// newOOMWriter returns nil when no directory was given.
func newOOMWriter(f *traceFlags, log logger) (*oomWriter, error) {
	if f.OOMDir == "" {
		return nil, nil
	}
	dir, err := oomdir.Open(f.OOMDir, 0o755, false)
	if err == nil && f.record != "" && f.Tensors {
		dir.Explain(func() string { return f.record }, log.warn)
	}
	return &oomWriter{dir: dir, log: log}, err
}

// finish completes the reports when the trace has ended.
func (w *oomWriter) finish() {
	if w != nil {
		w.dir.Finish()
	}
}

// reports returns a function that writes a report of an incident, or nil for a nil w.
func (w *oomWriter) reports(f *traceFlags) func(*state.Incident) {
	if w == nil {
		return nil
	}
	return func(in *state.Incident) { w.write(in.OutOfMemory(f.want(false))) }
}

// mostFailures bounds the pages of report --oom: the last request that did not recover, and the
// first ones.
const mostFailures = 10

// reportFailures prints a page about each request of a recording that failed for want of memory.
// The last one that did not recover comes first.
func reportFailures(path string, at moment) error {
	opts, err := at.options(path)
	if err != nil {
		return err
	}
	var all export.Failures
	var shown []*snapshot.OutOfMemory
	opts.OutOfMemory = func(in *state.Incident) {
		o := in.OutOfMemory((&traceFlags{}).want(false))
		all.Add(o)
		if len(shown) < mostFailures {
			shown = append(shown, o)
		}
	}
	if _, err := replay.Play(path, opts); err != nil {
		return err
	}
	if all.All == 0 {
		fmt.Println("No request failed because memory ran out.")
		return export.Next(os.Stdout, layout(os.Stdout), export.Command{Args: "report " + path, Answers: "What was held at the peak, and for what"})
	}
	if last := all.Last; last != nil {
		shown = append([]*snapshot.OutOfMemory{last}, slices.DeleteFunc(shown, func(o *snapshot.OutOfMemory) bool { return o == last })...)
		shown = shown[:min(len(shown), mostFailures)]
	}
	if text := all.Order(); text != "" {
		fmt.Printf("%s\n\n", text)
	}
	explain := explains(path)
	for _, o := range shown {
		explain(o)
	}
	if err := export.OutOfMemories(os.Stdout, path, shown); err != nil {
		return err
	}
	if n := all.All - len(shown); n > 0 {
		fmt.Printf("\nNot shown: %d more that failed. gpumemtrace convert %s --oom-dir DIR writes a page of each.\n", n, path)
	}
	return nil
}

func (w *oomWriter) write(o *snapshot.OutOfMemory) {
	if w.explain != nil {
		w.explain(o)
	}
	page, err := w.dir.Write(o)
	if err != nil {
		w.log.warn(err.Error())
		return
	}
	w.log.warn(fmt.Sprintf("process %d ran out of GPU memory: see %s", o.PID, page))
}
