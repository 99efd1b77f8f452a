package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/output/timeline"
	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

const diffExamples = `  gpumemtrace diff monday.gmt tuesday.gmt           # two runs, each at its peak
  gpumemtrace diff monday.gmt tuesday.gmt -o page.html # also the page of tuesday, with monday as an outline
  gpumemtrace diff run.gmt                          # what grew in one recording after its first training step
  gpumemtrace diff run.gmt --before 5m --after peak # two moments of one recording
  gpumemtrace diff run.gmt --before peak-1s --after peak --by module
  gpumemtrace diff train.000001.pb.gz train.000009.pb.gz
  gpumemtrace diff --ranks rank*.gmt                # the ranks of a job: what is the same, and which rank differs`

// A diffCommand compares two files, two moments of one, or the ranks of a job.
type diffCommand struct {
	opts          export.Options
	first, second moment
	by, patterns  []string
	ranks         bool
	rows          rowFlags
	page          outputFlags
	span          replay.Span  // of the one recording
	end           *state.State // nil for several
}

func newDiff() *cobra.Command {
	d := diffCommand{opts: layout(os.Stdout)}
	c := &cobra.Command{
		Use:     "diff BEFORE [AFTER]",
		Short:   "Print what changed between two runs, two profiles, or two moments of a recording",
		Example: diffExamples,
		Args:    d.args,
		RunE:    func(_ *cobra.Command, args []string) error { return d.run(args) },
	}
	c.Flags().Var(&d.first, "before", "the moment of BEFORE, if it is a recording: "+momentHelp+"; the default is the peak, or the end if BEFORE and AFTER are the same file. For one recording alone, the default is the end of its first training step, or without steps a quarter of the way from its first allocation to its last growth")
	c.Flags().Var(&d.second, "after", "the moment of AFTER, in the same form. For one recording alone, it is a moment of that one, and the default is the end of its last training step, or without steps its last growth")
	c.Flags().Var(&d.second, "at", "with --ranks: the moment at which to compare the ranks")
	c.Flags().StringArrayVar(&d.patterns, "pattern", nil, "as in report --by pattern: `NAME=REGEXP`")
	c.Flags().StringSliceVar(&d.by, "by", nil, "group rows by these, as in report --by (several with commas)")
	addPageFlags(c.Flags(), &d.page, "also write the page of AFTER, with the memory of BEFORE as an outline")
	c.Flags().BoolVar(&d.ranks, "ranks", false, "compare the ranks of a job, given as one file for each rank or as one file with all processes: show what is the same in all ranks, and how each rank differs")
	d.rows.add(c.Flags(), "the rows of --by, or of --ranks,")
	c.Flags().IntVarP(&d.opts.Top, "top", "n", 0, "rows of each table (default 10, and 4 for stacks; negative for all)")
	return c
}

func (d *diffCommand) args(_ *cobra.Command, args []string) error {
	switch {
	case d.ranks && (d.first.given() && d.second.given() || len(args) == 0):
		return usagef("--ranks needs a recording or profile of each rank, or one file with all processes; --at gives one moment for all")
	case d.ranks:
	case len(args) != 1 && len(args) != 2:
		return usagef("give two profiles or recordings, or one recording, not %d (--ranks takes several)", len(args))
	}
	return nil
}

func (d *diffCommand) run(args []string) (err error) {
	if d.opts.By, err = parseBy(d.by, d.patterns); err != nil {
		return usageError{err}
	}
	if d.opts.By.Parts() {
		return usagef("diff cannot group by %s: use gpumemtrace report --by", strings.Join(d.by, ","))
	}
	format, err := d.rows.format(d.opts.By != nil || d.ranks)
	if err != nil {
		return err
	}
	if d.ranks {
		if d.second.given() {
			d.first = d.second
		}
		return d.diffRanks(args, d.first, d.opts, format)
	}
	var page *output
	if d.page.output != "" {
		if page, err = d.pageOf(args); err != nil {
			return err
		}
	}
	says := ""
	if len(args) == 1 {
		args = append(args, args[0])
		if says, err = d.grown(args[0]); err != nil {
			return err
		}
	}
	same := sameFile(args[0], args[1])
	before, err := d.side(args[0], d.first, !same)
	if err != nil {
		return err
	}
	after, err := d.side(args[1], d.second, !same)
	if err != nil {
		return err
	}
	if same && before.Meta.Duration > after.Meta.Duration {
		return usagef("--before %s is after --after %s", cmp.Or(d.first.text, "end"), cmp.Or(d.second.text, "end"))
	}
	if page != nil {
		if err := comparedPage(page, args, before, after); err != nil {
			return err
		}
		defer newLogger(&d.page).wrote(page)
	}
	if format != "" {
		return export.DiffRows(before, after, d.opts).Write(os.Stdout, format)
	}
	if _, err := os.Stdout.WriteString(says); err != nil {
		return err
	}
	if err := export.Diff(os.Stdout, before, after, d.opts); err != nil {
		return err
	}
	return d.next(args, same)
}

