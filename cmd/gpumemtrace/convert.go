package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/timeline"
)

const convertExamples = `  gpumemtrace convert run.gmt                           # run.html: all of it over time, as one page for any browser
  gpumemtrace convert run.gmt run.pb.gz                 # a profile of the peak
  gpumemtrace convert run.gmt --at end -o end.pb.gz     # and of the end
  gpumemtrace convert run.gmt --format table
  gpumemtrace convert run.pb.gz run.html                # a page of one moment, of a profile
  gpumemtrace convert run.gmt run.pickle                # a file for PyTorch's memory_viz page, https://pytorch.org/memory_viz`

func newConvert() *cobra.Command {
	var f outputFlags
	var oomDir string
	var at moment
	c := &cobra.Command{
		Use:     "convert RECORDING [OUTPUT]",
		Short:   "Convert a recording, as of any moment, to a profile, a table, a page or another format",
		Example: convertExamples,
		Args:    oneOrTwo,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 2 {
				if f.output != "" {
					return usagef("name the output once: %s, or -o %s", args[1], f.output)
				}
				f.output = args[1]
			}
			if f.traceMax < 0 {
				return usagef("--trace-max cannot be negative")
			}
			return convert(args[0], &f, at, oomDir)
		},
	}
	addOutputFlags(c.Flags(), &f, "RUN.html", formats())
	c.Flags().Lookup("verbose").Usage = "print every counter of loss"
	c.Flags().Var(&at, "at", "the moment to show: "+momentHelp+"; the default is the peak, or the end for a page and a pickle, which show all that was before")
	c.Flags().StringVar(&oomDir, "oom-dir", "", "also write the out-of-memory reports up to that moment, into this directory")
	return c
}

// oneOrTwo accepts one or two arguments: a recording, and where to write the output.
func oneOrTwo(_ *cobra.Command, args []string) error {
	if len(args) != 1 && len(args) != 2 {
		return usagef("give one recording and at most one output, not %d arguments", len(args))
	}
	return nil
}

// sameFile reports whether two paths lead to the same existing file.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, failed := os.Stat(b)
	return err == nil && failed == nil && os.SameFile(x, y)
}

// isProfile reports whether a file has the name of a profile.
func isProfile(path string) bool {
	f, err := formats().ByExtension(path)
	return err == nil && f.Name == "pprof"
}

// convertProfile writes the page of a profile.
func convertProfile(path string, f *outputFlags, at moment, out *output) error {
	a, err := question{at: at}.answer(path)
	if err != nil {
		return err
	}
	if err := out.put(func(w io.Writer) error { _, err := timeline.WriteProfile(w, a.shown); return err }); err != nil {
		return err
	}
	newLogger(f).wrote(out)
	return nil
}

// convert writes what a recording shows at a moment, or up to it.
func convert(path string, f *outputFlags, at moment, oomDir string) error {
	if file, err := os.Stat(path); err == nil {
		collectFor(file)
	}
	chosen := f.output != "" || f.format != ""
	if f.output == "" {
		switch f.format {
		case "", "timeline":
			f.output = of(filepath.Base(path), ".html")
		case "pprof":
			f.output = of(filepath.Base(path), ".pb.gz")
		}
	}
	if sameFile(path, f.output) {
		return usagef("%s is the recording itself: name another output", f.output)
	}
	out, err := newOutput(f, formats())
	if err != nil {
		return err
	}
	r, err := record.Open(path) // what is wrong with it has nothing to do with the output
	if errors.Is(err, record.ErrNotRecording) && out.format.Name == "timeline" && isProfile(path) {
		return convertProfile(path, f, at, out)
	}
	if errors.Is(err, record.ErrNotRecording) && isProfile(path) {
		return fmt.Errorf("%w (gpumemtrace report prints a profile, and gpumemtrace convert %s PAGE.html makes a page of it)", err, path)
	}
	if err != nil {
		return err
	}
	r.Close()
	log := newLogger(f)
	oom, err := newOOMWriter(oomDir, log)
	if err != nil {
		return err
	}
	var failed func(*state.Incident)
	if report := oom.reports(f); report != nil {
		oom.explain = explains(path)
		failed = report
	}
	var snap *snapshot.Snapshot
	if out.format.Series {
		snap, err = convertRun(path, f, at, out, failed)
	} else if snap, err = convertMoment(path, f, at, out, failed); err == nil {
		err = out.write(snap)
	}
	if err != nil {
		return err
	}
	log.summary(snap)
	log.wrote(out)
	if out.format.Layout && !f.quiet && !slices.ContainsFunc(snap.Samples, func(s snapshot.Sample) bool { return s.Kind == snapshot.Tensor }) {
		fmt.Fprintln(os.Stderr, "It has what the program took from CUDA. To see PyTorch's tensors in that, trace with --tensors.")
	}
	if !chosen {
		log.others(path)
	}
	return nil
}

// convertRun writes a page of a recording up to a moment, by default the end, and returns what it shows
// then.
func convertRun(path string, f *outputFlags, at moment, out *output, failed func(*state.Incident)) (*snapshot.Snapshot, error) {
	opts, err := at.options(path)
	if err != nil {
		return nil, err
	}
	bar := newProgress(os.Stderr, !f.quiet, "converting "+path)
	defer bar.clear()
	var all failures
	opts.Progress, opts.OutOfMemory = bar.show, func(in *state.Incident) {
		all.add(in)
		if failed != nil {
			bar.clear()
			failed(in)
		}
	}
	var played *state.State
	var lost []loss.Counter
	err = out.put(func(w io.Writer) (err error) {
		played, lost, err = timeline.Write(w, path, timeline.Options{Play: opts, Native: f.native, Failures: func() []timeline.Passage {
			if all.first == nil && !at.given() {
				return foundIn(path)
			}
			return all.passages(path)
		}})
		return err
	})
	if err != nil {
		return nil, err
	}
	snap := played.View(out.want(f, false)).Snapshot()
	snap.Loss, snap.Meta.Peaks = append(snap.Loss, lost...), snap.Ended()
	snap.Accounts, snap.Allocators = nil, nil // they are of the end: the page has those of every moment
	return snap, nil
}

// convertMoment returns what a recording shows at a moment, by default its peak. A
// format that has a history (Layout) shows the end by default.
func convertMoment(path string, f *outputFlags, at moment, out *output, failed func(*state.Incident)) (*snapshot.Snapshot, error) {
	q := question{at: at, peak: !out.format.Layout, want: out.want(f, false), layout: out.format.Layout, remember: f.traceMax, failed: failed}
	a, err := q.answer(path)
	if err != nil {
		return nil, err
	}
	if a.moment == nil {
		return a.shown, nil
	}
	s := a.shown
	if end := a.moment.End; !at.given() { // what is of the whole recording
		s.Loss, s.Notes, s.Windowed, s.Meta.Windows = end.Loss, end.Notes, end.Windowed, end.Meta.Windows
	}
	s.Meta.Moment, s.Meta.Peaks = a.says, a.moment.OfEach(s)
	return s, nil
}
