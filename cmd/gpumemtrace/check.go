package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/findings"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/output/timeline"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

const checkExamples = `  gpumemtrace check run.gmt --max-peak 20GiB
  gpumemtrace check run.gmt --max-growth-per-step 1MiB --no-finding growth,second-gpu
  gpumemtrace check run.gmt --against base.gmt --within 2%
  gpumemtrace check run.gmt --no-finding all --format github   # annotations of a pull request; or junit`

// A checkCommand compares a recording with what a team has agreed on.
type checkCommand struct {
	peak, growth            *int64 // bytes, nil if not given
	within, against, format string
	without                 []string
}

// checkFormats are how conditions are written: lines, JUnit's XML, annotations of GitHub, or JSON.
var checkFormats = []string{"text", "junit", "github", "json"}

// A condition is one thing that was checked.
type condition struct {
	name, says string
	failed     bool
	skipped    bool  // it was not asked for by name, and the recording lacks what it needs
	costs      int64 // bytes, of a finding
}

// result is how a condition went.
func (c *condition) result() string {
	switch {
	case c.failed:
		return "failed"
	case c.skipped:
		return "skipped"
	}
	return "passed"
}

func newCheck() *cobra.Command {
	var k checkCommand
	c := &cobra.Command{
		Use:     "check RUN",
		Short:   "Fail if a recording needs more memory than allowed, or has a fault: for continuous integration",
		Example: checkExamples,
		Args:    exactly(1, "one recording"),
		RunE:    func(_ *cobra.Command, args []string) error { return k.run(args[0]) },
	}
	c.Flags().Var(amount(func(n int64) { k.peak = &n }), "max-peak", "the most that may be held on GPUs at the peak, such as 20GiB")
	c.Flags().Var(amount(func(n int64) { k.growth = &n }), "max-growth-per-step", "the most by which tensors may grow with each training step, on average over the later half of the steps, such as 1MiB")
	c.Flags().StringSliceVar(&k.without, "no-finding", nil, "fail for these findings (several with commas): "+strings.Join(findings.Names(), ", ")+", or all that the recording can show")
	c.Flags().StringVar(&k.against, "against", "", "another recording, whose peak may not be exceeded")
	c.Flags().StringVar(&k.within, "within", "2%", "by how much the peak may exceed that of --against")
	c.Flags().StringVar(&k.format, "format", "text", "text, junit (XML), github (annotations) or json")
	return c
}

func (k *checkCommand) run(path string) error {
	within, err := strconv.ParseFloat(strings.TrimSuffix(k.within, "%"), 64)
	switch {
	case err != nil || !(within >= 0 && within <= 1000): // NaN is no percentage
		return usagef("--within %s: give a percentage, such as 2%%", k.within)
	case !slices.Contains(checkFormats, k.format):
		return usagef("--format %s: use %s", k.format, strings.Join(checkFormats, ", "))
	case k.peak == nil && k.growth == nil && k.without == nil && k.against == "":
		return usagef("nothing to check: give --max-peak, --max-growth-per-step, --no-finding or --against")
	}
	names := findings.Names()
	for _, name := range k.without {
		if name != "all" && !slices.Contains(names, name) {
			return usagef("--no-finding %s: use all, or %s", name, strings.Join(names, ", "))
		}
	}
	x, err := findingsNeed.answer(path)
	if err != nil {
		return err
	}
	if !x.recorded {
		return usagef("%s is a profile: check needs a recording (--record)", path)
	}
	var checked []condition
	peak := heldOnGPUs(x.shown)
	if k.peak != nil {
		checked = append(checked, condition{name: "max-peak", says: fmt.Sprintf("the peak is %s, and may be %s", bytefmt.Format(peak), bytefmt.Format(*k.peak)), failed: peak > *k.peak})
	}
	if k.growth != nil {
		checked = append(checked, growthOf(x.moment.End, *k.growth)...)
	}
	if k.without != nil {
		checked = append(checked, faults(x.wrong(path), k.without)...)
	}
	if k.against != "" {
		base, err := findingsNeed.answer(k.against)
		if err != nil {
			return err
		}
		was := heldOnGPUs(base.shown)
		c := condition{name: "against", failed: float64(peak) > float64(was)*(1+within/100),
			says: fmt.Sprintf("the peak is %s, and that of %s is %s: %+.1f %% (at most +%g %%)", bytefmt.Format(peak), k.against, bytefmt.Format(was), 100*float64(peak-was)/float64(max(was, 1)), within)}
		if c.failed {
			c.says += fmt.Sprintf(". What grew: gpumemtrace diff %s %s", k.against, path)
		}
		checked = append(checked, c)
	}
	if err := writeChecked(os.Stdout, path, checked, k.format); err != nil {
		return err
	}
	if slices.ContainsFunc(checked, func(c condition) bool { return c.failed }) {
		return exitError(exitFailed)
	}
	return nil
}

