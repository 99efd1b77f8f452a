package holders

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/output/findings"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// rows returns the rows of the report, or the differences between its two readings.
func (r *Report) rows(exact bool) []row {
	v := views[r.By]
	now := r.storages(r.Reading)
	if r.Before == nil {
		return v.rows(now, r.Reading, exact)
	}
	then := r.storages(r.Before)
	var rows []row
	if r.By == Shape { // tensors of a shape may have come and gone
		rows = append(v.rows(changed(then, now), r.Reading, exact), negative(v.rows(changed(now, then), r.Before, exact))...)
	} else {
		rows = v.between(v.rows(then, r.Before, exact), v.rows(now, r.Reading, exact))
	}
	sortRows(rows, v.order...)
	return rows
}

// Table writes the answer in a sentence, and the rows for people: o.Top of them, 20 by default.
func (r *Report) Table(w io.Writer, o export.Options) error {
	page := render.NewPage(w, o.Width, o.Color)
	page.Line("%s", r.Answer())
	page.Line("%s", r.facts())
	findings.FindInHeap(snapshot.Heap{PID: r.PID, Reading: r.Reading}).Show(page, false)
	v := views[r.By]
	rows := r.rows(false)
	switch {
	case len(rows) == 0 && r.Before == nil:
		page.Line("No object alone keeps memory.")
	case len(rows) == 0:
		then, now := r.storages(r.Before), r.storages(r.Reading)
		if len(changed(then, now))+len(changed(now, then)) == 0 {
			page.Line("Nothing was added, and nothing is gone.")
		} else {
			page.Line("No row differs from before.")
		}
	default:
		change := ""
		if r.Before != nil {
			change = ", what came (+) and went (-)"
		}
		page.Heading("%s%s: %s", v.title, change, bytefmt.Counted(len(rows), "row"))
		r.table(page, v, rows, o)
	}
	r.cycles(page)
	lost := r.loss()
	if len(lost) > 0 {
		page.Heading("Not read")
	}
	for _, c := range lost {
		page.Warn("  %d %s (%s)", c.Value, c.Help, c.Name)
	}
	return page.Flush("write table")
}

// loss returns what was lost by the reading, or by both, without zeros.
func (r *Report) loss() (out []loss.Counter) {
	all := r.Reading.Loss
	if r.Before != nil {
		all = slices.Concat(r.Before.Loss, all)
	}
	for _, c := range all {
		i := slices.IndexFunc(out, func(o loss.Counter) bool { return o.Name == c.Name })
		switch {
		case c.Value == 0:
		case i >= 0:
			out[i].Value += c.Value
		default:
			out = append(out, c)
		}
	}
	return out
}

// facts say what was read.
func (r *Report) facts() string {
	x := r.Reading
	words := []string{runtime(x), bytefmt.Counted(int64(min(x.Objects, 1<<62)), "object") + fmt.Sprintf(" read in %.2f s", float64(x.End-min(x.Begin, x.End))/1e9)}
	if arrays := r.arrays(); len(arrays) > 0 {
		words = append(words, fmt.Sprintf("%s of JAX (%s) by their shapes", bytefmt.Counted(len(arrays), "array"), bytefmt.Format(total(arrays))))
	}
	if x.NoAllocators != "" {
		words = append(words, "what is cached is not known: "+x.NoAllocators)
	}
	if r.CPU {
		return strings.Join(words, ", ")
	}
	if cpu := total(which(x, (*holder.Storage).OnCPU)); cpu > 0 {
		words = append(words, fmt.Sprintf("tensors in the CPU's memory (%s) are left out", bytefmt.Format(cpu)))
	}
	return strings.Join(words, ", ")
}

func (r *Report) table(page *render.Page, v *view, rows []row, o export.Options) {
	share := -1 // the figure whose part of all is shown
	if r.Before == nil && r.By != Retainer && len(v.order) == 1 {
		share = v.order[0]
	}
	t := &table.Table{}
	for i, c := range v.figures {
		c.Signed = r.Before != nil
		t.Columns = append(t.Columns, c)
		if i == share {
			t.Columns = append(t.Columns, table.Share("OF ALL"))
		}
	}
	t.Columns = append(t.Columns, v.keys...)
	sums := v.sum(rows)
	add := func(below []string, figures []int64, keys ...string) {
		var cells []any
		for i, n := range figures {
			cells = append(cells, n)
			if i == share {
				cells = append(cells, table.Part{Of: n, Whole: sums[i]})
			}
		}
		t.AddAbove(below, append(cells, table.Texts(keys)...)...)
	}
	named := func(name string, figures []int64) {
		keys := make([]string, len(v.keys))
		keys[v.name] = name
		add(nil, figures, keys...)
	}
	top := o.Most(len(rows), 20)
	for _, x := range rows[:top] {
		var below []string
		if x.below != "" && r.Before == nil {
			below = []string{x.below}
		}
		add(below, x.figures, x.keys...)
	}
	more := bytefmt.Counted(len(rows)-top, "row") + " more"
	if r.By == Retainer { // one object's memory is part of another's: no sum of rows is of use
		t.Text(page)
		if top < len(rows) {
			page.Line("  %s", more)
		}
		return
	}
	if top < len(rows) {
		named(more, v.sum(rows[top:]))
	}
	named("all", sums)
	t.Text(page)
}

