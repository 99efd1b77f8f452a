package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/export"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/pprofout"
)

func newReport() *cobra.Command {
	opts := layout(os.Stdout)
	c := &cobra.Command{
		Use:   "report FILE",
		Short: "Print a profile as text: totals, owners, kinds, GPUs, largest stacks",
		Args:  exactly(1, "one profile"),
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := readProfile(args[0])
			if err != nil {
				return err
			}
			return export.Report(os.Stdout, p, opts)
		},
	}
	c.Flags().IntVarP(&opts.Top, "top", "n", 0, "stacks shown (default 10, negative for all)")
	return c
}

func newDiff() *cobra.Command {
	opts := layout(os.Stdout)
	c := &cobra.Command{
		Use:   "diff BEFORE AFTER",
		Short: "Print what each call stack gained and gave back between two profiles",
		Args:  exactly(2, "two profiles"),
		RunE: func(_ *cobra.Command, args []string) error {
			before, err := readProfile(args[0])
			if err != nil {
				return err
			}
			after, err := readProfile(args[1])
			if err != nil {
				return err
			}
			return export.Diff(os.Stdout, before, after, opts)
		},
	}
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

func readProfile(path string) (*snapshot.Snapshot, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := pprofout.Read(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return p, nil
}
