package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
	"github.com/gpumemtrace/gpumemtrace/pprofout"
)

const reportExamples = `  gpumemtrace report train.pb.gz
  gpumemtrace report train.pb.gz --by cause     # what each byte is for, and which call took it
  gpumemtrace report run.gmt --at 12m30s --by owner,kind
  gpumemtrace report run.gmt --from 10m --to 12m # what was allocated and freed in between, and the peak
  gpumemtrace report run.gmt --by size          # what lives, by the powers of two that sizes lie between
  gpumemtrace report run.gmt --by freed-by      # where tensors were freed, recorded with --tensors --free-stacks
  gpumemtrace report run.gmt --by operator      # of PyTorch: itself, and with all that it calls
  gpumemtrace report run.gmt --by module --turnover   # what was allocated and freed, also what is not held
  gpumemtrace report run.gmt --steps            # of a training: what each step allocated and freed, and what grew
  gpumemtrace report run.gmt --by module,category --csv > modules.csv`

const diffExamples = `  gpumemtrace diff train.000001.pb.gz train.000009.pb.gz
  gpumemtrace diff run.gmt --before 5m --after 1h   # two moments of one recording`

func newReport() *cobra.Command {
	opts := layout(os.Stdout)
	var at, from moment
	var by []string
	var rows, steps bool
	c := &cobra.Command{
		Use:     "report FILE",
		Short:   "Print a profile or a recording as text: totals, owners, kinds, GPUs, largest stacks",
		Example: reportExamples,
		Args:    exactly(1, "one profile or recording"),
		RunE: func(_ *cobra.Command, args []string) (err error) {
			if opts.By, err = export.ParseBy(by...); err != nil {
				return usageError{err}
			}
			if steps && opts.By != nil {
				return usagef("--steps is a page of its own: leave out --by")
			}
			if rows && opts.By == nil && !steps {
				return usagef("--csv writes the rows of --by: say by what")
			}
			if opts.Turnover && opts.By == nil {
				return usagef("--turnover is of the rows of --by: say by what")
			}
			if from.text != "" && slices.Contains(by, "freed-by") {
				return usagef("--by freed-by tells of a recording from its beginning: leave out --from")
			}
			if from.text != "" && at.text != "" && from.time.IsZero() && at.time.IsZero() && from.after > at.after {
				return usagef("--from %s is after --to %s", from.text, at.text)
			}
			p, before, recorded, err := readStretch(args[0], from, at, state.Want{Driver: true, Live: opts.By.Parts(), Freed: opts.By.Parts(), Steps: steps})
			if err != nil {
				return err
			}
			opts.Before = before
			if opts.By.Parts() && !recorded {
				return usagef("a profile does not tell each allocation: --by %s needs a recording (--record)", strings.Join(by, ","))
			}
			if slices.Contains(by, "freed-by") && p.Freed == nil {
				return usagef("this recording does not tell where tensors were freed: trace with --tensors --free-stacks")
			}
			switch {
			case steps && !recorded:
				return usagef("a profile does not tell of steps: --steps needs a recording (--record)")
			case steps && rows:
				return export.StepsCSV(os.Stdout, p)
			case steps:
				return export.StepsReport(os.Stdout, p, opts)
			case rows:
				return export.ReportCSV(os.Stdout, p, opts)
			}
			return export.Report(os.Stdout, p, opts)
		},
	}
	c.Flags().Var(&at, "at", "the moment of a recording to show, as convert takes it")
	c.Flags().Var(&from, "from", "show what was allocated and freed, and the peak, from this moment of a recording on")
	c.Flags().Var(&at, "to", "the same as --at: where --from ends")
	c.Flags().StringSliceVar(&by, "by", nil, "for each process and GPU, a row for each of "+strings.Join(export.ByNames(), ", ")+" (several with commas)")
	c.Flags().BoolVar(&steps, "steps", false, "show the training steps of a recording with tensors, from one call of an optimizer's step to the next, and what grew from step to step")
	c.Flags().BoolVar(&rows, "csv", false, "write the rows of --by, or of --steps, as comma-separated values, in bytes")
	c.Flags().BoolVar(&opts.Turnover, "turnover", false, "of the rows of --by, what was allocated and freed, and the net of that, and not what is held")
	c.Flags().IntVarP(&opts.Top, "top", "n", 0, "stacks shown (default 10, with --by 3 of each row; negative for all)")
	return c
}

func newDiff() *cobra.Command {
	opts := layout(os.Stdout)
	var first, second moment
	c := &cobra.Command{
		Use:     "diff BEFORE [AFTER]",
		Short:   "Print what was gained and given back between two profiles, or moments of recordings: by cause, by stack",
		Example: diffExamples,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 && first.text == "" && second.text == "" {
				return usagef("give two profiles or recordings, or two moments of a recording (--before, --after), not one file alone")
			}
			if len(args) != 1 && len(args) != 2 {
				return usagef("give two profiles or recordings, not %d", len(args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				args = append(args, args[0])
			}
			before, _, err := readProfile(args[0], first, state.Want{Driver: true})
			if err != nil {
				return err
			}
			after, _, err := readProfile(args[1], second, state.Want{Driver: true})
			if err != nil {
				return err
			}
			return export.Diff(os.Stdout, before, after, opts)
		},
	}
	c.Flags().Var(&first, "before", "the moment of BEFORE, if it is a recording, as convert takes it; default its end")
	c.Flags().Var(&second, "after", "the same of AFTER, which is BEFORE if it is not given")
	c.Flags().IntVarP(&opts.Top, "top", "n", 0, "stacks shown (default 10, negative for all)")
	return c
}

func exactly(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
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
		debug.SetGCPercent(25)
		debug.SetMemoryLimit(smallMemory)
	}
}

// readProfile reads a profile, or what w wants of a recording as of a moment, and tells
// whether it is a recording. Native frames are as a trace shows them by default.
func readProfile(path string, at moment, w state.Want) (p *snapshot.Snapshot, recorded bool, err error) {
	p, _, recorded, err = readStretch(path, moment{}, at, w)
	return p, recorded, err
}

// readStretch is readProfile. What is allocated, and peaks, count from the moment from, if
// it is given, of which before is what was shown.
func readStretch(path string, from, at moment, w state.Want) (p, before *snapshot.Snapshot, recorded bool, err error) {
	f, info, err := userfile.Open(path)
	if err != nil {
		return nil, nil, false, err
	}
	defer f.Close()
	collectFor(info)
	recording, err := record.NewReader(f, info.Size())
	if !errors.Is(err, record.ErrNotRecording) {
		if err != nil {
			return nil, nil, true, fmt.Errorf("read %s: %w", path, err)
		}
		bar := newProgress(os.Stderr, true, "reading "+path)
		opts := at.options()
		opts.Progress = bar.show
		if from.text != "" {
			opts.From = &replay.Start{At: from.after, Time: from.time, State: func(s *state.State) {
				before = s.View(state.Want{Driver: true}).Snapshot()
			}}
		}
		played, err := replay.PlayReader(recording, opts)
		bar.clear()
		if err != nil {
			return nil, nil, true, fmt.Errorf("read %s: %w", path, err)
		}
		return played.View(w).Snapshot(), before, true, nil
	}
	if at.text != "" || from.text != "" {
		return nil, nil, false, usagef("%s is a profile: it has one moment only", path)
	}
	if p, err = pprofout.Read(f); err != nil {
		return nil, nil, false, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil, false, nil
}
