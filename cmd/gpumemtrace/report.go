package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/output/holders"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
)

const reportExamples = `  gpumemtrace report train.pb.gz
  gpumemtrace report train.pb.gz --by cause     # what each byte is for, and which call took it
  gpumemtrace report run.gmt                    # a recording, at its peak
  gpumemtrace report run.gmt --at 12m30s --by owner,kind
  gpumemtrace report run.gmt --from 10m --to 12m # what was allocated and freed in between, and the peak
  gpumemtrace report run.gmt --by user          # or by command, container, pod, job; adds up all processes
  gpumemtrace report run.gmt --by size          # live allocations by size, in powers of two
  gpumemtrace report run.gmt --by shape         # the shapes of tensors, recorded with --holders
  gpumemtrace report run.gmt --by freed-by      # where tensors were freed, recorded with --tensors --free-stacks
  gpumemtrace report run.gmt --by operator      # PyTorch's operators that the program called
  gpumemtrace report run.gmt --by module --turnover   # what was allocated and freed, even if nothing of it is held now
  gpumemtrace report run.gmt --segments         # why cached memory does not serve a request
  gpumemtrace report run.gmt --oom              # why it ran out of memory, and what would help
  gpumemtrace report run.gmt --leaks            # which stacks leak
  gpumemtrace report run.gmt --steps            # training steps: what each allocated and freed, and what grew
  gpumemtrace report run.gmt --windows          # tensors that were traced in windows (--tensors-window)
  gpumemtrace report run.gmt --by module,category --csv > modules.csv`

// A reportCommand prints a file as text, or rows of it.
type reportCommand struct {
	opts         export.Options
	at, from     moment
	by, patterns []string
	steps, oom   bool
	windows      bool
	rows         rowFlags
	leaks        leakFlags
}

func newReport() *cobra.Command {
	r := reportCommand{opts: layout(os.Stdout)}
	c := &cobra.Command{
		Use:     "report FILE",
		Short:   "Print a profile or a recording as text: who holds how much of which GPU, what for, and by which lines",
		Example: reportExamples,
		Args:    exactly(1, "one profile or recording (gpumemtrace diff compares two)"),
		RunE:    func(_ *cobra.Command, args []string) error { return r.run(args[0]) },
	}
	c.Flags().Var(&r.at, "at", "the moment of a recording to show: "+momentHelp+"; the default is the peak, or the end for --steps, --turnover, --from and --by freed-by")
	c.Flags().Var(&r.from, "from", "show what was allocated and freed from this moment of a recording on, and the peak in that time")
	c.Flags().Var(&r.at, "to", "the end of the time that begins with --from; the same as --at")
	c.Flags().StringSliceVar(&r.by, "by", nil, "for each process and GPU, group rows by "+strings.Join(export.ByNames(), ", ")+" (several with commas)")
	c.Flags().BoolVar(&r.steps, "steps", false, "show the training steps of a recording made with --tensors, and what grew from step to step; a training step lasts from one call of an optimizer's step function to the next")
	c.Flags().BoolVar(&r.windows, "windows", false, "show the tensors of a recording made with --tensors-window, by the stack that made them")
	c.Flags().BoolVar(&r.opts.Segments, "segments", false, "show how the segments of caching allocators are divided: how much is in tensors, how much is cached, and the largest free block")
	c.Flags().BoolVar(&r.oom, "oom", false, "show the requests of a recording that failed because memory ran out, with what held the memory and what would help")
	c.Flags().StringArrayVar(&r.patterns, "pattern", nil, "with --by pattern: `NAME=REGEXP`, a row and the stacks that it takes, as in 'attention=Attention'; the first pattern that any frame of a stack matches, in its function or the whole path of its file, takes it (again for each row)")
	r.leaks.addForRecording(c.Flags())
	r.rows.add(c.Flags(), "the rows of --by, of --steps or of --windows,")
	c.Flags().BoolVar(&r.opts.Turnover, "turnover", false, "with --by: show what each row allocated and freed, and the difference, instead of what it holds")
	c.Flags().IntVarP(&r.opts.Top, "top", "n", 0, "stacks to show, and rows of --by (default 10 stacks, or all rows with 3 stacks each; negative for all)")
	return c
}