// findingsNeed asks a recording for all that findings need.
var findingsNeed = question{peak: true, want: state.Want{Driver: true, Live: true, Steps: true, Holders: true}}

// wrong is what is wrong in the recording at path, of which a is what findingsNeed asks.
func (a *answer) wrong(path string) *findings.Verdict {
	return findings.Find(a.shown, a.moment.End, tried(path, a.shown, false)...)
}

// foundIn is what a page says is wrong in a recording: nothing if nothing is, or if that cannot be read.
func foundIn(path string) []timeline.Passage {
	x, err := findingsNeed.answer(path)
	if err != nil || x.moment == nil {
		return nil
	}
	p := timeline.Passage{Title: "What is wrong", At: x.moment.At}
	for _, f := range x.wrong(path).Findings {
		p.Says = append(p.Says, f.Says+" "+f.Change)
	}
	if p.Says == nil {
		return nil
	}
	return []timeline.Passage{p}
}

// heldOnGPUs is what a moment holds on all GPUs, in bytes.
func heldOnGPUs(s *snapshot.Snapshot) (sum int64) {
	for i := range s.Samples {
		if snapshot.OnGPU(s.Samples[i].Kind) {
			sum += s.Meta.Held(&s.Samples[i].Values)
		}
	}
	return sum
}

// growthOf checks by how much tensors grew over the later half of the training steps of each process.
func growthOf(end *snapshot.Snapshot, most int64) (out []condition) {
	for _, s := range end.Steps {
		later := s.Last[len(s.Last)/2:]
		if len(later) < 2 {
			continue
		}
		each := (later[len(later)-1].InuseBytes - later[0].InuseBytes) / int64(len(later)-1)
		out = append(out, condition{name: "max-growth-per-step", failed: each > most,
			says: fmt.Sprintf("%s (%d) grows by %s a training step, and may by %s", s.Process, s.PID, bytefmt.Format(each), bytefmt.Format(most))})
	}
	if out == nil {
		out = append(out, condition{name: "max-growth-per-step", says: "cannot be checked: the recording has fewer than three training steps (record with --tensors)", failed: true})
	}
	return out
}

// faults checks that findings are not there.
func faults(v *findings.Verdict, without []string) (out []condition) {
	for _, r := range findings.Rules {
		named := slices.Contains(without, r.Name)
		if !named && !slices.Contains(without, "all") {
			continue
		}
		if need, lacks := v.Lacks(r.Name); lacks {
			out = append(out, condition{name: r.Name, says: fmt.Sprintf("cannot be looked for: trace %s", need), failed: named, skipped: !named})
			continue
		}
		found := v.Of(r.Name)
		if len(found) == 0 {
			out = append(out, condition{name: r.Name, says: "not found: " + r.Cause})
		}
		for _, f := range found {
			out = append(out, condition{name: r.Name, says: f.Says + " " + f.Change, failed: true, costs: f.Bytes})
		}
	}
	return out
}

// writeChecked writes a line, a test case or an annotation for each condition.
func writeChecked(w io.Writer, path string, checked []condition, format string) (err error) {
	print := func(text string, values ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, text, values...)
		}
	}
	failed := 0
	for i := range checked {
		c := &checked[i]
		c.says = render.Clean(c.says) // programs choose names
		if c.failed {
			failed++
		}
	}
	switch format {
	case "json":
		t := table.New(table.Names("check", "result", "costs_bytes", "says")...)
		for i := range checked {
			t.Add(checked[i].name, checked[i].result(), checked[i].costs, checked[i].says)
		}
		return t.JSON(w)
	case "junit":
		print("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"gpumemtrace check\" tests=\"%d\" failures=\"%d\">\n", len(checked), failed)
		defer func() { print("</testsuite>\n") }()
	}
	for _, c := range checked {
		switch {
		case format == "junit" && c.failed:
			print("  <testcase classname=\"%s\" name=\"%s\"><failure message=\"%s\"/></testcase>\n", web.Escape(path), c.name, web.Escape(c.says))
		case format == "junit" && c.skipped:
			print("  <testcase classname=\"%s\" name=\"%s\"><skipped message=\"%s\"/></testcase>\n", web.Escape(path), c.name, web.Escape(c.says))
		case format == "junit":
			print("  <testcase classname=\"%s\" name=\"%s\"/>\n", web.Escape(path), c.name)
		case format == "github" && c.failed:
			// Its line ends, and percent signs, are data of the annotation.
			print("::error title=gpumemtrace %s::%s\n", c.name, strings.NewReplacer("%", "%25", "\n", "%0A", "\r", "%0D").Replace(path+": "+c.says))
		case format == "github": // what holds needs no annotation
		default:
			print("%-7s %s: %s\n", c.result(), c.name, c.says)
		}
	}
	return err
}
