//go:build !linux

package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// needsLinux is what is said where a command would trace.
const needsLinux = "tracing needs Linux; here, report, diff, whatif, fit, convert and top read files"

// writeNow is no signal: there is no trace to ask for a numbered file.
const writeNow = syscall.Signal(-1)

const examples = `  gpumemtrace report run.gmt               # a recording or a profile, as text
  gpumemtrace convert run.gmt run.html     # over time, as a page for a browser`

// refuse is the end of a command that would trace.
func refuse(*cobra.Command, []string) error {
	fmt.Fprintln(os.Stderr, "gpumemtrace: "+needsLinux)
	return exitError(exitUsage)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:     "gpumemtrace COMMAND",
		Short:   "Show who holds a GPU's memory, by call stack: " + needsLinux,
		Example: examples,
		Version: version,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 0 && args[0] != "-" { // of -o -
				return unexpected(cmd, args[0])
			}
			return nil
		},
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true}, // those of a trace
		SilenceUsage:       true, SilenceErrors: true, SuggestionsMinimumDistance: nearness,
		RunE: refuse,
	}
	setUpHelp(root, nil)
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newReport(), newCheck(), newDiff(), newWhatif(), newFit(), newConvert(), newTop(), newTerms())
	for _, name := range []string{"agent", "doctor", "holders"} {
		root.AddCommand(&cobra.Command{Use: name, Short: needsLinux, Hidden: true, DisableFlagParsing: true, RunE: refuse})
	}
	root.SetHelpCommand(newHelp(root))
	completeValues(root)
	return root
}

// newTop shows recordings alone.
func newTop() *cobra.Command {
	var f viewFlags
	c := &cobra.Command{
		Use:     "top RECORDING",
		Short:   "Show a recording in the terminal: who held how much memory, and what grew, by call stack",
		Example: "  gpumemtrace top run.gmt                  # with a time slider",
		Args:    exactly(1, "one recording"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := f.check(true); err != nil {
				return err
			}
			return f.show(args[0])
		},
	}
	f.add(c.Flags())
	c.Flags().SortFlags = false
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			return usagef("%w: %s", err, needsLinux)
		}
		return flagError(c, err)
	})
	return c
}