// check refuses flags that do not go together, and returns how rows are to be written.
func (r *reportCommand) check() (format table.Format, err error) {
	if r.opts.By, err = parseBy(r.by, r.patterns); err != nil {
		return "", usageError{err}
	}
	pages := 0
	for _, asked := range []bool{r.steps, r.windows, r.opts.Segments, r.oom, r.leaks.on, r.opts.By != nil} {
		if asked {
			pages++
		}
	}
	if pages > 1 {
		return "", usagef("give only one of --steps, --windows, --segments, --oom, --leaks and --by: each is a page of its own")
	}
	if format, err = r.rows.format(r.opts.By != nil || r.steps || r.windows); err != nil {
		return "", err
	}
	if r.opts.Turnover && r.opts.By == nil {
		return "", usagef("--turnover needs --by, because it changes what the rows of --by show")
	}
	if r.from.given() && slices.Contains(r.by, "freed-by") {
		return "", usagef("--by freed-by counts from the beginning of a recording: leave out --from")
	}
	return format, nil
}

func (r *reportCommand) run(path string) error {
	if slices.Equal(r.by, []string{"shape"}) || slices.Equal(r.by, []string{"shapes"}) {
		return r.shapes(path)
	}
	format, err := r.check()
	if err != nil {
		return err
	}
	if r.oom {
		return asked("--oom", reportFailures(path, r.at))
	}
	if r.leaks.on {
		return asked("--leaks", reportLeaks(path, r.at, r.leaks, r.opts))
	}
	read := question{from: r.from, at: r.at, by: r.by, want: state.Want{Driver: true, Live: r.opts.By.Parts() || r.opts.By == nil, Freed: r.opts.By.Parts(), Steps: true, Windows: true, Holders: true}}
	read.peak = !r.steps && !r.windows && !r.opts.Turnover && !slices.Contains(r.by, "freed-by") && !r.from.given()
	x, err := read.answer(path)
	if err != nil {
		return err
	}
	r.opts.Before, r.opts.Moment, r.opts.File, r.opts.Failures = x.before, x.moment, path, x.failures
	if err := r.lacking(path, x); err != nil {
		return err
	}
	switch {
	case r.steps && format != "":
		return export.StepsRows(x.shown).Write(os.Stdout, format)
	case r.windows && format != "":
		return export.WindowsRows(x.shown).Write(os.Stdout, format)
	case r.windows:
		return export.WindowsReport(os.Stdout, x.shown, r.opts)
	case r.steps:
		return export.StepsReport(os.Stdout, x.shown, r.opts)
	case format != "":
		return export.ReportRows(x.shown, r.opts).Write(os.Stdout, format)
	}
	if x.recorded && r.opts.By == nil {
		r.opts.Settings = tried(path, x.shown, r.opts.Segments)
	}
	return export.Report(os.Stdout, x.shown, r.opts)
}

