package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/settings"
	"github.com/gpumemtrace/gpumemtrace/internal/heap"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

type traceFlags struct {
	settings.Trace
	// target
	pids        []int
	all         bool
	noFollow    bool
	requireCUDA bool
	freeStacks  bool
	keys        keysFlag
	// holdersGiven reports whether --holders was given. It is nil for a command that shows no first screen.
	holdersGiven func() bool
	outputFlags
	duration time.Duration
	record   string
	// advanced
	readyFile string
	noMemo    bool
	verify    uint32

	leaks leakFlags

	gpuMemory bool // somebody looks at it
	layout    bool // an output shows where memory lies

	command     []string
	commandLine string
}

const examples = `  sudo gpumemtrace -p 4711                 # until Ctrl-C, then write a profile
  sudo gpumemtrace -p 4711 -d 30s -o before.pb.gz
  sudo gpumemtrace -- python train.py      # from the first call on
  sudo gpumemtrace -a -d 1m -o - --format table
  sudo gpumemtrace --tensors --record run.gmt -p 4711   # keep every moment
  gpumemtrace report run.gmt               # read it as text
  gpumemtrace convert run.gmt run.html     # or over time, as a page for a browser`

func newRoot() *cobra.Command {
	f := traceFlags{Trace: settings.NewTrace()}
	root := &cobra.Command{
		Use:     "gpumemtrace {-p PID | -a | -- CMD ARGS...}",
		Short:   "Show who holds a GPU's memory, by call stack, in an unmodified program",
		Example: examples,
		Version: version,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 0 {
				return unexpected(cmd, args[0])
			}
			return nil
		},
		SilenceUsage: true, SilenceErrors: true, SuggestionsMinimumDistance: nearness,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.command = args
			f.commandLine = strings.Join(os.Args, " ")
			return trace(&f)
		},
	}
	groups := []group{
		{"Target", f.addTarget},
		{"Tensors", func(s *pflag.FlagSet) {
			f.addSettings(s, "tensors", "tensors-window", "tensors-every", "holders")
			s.BoolVar(&f.freeStacks, "free-stacks", false, "with --tensors and --record: also take a stack when a tensor is freed, for report --by freed-by")
			f.holdersGiven = func() bool { return s.Changed("holders") }
			addKeys(s, &f.keys)
		}},
		{"Output", func(s *pflag.FlagSet) {
			addOutputFlags(s, &f.outputFlags)
			s.DurationVarP(&f.duration, "duration", "d", 0, "stop after this long (default: Ctrl-C, or when the target ends)")
			s.DurationVar(&f.interval, "interval", 0, "also write a numbered file at this interval (SIGUSR1 writes one at once)")
			f.addSettings(s, "oom-dir")
			f.addRecord(s)
		}},
		{"Leaks", f.leaks.add},
		{"Limits", func(s *pflag.FlagSet) { f.addSettings(s, "max-live", "record-max", "oom-max") }},
		{"Advanced", func(s *pflag.FlagSet) {
			f.addSettings(s, "api", "stacks", "no-cache")
			s.BoolVar(&f.noMemo, "no-stack-memo", false, "unwind every stack in full")
			s.Uint32Var(&f.verify, "verify-stacks", 0, "unwind every Nth memoized stack in full as well, and count differences")
			for _, name := range []string{"no-stack-memo", "verify-stacks"} { // for tests
				s.Lookup(name).Hidden = true
			}
			f.addReady(s)
		}},
	}
	setUpHelp(root, groups)
	root.Long = manual + "\n# TERMS\n\n" + termsText("**", "**\n: ", "\n\n")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newReport(), newDiff(), newWhatif(), newFit(), newConvert(), newTop(), newAgent(), newDoctor(), newHolders(), newTerms())
	root.SetHelpCommand(newHelp(root))
	completeValues(root)
	return root
}

// A keysFlag is the choice of keys that paths show.
type keysFlag heap.Keys

func (k *keysFlag) String() string { return heap.KeyChoices[*k] }
func (k *keysFlag) Type() string   { return "choice" }

func (k *keysFlag) Set(choice string) error {
	i := slices.Index(heap.KeyChoices, choice)
	if i < 0 {
		return fmt.Errorf("use %s", strings.Join(heap.KeyChoices, ", "))
	}
	*k = keysFlag(i)
	return nil
}

func addKeys(s *pflag.FlagSet, to *keysFlag) {
	s.Var(to, "keys", "which keys of dictionaries paths show, because a key may be a secret: names (identifiers and numbers), all (short texts too) or none")
}

