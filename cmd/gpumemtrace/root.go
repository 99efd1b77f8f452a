//go:build linux

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
			s.Lookup("holders").Usage += " (default: with -p once at the beginning and once at the end, else off)"
			f.holdersGiven = func() bool { return s.Changed("holders") }
			addKeys(s, &f.keys)
		}},
		{"Output", func(s *pflag.FlagSet) {
			addOutputFlags(s, &f.outputFlags, "gpumemtrace-TIME.pb.gz", ofMoments())
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
	root.AddCommand(newReport(), newCheck(), newDiff(), newWhatif(), newFit(), newConvert(), newTop(), newAgent(), newDoctor(), newHolders(), newTerms())
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
	s.StringVar(&f.record, "record", "", "also record the whole trace in this file, for gpumemtrace report, convert, diff, top, whatif, fit and check")
}

func (f *traceFlags) addReady(s *pflag.FlagSet) {
	s.StringVar(&f.readyFile, "ready-file", "", "create this file once the probes are on; the file must not exist before (--force removes it)")
}