// shapes shows the shapes that tensors had when heaps were read last: up to the moment that is asked for, or
// after it.
func (r *reportCommand) shapes(path string) error {
	if r.rows.csv || r.rows.json {
		return usagef("--by shape is a page of its own, without --csv and --json")
	}
	x, err := question{at: r.at, peak: true, want: state.Want{Holders: true}}.answer(path)
	if err != nil {
		return err
	}
	heaps := x.shown.Heaps
	if len(heaps) == 0 && x.moment != nil {
		heaps = x.moment.End.Heaps
	}
	for _, h := range heaps {
		shown := holders.Report{PID: h.PID, Process: h.Process, Reading: h.Reading, By: holders.Shape}
		read := h.Begin.Sub(x.shown.Meta.Start).Round(time.Millisecond)
		fmt.Printf("As the heap of %s (%d) was read, %v after the trace began.", h.Process, h.PID, read)
		if x.moment != nil && x.moment.At.Round(time.Millisecond) != read {
			fmt.Printf(" Shapes are not known at %v.", x.moment.At.Round(time.Millisecond))
		}
		fmt.Println()
		if why := shown.Refusal(); why != "" {
			fmt.Printf("%s.\n", why)
		} else if err := shown.Table(os.Stdout, r.opts); err != nil {
			return err
		}
	}
	if len(heaps) == 0 {
		return usagef("cannot group by shape: %s has no shapes of tensors. Trace with --holders 30s --record RUN; of a running process, sudo gpumemtrace holders -p PID --by shape shows them", path)
	}
	return nil
}

// lacking says what was asked of a file that does not have it.
func (r *reportCommand) lacking(path string, x *answer) error {
	switch {
	case x.foreign && r.windows:
		return usagef("--windows: a snapshot of PyTorch has all tensors of its history, and no windows")
	case r.opts.By.Parts() && !x.recorded:
		return usagef("%s is a profile, which has no single allocations: --by %s needs a recording (--record)", path, strings.Join(r.by, ","))
	case slices.Contains(r.by, "freed-by") && x.shown.Freed == nil:
		return usagef("this recording does not have the places where tensors were freed: trace with --tensors --free-stacks")
	case (slices.Contains(r.by, "holder") || slices.Contains(r.by, "module_path")) && !tellsHolders(x.shown):
		return usagef("%s does not say which objects hold memory. Make one that does with sudo gpumemtrace -p PID --tensors --holders 30s --record RUN; of a running process, sudo gpumemtrace holders -p PID shows what holds memory now", path)
	case r.windows && x.shown.Meta.Windows == nil:
		return usagef("%s has no windows of tensors: record with --tensors-window", path)
	case r.steps && !x.recorded:
		return usagef("%s is a profile, which has no steps: --steps needs a recording (--record)", path)
	case !r.opts.Segments || len(x.shown.Allocators) > 0:
		return nil
	case !x.recorded:
		return usagef("%s is a profile, which has no segments of a caching allocator: --segments needs a recording (--tensors --record)", path)
	case r.at.given():
		return usagef("%s has no segments of a caching allocator at %s: either no tensor existed yet, or the trace ran without --tensors", path, r.at.text)
	}
	return usagef("%s has no segments of a caching allocator: record with --tensors", path)
}

// tellsHolders reports whether any sample says which object holds it, or which module it is in.
func tellsHolders(s *snapshot.Snapshot) bool {
	return slices.ContainsFunc(s.Samples, func(x snapshot.Sample) bool { return x.Holder != "" || x.ModulePath != "" })
}

// asked says of a file that is no recording that a flag needs one.
func asked(flag string, err error) error {
	if errors.Is(err, record.ErrNotRecording) {
		return fmt.Errorf("%s needs a recording: %w", flag, err)
	}
	return err
}

// parseBy returns the columns of --by, with the rows of --pattern.
func parseBy(names, patterns []string) (export.By, error) {
	by, err := export.ParseBy(names...)
	if err != nil {
		return nil, err
	}
	return by.WithPatterns(patterns)
}

func exactly(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usagef("give %s", what)
		case len(args) != n:
			return usagef("give %s, not %d", what, len(args))
		}
		return nil
	}
}

// smallFile is the size of a file, in bytes, for which little memory matters more than time.
const smallFile = 4 << 20

// smallMemory is how much memory a small file may take before garbage is collected more
// often, in bytes.
const smallMemory = 160 << 20

// collectFor makes the garbage collector run early while a small file is read. That takes
// little time, and the file takes no more memory than it is worth.
func collectFor(file fs.FileInfo) {
	if file.Size() < smallFile {
		debug.SetMemoryLimit(smallMemory)
	}
}
