package export

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/findings"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// OutOfMemory writes one page about a failure for want of memory: the request, who refused it and
// what would help; the GPU that ran out, the processes on it, and the causes of the process's memory
// there; its stack; the other GPUs; and the stacks that held most.
func OutOfMemory(w io.Writer, o *snapshot.OutOfMemory) error {
	return OutOfMemories(w, "", []*snapshot.OutOfMemory{o})
}

// OutOfMemories writes such pages about failures of one recording, file, and what was lost up to the
// latest of them.
func OutOfMemories(w io.Writer, file string, all []*snapshot.OutOfMemory) error {
	page := render.NewPage(w, 140, false)
	for _, o := range all {
		outOfMemory(page, o.ByRank())
	}
	latest := slices.MaxFunc(all, func(a, b *snapshot.OutOfMemory) int { return a.Time.Compare(b.Time) })
	page.Losses(loss.Telling(latest.Snapshot.Loss), nil)
	about(page, latest.Snapshot.Notes)
	if file != "" {
		afterFailure(page, file, all[0])
	}
	return page.Flush("write out-of-memory report")
}

func outOfMemory(page *render.Page, o *snapshot.OutOfMemory) {
	heading, says := Answers(o)
	page.Heading("%s", heading)
	for _, text := range says {
		page.Line("%s", text)
	}

	for i := range o.GPUs {
		if o.GPUs[i].GPU == o.GPU {
			gpuPage(page, &o.GPUs[i], o.PID)
		}
	}
	causes(page, o)
	inTensors(page, o)
	keepers(page, o)
	title, frames := withoutNative("Where", o.Stack)
	page.Heading("%s", title)
	for _, l := range frames {
		for _, line := range l.Lines {
			page.Line("  %s", frameText(line))
		}
	}
	for i := range o.GPUs {
		if o.GPUs[i].GPU != o.GPU {
			gpuPage(page, &o.GPUs[i], o.PID)
		}
	}
	var others []snapshot.Account
	for _, a := range o.Snapshot.Accounts {
		if a.PID != o.PID || a.GPU != o.GPU {
			others = append(others, a)
		}
	}
	accounts(page, others, "")
	stackRows(page, o.Snapshot, "What held the memory", Options{})
}

// Answers returns what a page about a failure begins with: its heading, and the sentences before
// the tables.
func Answers(o *snapshot.OutOfMemory) (heading string, says []string) {
	o = o.ByRank()
	helps := []string{prefixed("What would help: ", advice(o)), prefixed("Replayed with other settings of PyTorch's allocator: ", o.Predicted)}
	if strings.HasPrefix(o.Predicted, "With ") { // a setting serves the request
		helps = []string{"What would help: another setting of PyTorch's allocator. " + o.Predicted, prefixed("Or: ", advice(o))}
	}
	unused := ""
	if parts := unusedParts(o); len(parts) > 0 {
		unused = "The process could give back at most: " + strings.Join(parts, ", ") + "."
	}
	had, where := "", o.API
	if f := o.Framework; f != nil {
		had = fmt.Sprintf("When %s gave up, it had reserved %s, and %s of that was in tensors.", f.Name, bytefmt.Format(f.Reserved), bytefmt.Format(f.Allocated))
		if strings.Contains(where, "reportOutOfMemory") { // by which it says so
			where = f.Name + "'s allocator"
		}
	}
	if o.GPU != "" {
		where += " on GPU " + o.GPU
	}
	heading = fmt.Sprintf("Out of GPU memory: %s (%d) asked for %s%s", o.Process, o.PID, bytefmt.Format(wanted(o)), atLine(o))
	says = slices.Concat([]string{refusal(o), limit(o), again(o)}, findings.Find(o.Snapshot, o.Snapshot).Sentences(), helps, []string{
		prefixed("Other settings of PyTorch's allocator: ", o.Unpredicted), heldThen(o), had, unused, fits(o), elsewhere(o), pieces(o),
		fmt.Sprintf("It was at %s, in thread %d, in %s.", o.Time.UTC().Format(time.RFC3339Nano), o.Thread, where),
	})
	return heading, slices.DeleteFunc(says, func(text string) bool { return text == "" })
}