// sum returns the sums of the figures of rows.
func (v *view) sum(rows []row) []int64 {
	sums := make([]int64, len(v.figures))
	for i := range rows {
		for j, n := range rows[i].figures {
			sums[j] += n
		}
	}
	return sums
}

// cycles says how much memory waits for the garbage collector, and how much it never frees.
func (r *Report) cycles(page *render.Page) {
	var found, stuck, gradients []*holder.Storage
	for _, s := range r.storages(r.Reading) {
		switch {
		case s.Cycle:
			found = append(found, s)
		case s.Stuck():
			stuck = append(stuck, s)
			if strings.HasSuffix(s.Holder, holder.GradientCycle) {
				gradients = append(gradients, s)
			}
		}
	}
	if len(found) > 0 {
		page.Heading("Held by reference cycles alone: %s in %s", bytefmt.Format(total(found)), bytefmt.Counted(len(found), "storage"))
		page.Line("  The program cannot reach them any more. They are freed when Python's garbage collector runs (gc.collect()).")
	}
	if len(stuck) == 0 {
		return
	}
	page.Heading("Held by reference cycles that no garbage collector frees: %s in %s", bytefmt.Format(total(stuck)), bytefmt.Counted(len(stuck), "storage"))
	page.Line("  The program cannot reach them any more, and the cycles lead through C++, where Python's garbage collector does not look.")
	if len(gradients) > 0 {
		page.Line("  To break one of a gradient, set .grad to None after each backward pass with create_graph=True, or use torch.autograd.grad().")
	}
	if len(stuck) > len(gradients) {
		page.Line("  To break one of a custom Function, do not keep in ctx what it returns, or what was computed from that: use ctx.save_for_backward().")
	}
}

// CSV writes a row for each path, parameter, shape or object, in bytes. With two readings,
// the figures are differences, and memory that is gone is negative.
func (r *Report) CSV(w io.Writer) error {
	t := table.New(views[r.By].columns()...)
	for _, x := range r.rows(true) {
		t.Add(x.cells()...)
	}
	return t.CSV(w)
}

// columns returns those that other programs get.
func (v *view) columns() []table.Column { return slices.Concat(v.keys, v.figures) }

// cells returns those that other programs get.
func (x *row) cells() []any {
	cells := table.Texts(x.keys)
	for _, n := range x.figures {
		cells = append(cells, n)
	}
	return cells
}

// An allocator is what JSON has of one: its sums, its own statistics, and its segments by private pool and
// class.
type allocator struct {
	Device int32 `json:"device"`
	holder.Sum
	Figures *holder.Figures     `json:"statistics"`
	Classes []snapshot.Segments `json:"classes"`
}

// JSONVersion changes when a reader of the JSON output must change.
const JSONVersion = 1

// JSON writes the report as one object: the answer, the rows of the view, and every
// storage and every retainer of the reading.
func (r *Report) JSON(w io.Writer) error {
	x := r.Reading
	out := render.NewJSONWriter(w, "\n", "  ")
	out.Field("schema_version", JSONVersion)
	out.Field("pid", r.PID)
	out.Field("process", r.Process)
	out.Field("answer", r.Answer())
	out.Field("by", r.By)
	out.Field("bytes", total(r.storages(x)))
	out.Field("on_gpus_bytes", r.OnGPUs) // NVML's figure, 0 if it is not known
	if r.Before != nil {
		out.Field("between_ns", int64(x.End-r.Before.End))
	}
	out.Field("runtime", x.Runtime)
	out.Field("framework", x.Framework)
	out.Field("begin_ns", x.Begin)
	out.Field("end_ns", x.End)
	out.Field("objects", x.Objects)
	columns := views[r.By].columns()
	render.List(out, "rows", r.rows(true), func(x *row) { out.Value(table.Object(columns, x.cells())) })
	render.List(out, "storages", r.storages(x), func(s **holder.Storage) {
		one := **s
		if one.Shape == nil {
			one.Shape = []int64{} // the shape of a scalar
		}
		out.Value(&one)
	})
	render.List(out, "retainers", x.Retainers, func(x *holder.Retainer) { out.Value(x) })
	render.List(out, "allocators", x.Allocators, func(a *holder.Allocator) { out.Value(allocator{a.Device, a.Sum(), a.Figures, segments(a)}) })
	if x.NoAllocators != "" {
		out.Field("no_allocators", x.NoAllocators)
	}
	render.List(out, "loss", x.Loss, func(c *loss.Counter) { out.Value(c) })
	return out.Close()
}
