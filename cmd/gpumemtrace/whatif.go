package main

import (
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/output/findings"
	"github.com/gpumemtrace/gpumemtrace/internal/output/timeline"
	"github.com/gpumemtrace/gpumemtrace/internal/whatif"
)

const whatifExamples = `  gpumemtrace whatif run.gmt
  gpumemtrace whatif run.gmt --set max_split_size_mb:256 --set expandable_segments:True,roundup_power2_divisions:8
  gpumemtrace whatif run.gmt -o run.html                   # the page of the run, with the best setting as an outline
  gpumemtrace whatif run.gmt --own max_split_size_mb:128   # what the run itself was started with`

func newWhatif() *cobra.Command {
	var set []string
	var own string
	var f outputFlags
	var asJSON bool
	o := layout(os.Stdout)
	c := &cobra.Command{
		Use:     "whatif RUN.gmt",
		Short:   "Predict the memory that PyTorch would reserve with other allocator settings",
		Long:    "Replay the requests of a recorded run to PyTorch's caching allocator. The first replay uses the run's own settings, to check that every tensor gets the address that PyTorch gave it. Further replays use other settings. The recording must be made with --tensors.",
		Example: whatifExamples,
		Args:    exactly(1, "one recording"),
		RunE: func(_ *cobra.Command, args []string) (err error) {
			w := whatif.Options{Width: o.Width, Color: o.Color}
			if own != "" {
				if w.Own, err = whatif.ParseSetting(own); err != nil {
					return usageError{fmt.Errorf("--own %w", err)}
				}
			}
			for _, text := range set {
				s, err := whatif.ParseSetting(text)
				if err != nil {
					return usageError{fmt.Errorf("--set %w", err)}
				}
				w.More = append(w.More, s)
			}
			var page *output
			if f.output != "" {
				if page, err = pageOutput(&f); err != nil {
					return err
				}
			}
			runs, err := whatif.Collect(args[0])
			if err != nil {
				return err
			}
			if len(runs) == 0 {
				return fmt.Errorf("%s has no tensors of PyTorch: record with --tensors", args[0])
			}
			var predictions []*whatif.Prediction
			for _, x := range runs {
				predictions = append(predictions, whatif.Predict(x, w))
			}
			if page != nil {
				if err := predictedPage(page, args[0], runs, predictions, w.More); err != nil {
					return err
				}
				defer newLogger(&f).wrote(page)
			}
			if asJSON {
				return whatif.WriteJSON(os.Stdout, predictions)
			}
			if err := whatif.Write(os.Stdout, predictions, w); err != nil {
				return err
			}
			commands := []export.Command{{Args: "report " + args[0] + " --segments", Answers: "How its segments were divided at the peak"}}
			if page == nil && slices.ContainsFunc(predictions, func(p *whatif.Prediction) bool { return p.Best() != "" }) {
				commands = append(commands, export.Command{Args: "whatif " + args[0] + " -o " + of(args[0], ".html"), Answers: "The run over time, with an outline of what the best setting would hold"})
			}
			return export.Next(os.Stdout, o, commands...)
		},
	}
	c.Flags().StringArrayVar(&set, "set", nil, "another `setting` to try, written as in PYTORCH_CUDA_ALLOC_CONF (repeatable)")
	c.Flags().StringVar(&own, "own", "", "the settings that the run itself used, if these were neither PyTorch's defaults nor expandable segments")
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	addPageFlags(c.Flags(), &f, "also write the page of the run, with an outline of what PyTorch would reserve under each --set, or, without --set, under the setting that saves most")
	return c
}

// predictedPage writes the page of a recording. Over the memory of its GPUs it has outlines of
// what they would hold under the settings of more, or else under the best of each prediction.
func predictedPage(page *output, path string, runs []*whatif.Run, predictions []*whatif.Prediction, more []whatif.Setting) error {
	var outlines []timeline.Outline
	for i, p := range predictions {
		settings := more
		if best, err := whatif.ParseSetting(p.Best()); err == nil && len(more) == 0 {
			settings = []whatif.Setting{best}
		}
		for _, s := range settings {
			if p.Reason != "" {
				continue
			}
			o := timeline.Outline{Name: "with " + s.Name, Process: runs[i].Process, Device: p.Device}
			runs[i].Follow(s, o.Curve.Add)
			outlines = append(outlines, o)
		}
	}
	if len(outlines) == 0 {
		return fmt.Errorf("%s: there is no prediction to draw: %s", path, predictions[0].Answer())
	}
	return writePage(page, path, outlines, nil)
}

// wasteful is the part of what PyTorch has in segments from which on it is worth asking
// whether other settings would waste less, and telling it.
const wasteful = 0.1

// leastSaved is what a setting must save to be told of without being asked, in bytes: small programs always
// waste some.
const leastSaved = 256 << 20

// tried says what other settings of PyTorch's allocator would have changed in a recording. If that was
// not asked, it says so of one that ran out of memory or, as shown, has much that is cached, if a setting would
// have helped.
func tried(path string, shown *snapshot.Snapshot, asked bool) (out []findings.Setting) {
	var tensors, cached int64
	for i := range shown.Samples {
		switch s := &shown.Samples[i]; s.Kind {
		case snapshot.Tensor:
			tensors += s.InuseBytes
		case snapshot.Cached:
			cached += s.InuseBytes
		}
	}
	failed := false
	for _, p := range shown.Processes {
		failed = failed || p.OutOfMemory > 0
	}
	if !asked && (tensors == 0 || !failed && float64(cached) < wasteful*float64(tensors+cached)) {
		return nil
	}
	predictions, err := whatif.PredictFile(path)
	if err != nil {
		return nil
	}
	for _, p := range predictions {
		if asked || p.Helps() && (p.Lacked > 0 || p.Saves() >= leastSaved && float64(p.Saves()) >= wasteful*float64(p.Rows[0].Peak)) {
			out = append(out, findings.Setting{PID: int(p.PID), Process: p.Process, GPU: p.GPU, Name: p.Best(), Says: p.Answer(), Saves: int64(max(p.Saves(), p.Lacked))})
		}
	}
	return out
}

// explains returns what says of a failure in a recording, in its page, whether other settings of
// PyTorch's allocator would have prevented it.
func explains(path string) func(*snapshot.OutOfMemory) {
	predictions := sync.OnceValue(func() []*whatif.Prediction {
		all, _ := whatif.PredictFile(path)
		return all
	})
	return func(o *snapshot.OutOfMemory) {
		if whatif.CanExplain(o) {
			whatif.Explain(o, predictions())
		}
	}
}