// afterFailure names the commands that answer the next questions.
func afterFailure(page *render.Page, file string, o *snapshot.OutOfMemory) {
	at := " --at oom"
	if o.Recovered {
		at = " --at " + o.Time.Sub(o.Snapshot.Meta.Start).String()
	}
	commands := []Command{{"report " + file + " --by line" + at, "Which lines held the memory then"}}
	if !o.Recovered {
		before, seconds := "oom-10s", "ten seconds"
		if o.Time.Sub(o.Snapshot.Meta.Start) < 10*time.Second {
			before, seconds = "oom-1s", "second"
		}
		commands = append(commands, Command{"diff " + file + " --before " + before + " --after oom", "What grew, and went, in the " + seconds + " before"})
	}
	if o.Allocator != nil {
		commands = append(commands, Command{"report " + file + " --segments" + at, "What was fragmented, and what only cached"},
			Command{"whatif " + file, "Would another allocator setting help"})
	}
	nextCommands(page, append(commands, thePage(file), theWords))
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// inTensors writes the categories of the process's tensors on the GPU that ran out, the
// program's own lines that made them, and how its segments are divided.
func inTensors(page *render.Page, o *snapshot.OutOfMemory) {
	var samples []*snapshot.Sample
	for i := range o.Snapshot.Samples {
		if s := &o.Snapshot.Samples[i]; there(o, s) && isTensor(s) && s.InuseBytes != 0 {
			samples = append(samples, s)
		}
	}
	tensorsBy(page, "category", table.Text("CATEGORY"), samples, func(s *snapshot.Sample) string { return cmp.Or(s.Category, absent("category", s)) })
	tensorsBy(page, "line of the program", table.Text("LINE"), samples, func(s *snapshot.Sample) string { return cmp.Or(ownLine(s), absent("line", s)) })
	if o.Allocator != nil {
		allocators(page, []snapshot.Allocator{*o.Allocator}, "")
	}
}

// maxTensorRows bounds a table of tensors.
const maxTensorRows = 10

// tensorsBy writes the tensors with the same name as one row, the largest first.
func tensorsBy(page *render.Page, what string, column table.Column, samples []*snapshot.Sample, name func(*snapshot.Sample) string) {
	rows, all := gather(samples, name), sumOf(samples).InuseBytes
	keys := sorting.Largest(rows, (*group).inuse)
	if len(keys) == 0 {
		return
	}
	shown := keys[:min(maxTensorRows, len(keys))]
	page.Heading("Tensors by %s: %d of %d", what, len(shown), len(keys))
	t := table.New(table.Bytes("IN USE"), table.Share("OF ALL"), table.SomeCount("TENSORS"), column)
	for _, key := range shown {
		g := rows[key]
		t.Add(g.InuseBytes, table.Part{Of: g.InuseBytes, Whole: all}, g.InuseObjects, key)
	}
	t.Text(page)
}

// there reports whether a sample is memory of the process on the GPU that ran out.
func there(o *snapshot.OutOfMemory, s *snapshot.Sample) bool {
	return s.PID == o.PID && s.GPU == o.GPU && snapshot.OnGPU(s.Kind)
}

// unusedParts names memory that the process has on the GPU that ran out and does not use. How much
// of it can be freed depends on what else lies in the same pieces.
func unusedParts(o *snapshot.OutOfMemory) (out []string) {
	if f := o.Framework; f != nil && f.Reserved > f.Allocated && o.Allocator == nil {
		out = append(out, fmt.Sprintf("%s that %s keeps", bytefmt.Format(f.Reserved-f.Allocated), f.Name))
	}
	if a := o.Allocator; a != nil {
		sum := a.Total()
		if sum.Releasable > 0 {
			out = append(out, bytefmt.Format(sum.Releasable)+" of segments without a tensor (torch.cuda.empty_cache)")
		}
		if sum.Kept > 0 {
			out = append(out, bytefmt.Format(sum.Kept)+" of private pools, when these end")
		}
	}
	var pool int64
	for i := range o.Snapshot.Samples {
		if s := &o.Snapshot.Samples[i]; there(o, s) && snapshot.Cause(s) == snapshot.Pool {
			pool += s.InuseBytes
		}
	}
	if pool > 0 {
		out = append(out, bytefmt.Format(pool)+" that memory pools keep (cuMemPoolTrimTo)")
	}
	return out
}

// thereOf returns the samples that are there.
func thereOf(o *snapshot.OutOfMemory) []*snapshot.Sample {
	return slices.DeleteFunc(pointers(o.Snapshot.Samples), func(s *snapshot.Sample) bool { return !there(o, s) })
}

// causes writes the causes of the process's memory on the GPU that ran out.
func causes(page *render.Page, o *snapshot.OutOfMemory) {
	as := slices.Clone(o.Snapshot.Accounts)
	for i := range as {
		as[i].DriverKnown = false // the driver was asked after the failure
	}
	causeBy.show(page, thereOf(o), as, &holdings, math.MaxInt, 0) // the stacks are in a table of their own
}

func frameText(l snapshot.Line) string {
	if l.File == "" {
		return l.Function
	}
	return fmt.Sprintf("%s  %s:%d", l.Function, l.File, l.Line)
}

// gpuPage writes what the driver said of a GPU as soon as it was asked.
func gpuPage(page *render.Page, g *snapshot.GPUMemory, pid int) {
	page.Heading("GPU %s, %s: %s in all; just after: %s used, %s free", g.GPU, g.Name,
		bytefmt.Format(g.Total), bytefmt.Format(g.Used), bytefmt.Format(g.Free))
	t := table.New(table.TextRight("PID"), table.Text("PROCESS"), table.Bytes("BYTES"), table.Text(""))
	for _, p := range g.Processes {
		size := any("not known")
		if p.Known {
			size = p.Bytes
		}
		mark := ""
		if p.PID == pid {
			mark = "this one"
		}
		t.Add(p.PID, p.Name, size, mark)
	}
	if len(t.Rows) > 0 {
		t.Text(page)
	}
}
