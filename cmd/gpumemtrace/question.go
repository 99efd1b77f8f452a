package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

// A question is what a command asks of a profile or a recording. Only recordings have
// moments.
type question struct {
	at   moment
	peak bool   // without at, the moment is the peak; if peak is false, it is the end
	from moment // allocations and peaks count from here on
	want state.Want
	by   []string // the groupings that are asked for
	// span and end are what measure returned of the recording, a nil end if nobody has measured it.
	span replay.Span
	end  *state.State
	// layout: the state knows where memory lies, and the latest remember changes.
	layout   bool
	remember int
	// failed, if set, receives the failures for want of memory up to at, or all.
	failed func(*state.Incident)
}

// An answer is what a file shows. Native frames are as a trace shows them by default.
type answer struct {
	shown    *snapshot.Snapshot
	before   *snapshot.Snapshot // at question.from, nil where that is not given
	recorded bool               // the file is a recording
	foreign  bool               // or a snapshot of PyTorch
	moment   *export.Moment     // the shown moment, nil unless question.peak is set
	says     string             // which one it is, unless moment is nil
	failures export.Failures    // requests that failed for want of memory
}

// answer reads the file at path.
func (q question) answer(path string) (*answer, error) {
	f, info, err := userfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	collectFor(info)
	r, err := record.OpenFile(f, info)
	switch {
	case err == nil && r.Foreign() && q.lacking() != "":
		return nil, usagef("--by %s: a snapshot of PyTorch does not say %s. A recording does (--record)", q.lacking(), notInSnapshot[q.lacking()])
	case err == nil && !r.Foreign() && (slices.Contains(q.by, "annotation") || slices.Contains(q.by, "compiled")):
		return nil, usagef("%s does not have what record_function and torch.compile say: --by annotation and --by compiled need a snapshot of PyTorch", path)
	case err == nil:
		a, err := q.of(&recordingFile{f, info, newProgress(os.Stderr, true, "reading "+path)}, r)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		a.foreign = r.Foreign()
		return a, nil
	case !errors.Is(err, record.ErrNotRecording):
		return nil, fmt.Errorf("read %s: %w", path, err)
	case q.at.given() || q.from.given():
		return nil, usagef("%s is a profile: it has one moment only. Another moment needs a recording (--record)", path)
	}
	p, err := pprof.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &answer{shown: p}, nil
}

// notInSnapshot are the groupings for which a snapshot of PyTorch has nothing, and what it does not say.
var notInSnapshot = map[string]string{
	"user": "whose process it is of", "rank": "which rank it is of", "job": "whose process it is of", "service": "whose process it is of",
	"pod": "whose process it is of", "container": "whose process it is of", "namespace": "whose process it is of",
	"command": "with which command its process was started", "pid": "the number of its process",
	"cause": "for which calls the driver took memory", "holder": "which objects hold memory", "module_path": "which objects hold memory",
}

// lacking returns the first grouping that a snapshot of PyTorch does not have, "" if it has all.
func (q *question) lacking() string {
	i := slices.IndexFunc(q.by, func(by string) bool { return notInSnapshot[by] != "" })
	if i < 0 {
		return ""
	}
	return q.by[i]
}

// A recordingFile is an open recording, which is played once or twice.
type recordingFile struct {
	*os.File
	info fs.FileInfo
	bar  *progress
}

// of plays the recording up to the moment of q. r has read nothing yet.
func (q question) of(f *recordingFile, r *record.Reader) (*answer, error) {
	defer f.bar.clear()
	a := &answer{recorded: true}
	opts := replay.Options{At: replay.End, Progress: f.bar.show, OutOfMemory: a.fail}
	if q.failed != nil && !q.at.given() {
		opts.OutOfMemory = q.failed
	}
	if !q.peak && !q.at.given() && !q.from.given() {
		opts.Layout, opts.Remember = q.layout, q.remember
		s, err := replay.PlayReader(r, opts)
		if err != nil {
			return nil, err
		}
		a.shown = s.View(q.want).Snapshot()
		return a, nil
	}
	if q.end == nil {
		var err error
		if q.span, q.end, err = replay.Measure(r, opts); err != nil {
			return nil, err
		}
	}
	return a, q.playTo(a, f, q.span, q.end)
}

// fail adds a request that failed for want of memory.
func (a *answer) fail(in *state.Incident) { a.failures.Add(in.OutOfMemory(state.Want{})) }

// playTo plays the recording again. span is its span, and end the state at its end.
func (q question) playTo(a *answer, f *recordingFile, span replay.Span, end *state.State) error {
	at, err := q.at.at(span, replay.End)
	if err != nil {
		return err
	}
	opts := replay.Options{At: at, Progress: f.bar.show, Layout: q.layout, Remember: q.remember}
	if q.at.given() {
		opts.OutOfMemory = q.failed
	}
	if q.peak {
		if !q.at.given() {
			opts.At = span.Peak
		}
		a.says = span.Says(opts.At)
		a.moment = &export.Moment{At: min(opts.At, span.End), First: span.First, Peak: span.Peak, Most: span.Most, Tensors: span.Tensors, End: end.View(state.Want{Driver: true, Windows: true, Steps: q.want.Steps, Holders: q.want.Holders, Live: q.want.Holders}).Snapshot()}
	}
	if q.from.given() {
		from, err := q.from.at(span, 0)
		if err != nil {
			return err
		}
		opts.From = &replay.Start{At: from, State: func(s *state.State) {
			a.before = s.View(state.Want{Driver: true}).Snapshot()
		}}
	}
	if opts.At == span.End { // to have what came with the end
		opts.At = replay.End
	}
	if opts.From == nil && opts.At == replay.End && !opts.Layout && opts.OutOfMemory == nil {
		a.shown = end.View(q.want).Snapshot()
		return nil
	}
	if opts.From != nil && opts.From.At > opts.At {
		return usagef("--from %s is after --to %s", q.from.text, q.at.text)
	}
	opts.Later = end
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	r, err := record.OpenFile(f.File, f.info)
	if err != nil {
		return err
	}
	s, err := replay.PlayReader(r, opts)
	if err != nil {
		return err
	}
	a.shown = s.View(q.want).Snapshot()
	return nil
}
