package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/export"
	"github.com/gpumemtrace/gpumemtrace/internal/record"
	"github.com/gpumemtrace/gpumemtrace/internal/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/state"
	"github.com/gpumemtrace/gpumemtrace/pprofout"
)

const reportExamples = `  gpumemtrace report train.pb.gz
  gpumemtrace report train.pb.gz --by cause     # what each byte is for, and which call took it
  gpumemtrace report run.gmt --at 12m30s --by owner,kind`

const diffExamples = `  gpumemtrace diff train.000001.pb.gz train.000009.pb.gz
  gpumemtrace diff run.gmt run.gmt --before 5m --after 1h`

func newReport() *cobra.Command {
	opts := layout(os.Stdout)
	var at moment
	var by []string
	c := &cobra.Command{
		Use:     "report FILE",
		Short:   "Print a profile or a recording as text: totals, owners, kinds, GPUs, largest stacks",
		Example: reportExamples,
		Args:    exactly(1, "one profile or recording"),
		RunE: func(_ *cobra.Command, args []string) (err error) {
			if opts.By, err = export.ParseBy(by...); err != nil {
				return usageError{err}
			}
			p, err := readProfile(args[0], at)
			if err != nil {
				return err
			}
			return export.Report(os.Stdout, p, opts)
		},
	}
	c.Flags().Var(&at, "at", "the moment of a recording to show, as convert takes it")
	c.Flags().StringSliceVar(&by, "by", nil, "for each process and GPU, a row for each of "+strings.Join(export.ByNames(), ", ")+" (several with commas)")
	c.Flags().IntVarP(&opts.Top, "top", "n", 0, "stacks shown (default 10, with --by 3 of each row; negative for all)")
	return c
}

func newDiff() *cobra.Command {
	opts := layout(os.Stdout)
	var first, second moment
	c := &cobra.Command{
		Use:     "diff BEFORE AFTER",
		Short:   "Print what was gained and given back between two profiles, or moments of recordings: by cause, by stack",
		Example: diffExamples,
		Args:    exactly(2, "two profiles or recordings"),
		RunE: func(_ *cobra.Command, args []string) error {
			before, err := readProfile(args[0], first)
			if err != nil {
				return err
			}
			after, err := readProfile(args[1], second)
			if err != nil {
				return err
			}
			return export.Diff(os.Stdout, before, after, opts)
		},
	}
	c.Flags().Var(&first, "before", "the moment of BEFORE, if it is a recording, as convert takes it; default its end")
	c.Flags().Var(&second, "after", "the same of AFTER")
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

// readProfile reads a profile, or a recording as of a moment. native and the
// driver's own memory are as a trace shows them by default.
func readProfile(path string, at moment) (*snapshot.Snapshot, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	if header, _ := r.Peek(8); record.IsRecording(header) {
		played, err := replay.Play(path, at.options())
		if err != nil {
			return nil, err
		}
		return played.View(state.Want{Driver: true}).Snapshot(), nil
	}
	if at.text != "" {
		return nil, usagef("%s is a profile: it has one moment only", path)
	}
	p, err := pprofout.Read(r)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return p, nil
}
