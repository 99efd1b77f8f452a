package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

type traceFlags struct {
	// target
	pids         []int
	all          bool
	noFollow     bool
	requireCUDA  bool
	tensors      bool
	tensorSample size
	tensorMin    size
	freeStacks   bool
	// output
	output     string
	format     string
	force      bool
	duration   time.Duration
	interval   time.Duration
	native     stacks.Native
	oomDir     string
	record     string
	noResidual bool
	quiet      bool
	verbose    bool
	// limits
	maxLive   int
	traceMax  int
	oomMax    int
	recordMax size
	// advanced
	api       string
	readyFile string
	stacks    string
	noMemo    bool
	noCache   bool
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
  go tool pprof -top gpumemtrace-20060102-150405.pb.gz`

func newRoot() *cobra.Command {
	var f traceFlags
	root := &cobra.Command{
		Use:     "gpumemtrace {-p PID | -a | -- CMD ARGS...}",
		Short:   "Who holds the GPU's memory, by call stack, in a process nobody changed",
		Example: examples,
		Version: version,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 0 {
				return usagef("unexpected argument %q: a command to run goes after --", args[0])
			}
			return nil
		},
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.command = args
			f.commandLine = strings.Join(os.Args, " ")
			return trace(&f)
		},
	}
	groups := []group{
		{"Target", f.addTarget},
		{"Tensors", func(s *pflag.FlagSet) {
			f.addTensors(s)
			s.BoolVar(&f.freeStacks, "free-stacks", false, "with --tensors: take a stack where a tensor is freed too, for report --by freed-by of the recording")
		}},
		{"Output", func(s *pflag.FlagSet) {
			addOutputFlags(s, &f)
			s.DurationVarP(&f.duration, "duration", "d", 0, "stop after this long (default: Ctrl-C, or when the target ends)")
			s.DurationVar(&f.interval, "interval", 0, "also write a numbered file every so often (SIGUSR1 writes one at once)")
			s.StringVar(&f.oomDir, "oom-dir", "", "write a report and a profile here whenever an allocation fails for want of memory")
			f.addRecord(s)
		}},
		{"Leaks", f.leaks.add},
		{"Limits", func(s *pflag.FlagSet) {
			f.addLimits(s)
			s.IntVar(&f.oomMax, "oom-max", 10, "out-of-memory reports written at most")
		}},
		{"Advanced", func(s *pflag.FlagSet) {
			f.addCapture(s)
			s.BoolVar(&f.noMemo, "no-stack-memo", false, "unwind every stack in full")
			s.Uint32Var(&f.verify, "verify-stacks", 0, "unwind every Nth memoized stack in full as well, and count differences")
			f.addReady(s)
		}},
	}
	setUpHelp(root, groups)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newReport(), newDiff(), newConvert(), newTop(), newAgent(), newDoctor())
	return root
}

// addTarget adds what says which processes are traced.
func (f *traceFlags) addTarget(s *pflag.FlagSet) {
	s.IntSliceVarP(&f.pids, "pid", "p", nil, "trace this process (repeatable)")
	s.BoolVarP(&f.all, "all", "a", false, "trace every process that uses CUDA, now or later")
	s.BoolVar(&f.noFollow, "no-follow", false, "trace no child of a traced process, and from Linux 6.12 on put probes into no other process")
	s.BoolVar(&f.requireCUDA, "require-cuda", false, "fail if a process uses no CUDA library yet, instead of waiting")
}

// addTensors adds what says which tensors are told.
func (f *traceFlags) addTensors(s *pflag.FlagSet) {
	s.BoolVar(&f.tensors, "tensors", false, "look inside PyTorch's caching allocator: which tensors its segments hold, and what is cached")
	s.Var(&f.tensorSample, "tensor-sample", "with --tensors, tell of a random sample of the tensors alone, one for so many bytes in the mean, such as 1MiB: rows are estimates, sums exact (default: all)")
	s.Var(&f.tensorMin, "tensor-min", "with --tensors, tell of no tensor below this size, such as 64KiB: together they are one exact line (default: all)")
}

func (f *traceFlags) addRecord(s *pflag.FlagSet) {
	s.StringVar(&f.record, "record", "", "also record the whole trace in this file, for gpumemtrace convert, report, diff and top")
}

// addLimits adds what bounds a trace.
func (f *traceFlags) addLimits(s *pflag.FlagSet) {
	s.IntVar(&f.maxLive, "max-live", 2_000_000, "live allocations that keep their call stack; bytes beyond are counted, not attributed")
	s.Var(&f.recordMax, "record-max", "size of the recording, such as 512MiB; the oldest part is dropped beyond (default: no limit)")
}

// addCapture adds what says how calls and stacks are taken.
func (f *traceFlags) addCapture(s *pflag.FlagSet) {
	s.StringVar(&f.api, "api", string(probes.APIDriver), "count at the driver, the runtime, or both (bytes once, at the driver; events also name the runtime call)")
	s.StringVar(&f.stacks, "stacks", string(unwind.Auto), "how stacks are taken: unwind (complete), fp (the kernel's frame-pointer walk), auto (unwind where it can run)")
	s.BoolVar(&f.noCache, "no-cache", false, "keep no unwind tables in "+unwind.CacheDir+", and use none from there")
}

func (f *traceFlags) addReady(s *pflag.FlagSet) {
	s.StringVar(&f.readyFile, "ready-file", "", "create this file once the probes are on; it must not be there (--force removes it)")
}

// addOutputFlags adds what says where a profile goes, and how it looks.
func addOutputFlags(s *pflag.FlagSet, f *traceFlags) {
	s.StringVarP(&f.output, "output", "o", "", "write to this file, - for stdout (default gpumemtrace-TIME.pb.gz)")
	s.StringVar(&f.format, "format", "", "one of "+strings.Join(formats().Names(), ", ")+" (default: by the file's extension)")
	s.IntVar(&f.traceMax, "trace-max", 200_000, "changes of memory that a pickle or memory_viz file tells of: the latest")
	s.BoolVar(&f.force, "force", false, "replace an existing file")
	s.BoolVar(&f.noResidual, "no-residual", false, "leave out what the driver takes beside the traced allocations, and the accounts")
	s.Var(&f.native, "native", "native frames shown in stacks that have Python frames: all, python (those that Python called, but for the interpreter's own), none")
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
		}
	})
}
