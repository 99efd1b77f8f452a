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
	"github.com/gpumemtrace/gpumemtrace/internal/output/timeline"
)

// An oomWriter writes out-of-memory reports, and says so.
type oomWriter struct {
	dir *oomdir.Dir
	log logger
	// explain, if set, puts into it which settings of the allocator would have helped.
	explain func(*snapshot.OutOfMemory)
}

// newOOMWriter returns nil when no directory was given.
func newOOMWriter(path string, log logger) (*oomWriter, error) {
	if path == "" {
		return nil, nil
	}
	dir, err := oomdir.Open(path, 0o755, false)
	return &oomWriter{dir: dir, log: log}, err
}

// finish completes the reports when the trace has ended.
func (w *oomWriter) finish() {
	if w != nil {
		w.dir.Finish()
	}
}

// reports returns a function that writes a report of an incident, or nil for a nil w.
func (w *oomWriter) reports(f *outputFlags) func(*state.Incident) {
	if w == nil {
		return nil
	}
	return func(in *state.Incident) { w.write(in.OutOfMemory(f.want(false))) }
}

// mostFailures bounds the failures that are shown.
const mostFailures = 10

// failures are the requests of a recording that failed for want of memory.
type failures struct {
	export.Failures
	first []*snapshot.OutOfMemory
}

func (f *failures) add(in *state.Incident) {
	o := in.OutOfMemory((&outputFlags{}).want(false))
	f.Add(o)
	if len(f.first) < mostFailures {
		f.first = append(f.first, o)
	}
}

// explained returns the last one that did not recover, and then the first ones. They say whether
// other settings of PyTorch's allocator would have helped.
func (f *failures) explained(path string) []*snapshot.OutOfMemory {
	shown := slices.Clone(f.first)
	if last := f.Last; last != nil {
		shown = append([]*snapshot.OutOfMemory{last}, slices.DeleteFunc(shown, func(o *snapshot.OutOfMemory) bool { return o == last })...)
		shown = shown[:min(len(shown), mostFailures)]
	}
	explain := explains(path)
	for _, o := range shown {
		explain(o)
	}
	return shown
}

// passages are what the page of a recording says of its failures.
func (f *failures) passages(path string) (out []timeline.Passage) {
	for _, o := range f.explained(path) {
		heading, says := export.Answers(o)
		out = append(out, timeline.Passage{Title: heading, Says: says, At: max(o.Time.Sub(o.Snapshot.Meta.Start), 0), Again: o.Again, GPU: o.GPU})
	}
	return out
}

// reportFailures prints a page about each request of a recording that failed for want of memory.
// The last one that did not recover comes first.
func reportFailures(path string, at moment) error {
	opts, err := at.options(path)
	if err != nil {
		return err
	}
	var all failures
	opts.OutOfMemory = all.add
	if _, err := replay.Play(path, opts); err != nil {
		return err
	}
	if all.All == 0 {
		fmt.Println("No request failed because memory ran out.")
		return export.Next(os.Stdout, layout(os.Stdout), export.Command{Args: "report " + path, Answers: "What was held at the peak, and for what"})
	}
	if text := all.Order(); text != "" {
		fmt.Printf("%s\n\n", text)
	}
	shown := all.explained(path)
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