// grown chooses the moments of one recording that were not given, and says which. What a program makes only
// once is no growth, nor is what it holds during a training step.
func (d *diffCommand) grown(path string) (says string, err error) {
	if d.span, d.end, err = measure(path); err != nil || d.first.given() {
		return "", err
	}
	span, end := d.span, d.end
	// Moments are whole microseconds, which people can read. A call that took memory has returned by then.
	from, to := span.First+(span.Grew-span.First)/4, span.Grew+time.Microsecond-1
	fromIs, toIs := "a quarter of the way from the first allocation to the last growth", "when memory grew last"
	steps := end.View(state.Want{Steps: true}).Snapshot().Steps
	if i := slices.IndexFunc(steps, func(s snapshot.Steps) bool { return len(s.Last) > 1 }); i >= 0 {
		ended := func(s *snapshot.Step) (time.Duration, string) {
			return s.Begin.Add(s.Took).Sub(span.Start), fmt.Sprintf("the end of training step %d", s.Number)
		}
		from, fromIs = ended(&steps[i].Last[0])
		fromIs += ", when what is made once is there"
		to, toIs = ended(&steps[i].Last[len(steps[i].Last)-1])
	}
	from, to = from.Truncate(time.Microsecond), to.Truncate(time.Microsecond)
	switch {
	case !d.second.given() && to > span.End: // within its last microsecond
		err = d.second.Set("end")
	case !d.second.given():
		err = d.second.Set(to.String())
	default:
		toIs = "--after"
		if to, err = d.second.in(span); to <= from {
			from, fromIs = 0, "the beginning of the trace"
		}
	}
	return fmt.Sprintf("What grew from %v (%s) to %v (%s). Of the whole run: --before 0s --after end.\n", from.Round(time.Millisecond), fromIs, to.Round(time.Millisecond), toIs), errors.Join(err, d.first.Set(from.String()))
}

// next names what follows a comparison: as a page, or of one recording what happened in between.
func (d *diffCommand) next(args []string, same bool) error {
	var commands []export.Command
	recordings := !slices.ContainsFunc(args, userfile.IsProfile)
	switch {
	case same && recordings:
		commands = append(commands, export.Command{Args: "report " + args[0] + " --leaks", Answers: "Whether it leaks, and what holds that"})
		if from := d.first.flag("from"); from != "" {
			commands = append(commands, export.Command{Args: "report " + args[0] + from + d.second.flag("to"), Answers: "What was allocated and freed in between"})
		}
	case recordings && d.page.output == "":
		commands = append(commands, export.Command{Args: "diff " + strings.Join(args, " ") + " -o page.html", Answers: "Both over time, as a page"})
	}
	if d.opts.By == nil {
		files := args
		if same {
			files = args[:1]
		}
		again := "diff " + strings.Join(files, " ") + d.first.flag("before") + d.second.flag("after")
		commands = append(commands, export.Command{Args: again + " --by line,category", Answers: "What the memory of each line is for"})
	}
	if commands == nil {
		return nil
	}
	return export.Next(os.Stdout, d.opts, commands...)
}

// pageOf returns where the page of -o goes.
func (d *diffCommand) pageOf(args []string) (*output, error) {
	if len(args) == 1 || sameFile(args[0], args[1]) {
		return nil, usagef("-o needs two different recordings: it draws the first as an outline on the page of the second. To compare moments of one recording, make its page with gpumemtrace convert %s page.html", args[0])
	}
	return pageOutput(&d.page)
}

// comparedPage writes the page of the second of two recordings, with outlines of what GPUs held in
// the first, and with their differences.
func comparedPage(page *output, paths []string, before, after export.Side) error {
	name := filepath.Base(paths[0])
	outlines, err := timeline.Outlines(paths[0], name, replay.Options{At: replay.End})
	if err != nil {
		return err
	}
	says, tables := export.Differences(before, after)
	c := &timeline.Comparison{Title: filepath.Base(paths[1]) + ", compared with " + name, Passage: timeline.Passage{Title: "Differences", Says: says, Tables: tables}}
	return writePage(page, paths[1], outlines, c)
}

// side reads a file at a moment, or else at its peak or its end.
func (d *diffCommand) side(path string, at moment, peak bool) (export.Side, error) {
	a, err := question{at: at, peak: peak && !at.given(), by: d.by, want: state.Want{Driver: true, Holders: true}, span: d.span, end: d.end}.answer(path)
	if err != nil {
		return export.Side{}, err
	}
	name := filepath.Base(path)
	switch {
	case !a.recorded:
		for i := range a.shown.Samples {
			v := &a.shown.Samples[i].Values
			v.InuseBytes = a.shown.Meta.Held(v)
		}
	case at.given():
		name += " at " + at.text
	case peak:
		name += " at its peak"
	default:
		name += " at its end"
	}
	return export.Side{Snapshot: a.shown, Name: name}, nil
}

// diffRanks compares the files of a job's ranks, or the processes of one file.
func (d *diffCommand) diffRanks(paths []string, at moment, opts export.Options, format table.Format) error {
	var ranks []export.Side
	for _, path := range paths {
		s, err := d.side(path, at, true)
		if err != nil {
			return err
		}
		s.Name = strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".gz"), filepath.Ext(strings.TrimSuffix(path, ".gz")))
		ranks = append(ranks, s)
	}
	if len(ranks) == 1 {
		ranks = export.Split(ranks[0].Snapshot)
	}
	if len(ranks) < 2 {
		return fmt.Errorf("%s has one process that holds memory on a GPU: give a file of each rank", paths[0])
	}
	if format != "" {
		return export.RanksRows(ranks, opts).Write(os.Stdout, format)
	}
	when := " at " + at.text
	if !at.given() {
		when = " at their peaks"
		if len(paths) == 1 {
			when = " at the peak of all"
		}
	}
	if opts.By != nil {
		return export.Ranks(os.Stdout, ranks, when, opts)
	}
	next := []export.Command{{Args: "diff --ranks " + strings.Join(paths, " ") + at.flag("at") + " --by category", Answers: "What the memory in which they differ is for"}}
	if len(paths) == 1 {
		next = append(next, export.Command{Args: "report " + paths[0] + at.flag("at"), Answers: "What is wrong, and what to change"})
	}
	return export.Ranks(os.Stdout, ranks, when, opts, next...)
}