// addTarget adds what says which processes are traced.
func (f *traceFlags) addTarget(s *pflag.FlagSet) {
	s.IntSliceVarP(&f.pids, "pid", "p", nil, "trace this process (repeatable)")
	s.BoolVarP(&f.all, "all", "a", false, "trace every process that uses CUDA, now or later")
	s.BoolVar(&f.noFollow, "no-follow", false, "do not trace children of a traced process; from Linux 6.12 on, also keep probes out of all other processes")
	s.BoolVar(&f.requireCUDA, "require-cuda", false, "fail if a process uses no CUDA library yet, instead of waiting")
}

// addSettings adds settings, by name. It panics for a name that no setting has.
func (f *traceFlags) addSettings(s *pflag.FlagSet, names ...string) {
	table := f.Table()
	for _, name := range names {
		i := slices.IndexFunc(table, func(x *settings.Setting) bool { return x.Name == name })
		addSetting(s, table[i], "")
	}
}

func (f *traceFlags) addRecord(s *pflag.FlagSet) {
	s.StringVar(&f.record, "record", "", "also record the whole trace in this file, for gpumemtrace convert, report, diff and top")
}

func (f *traceFlags) addReady(s *pflag.FlagSet) {
	s.StringVar(&f.readyFile, "ready-file", "", "create this file once the probes are on; the file must not exist before (--force removes it)")
}

// outputFlags say what is written, where, and how it looks.
type outputFlags struct {
	output     string
	format     string
	force      bool
	interval   time.Duration // between numbered files, 0 for none
	native     stacks.Native
	noResidual bool
	quiet      bool
	verbose    bool
	traceMax   int
}

// want is what the output shows, with live rows or without.
func (f *outputFlags) want(live bool) state.Want {
	return state.Want{Live: live, Native: f.native, Driver: !f.noResidual, Holders: true, Windows: true}
}

// addOutputFlags adds what says where a profile goes, and how it looks.
func addOutputFlags(s *pflag.FlagSet, f *outputFlags) {
	s.StringVarP(&f.output, "output", "o", "", "write to this file, or - for stdout (default gpumemtrace-TIME.pb.gz; for convert, RUN.html)")
	s.StringVar(&f.format, "format", "", "one of "+strings.Join(formats().Names(), ", ")+" (default: by the file's extension)")
	s.IntVar(&f.traceMax, "trace-max", 200_000, "the most changes of memory in a pickle; the latest are kept")
	s.BoolVar(&f.force, "force", false, "replace an existing file")
	s.BoolVar(&f.noResidual, "no-residual", false, "leave out the driver's own memory, and the accounts (each process's total on a GPU, divided by cause)")
	s.Var(&f.native, "native", "native frames to show in stacks that have Python frames: all, python (only those that Python called, without the interpreter's own) or none")
	s.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing but errors")
	s.BoolVarP(&f.verbose, "verbose", "v", false, "print what is probed and every counter")
}

// A group is a set of flags under one heading of --help.
type group struct {
	title string
	add   func(*pflag.FlagSet)
}

// setUpHelp shows examples first, then flags by group.
func setUpHelp(cmd *cobra.Command, groups []group) {
	var sections []string
	for _, g := range groups {
		s := pflag.NewFlagSet(g.title, pflag.ContinueOnError)
		g.add(s)
		cmd.Flags().AddFlagSet(s)
		sections = append(sections, fmt.Sprintf("%s:\n%s", g.title, s.FlagUsages()))
	}
	cmd.Flags().SortFlags = false
	cmd.SetHelpFunc(func(c *cobra.Command, _ []string) {
		out := c.OutOrStdout()
		fmt.Fprintf(out, "%s.\n\nUsage: %s\n", c.Short, c.UseLine())
		if c.Example != "" {
			fmt.Fprintf(out, "\nExamples:\n%s\n", c.Example)
		}
		if c == cmd {
			fmt.Fprintf(out, "\n%s", strings.Join(sections, "\n"))
		} else if u := c.Flags().FlagUsages(); u != "" {
			fmt.Fprintf(out, "\nFlags:\n%s", u)
		}
		if c == cmd && len(c.Commands()) > 0 {
			fmt.Fprintln(out, "\nOther commands:")
			for _, sub := range c.Commands() {
				if sub.IsAvailableCommand() {
					fmt.Fprintf(out, "  %-10s %s\n", sub.Name(), sub.Short)
				}
			}
			fmt.Fprint(out, "\nWhat the words of the output mean: gpumemtrace help terms\n")
		}
	})
}
