package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/whatif"
)

const fitExamples = `  gpumemtrace fit run8.gmt run16.gmt --to 32       # recorded at batch sizes 8 and 16: would 32 fit?
  gpumemtrace fit 8=a.gmt 16=b.gmt 24=c.gmt --to 32,64 --memory 80GiB`

func newFit() *cobra.Command {
	var to []float64
	var limits whatif.Limits
	var beside uint64
	var asJSON bool
	o := layout(os.Stdout)
	c := &cobra.Command{
		Use:     "fit [NUMBER=]RUN.gmt [NUMBER=]RUN.gmt...",
		Short:   "Predict the memory of a run at another batch size, from two or three recordings",
		Long:    "Compare recordings of one program that differ in one number, such as the batch size or the length of a text, and predict PyTorch's peak at another number. Write the number of a recording before the file (8=run.gmt) or at the end of its name (run8.gmt). Record each run with --tensors and for the same number of steps.",
		Example: fitExamples,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usagef("give at least two recordings")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			for _, n := range to {
				if !(n > 0 && n <= 1<<24) {
					return usagef("--to %g: want a number between 0 and %d", n, 1<<24)
				}
			}
			var runs []whatif.Measured
			var highest whatif.Measured
			var recording string // of highest
			for _, arg := range args {
				m, file, err := measured(arg)
				if err != nil {
					return err
				}
				runs = append(runs, m)
				if m.At > highest.At {
					highest, recording = m, file
				}
			}
			a, err := question{peak: true, want: state.Want{Driver: true}}.answer(recording)
			if err != nil {
				return err
			}
			if highest.Run.SetBeside(a.shown); beside != 0 {
				highest.Run.Beside = beside
			} else if a.foreign && limits.Memory != 0 {
				return usagef("--memory needs --beside too, such as --beside 1GiB: a snapshot of PyTorch does not say what the process holds beside PyTorch's memory. nvidia-smi shows both together")
			}
			if len(to) == 0 {
				to = []float64{2 * highest.At}
			}
			f, err := whatif.NewFit(runs)
			if err != nil {
				return fmt.Errorf("no prediction: %w", err)
			}
			if asJSON {
				return render.WriteJSON(os.Stdout, f.Forecast(to, limits))
			}
			if err := f.Write(os.Stdout, to, limits, whatif.Options{Width: o.Width, Color: o.Color}); err != nil {
				return err
			}
			return export.Next(os.Stdout, o, export.Command{Args: "whatif " + recording, Answers: "Would another allocator setting help"})
		},
	}
	c.Flags().Float64SliceVar(&to, "to", nil, "predict the run for this `number` (several with commas; default twice the highest); --batch is the same")
	c.Flags().Lookup("to").DefValue = ""
	c.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "batch" {
			name = "to"
		}
		return pflag.NormalizedName(name)
	})
	c.Flags().Var(amount(func(n int64) { limits.Memory = uint64(n) }), "memory", "say whether that fits into a GPU with this much memory, such as 80GiB, and the largest number that does (default that of the GPU in the recordings); it counts all that the process holds on the GPU, or PyTorch's memory alone where the recordings lack the rest")
	c.Flags().Var(amount(func(n int64) { limits.Reserved = uint64(n) }), "reserved", "say which number is the largest at which PyTorch reserves no more than so much memory, such as 40GiB: what torch.cuda.set_per_process_memory_fraction allows")
	c.Flags().Var(amount(func(n int64) { beside = uint64(n) }), "beside", "say what the process holds on the GPU beside PyTorch's memory, such as 1GiB: CUDA's context, libraries. Recordings of a trace say it themselves")
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return c
}

var trailing = regexp.MustCompile(`([0-9]+(?:\.[0-9]+)?)\.[a-z]+$`)

// measured reads the recording that an argument names, with its number, and returns its file.
func measured(arg string) (m whatif.Measured, file string, err error) {
	text, file, found := strings.Cut(arg, "=")
	if !found {
		file = arg
		match := trailing.FindStringSubmatch(filepath.Base(file))
		if match == nil {
			return m, file, usagef("%s has no number at the end of its name: write the number before the file, such as 8=%s", file, file)
		}
		text = match[1]
	}
	m.At, err = strconv.ParseFloat(text, 64)
	if err != nil || !(m.At > 0) || math.IsInf(m.At, 0) {
		return m, file, usagef("%s: %q is not a number above 0", arg, text)
	}
	runs, err := whatif.Collect(file)
	if err != nil {
		return m, file, err
	}
	if len(runs) == 0 {
		return m, file, fmt.Errorf("%s has no tensors of PyTorch: record with --tensors", file)
	}
	// Of several processes the one with most tensors counts.
	for _, x := range runs {
		if m.Run == nil || len(x.Addresses) > len(m.Run.Addresses) {
			m.Run = x
		}
	}
	return m, file, nil
}
