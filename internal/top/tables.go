package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

func word(s string) cell { return cell{text: render.Plain(s)} }

func bytesCell(n int64) cell { return cell{text: bytefmt.Format(n)} }

func some(n int64) cell { return cell{text: bytefmt.Some(n)} }

// grownCell is empty at first, when growth is not known.
func grownCell(p *live.Status, n int64) cell {
	switch {
	case p.Window <= 0:
		return cell{}
	case n > 0:
		return cell{bytefmt.Signed(n), styleUp}
	case n < 0:
		return cell{bytefmt.Signed(n), styleDown}
	}
	return cell{text: "0", style: styleDim}
}

func rateCell(p *live.Status, r float64) cell {
	switch {
	case p.Interval <= 0:
		return cell{}
	case r < 0.5:
		return cell{text: "0", style: styleDim}
	}
	return cell{text: bytefmt.Format(int64(r+0.5)) + "/s"}
}

func warnSome(n int64) cell { return cell{bytefmt.Some(n), styleWarn} }

// atLeast stands before a sum of which not all is known.
func atLeast(part bool) string {
	if part {
		return "≥ "
	}
	return ""
}

// grownTitle names the time that growth is measured over.
func grownTitle(p *live.Status) string {
	if p.Window <= 0 {
		return "GROWN"
	}
	return "IN " + short(p.Window)
}

// short writes a duration in three characters or so.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Hour:
		return fmt.Sprintf("%.0fh", d.Hours())
	case d >= 10*time.Minute:
		return fmt.Sprintf("%.0fm", d.Minutes())
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d >= 100*time.Millisecond:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return fmt.Sprintf("%dms", d.Milliseconds())
}

// elapsed writes how long a trace has gone on.
func elapsed(d time.Duration) string {
	switch {
	case d >= time.Hour:
		return fmt.Sprintf("%dh%02dm%02ds", d/time.Hour, d/time.Minute%60, d/time.Second%60)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%04.1fs", d/time.Minute, (d % time.Minute).Seconds())
	}
	return fmt.Sprintf("%.2fs", d.Seconds())
}

func (m *Model) gpuTable() *table {
	gpus := m.shown.GPUs
	return &table{rows: len(gpus), of: func(i int) any { return gpus[i].Label }, columns: []column{
		{title: "GPU", by: -1, rank: 9, cell: func(i int) cell { return word(gpus[i].Label) }},
		{title: "TRACED", right: true, by: -1, rank: 8, cell: func(i int) cell {
			return cell{text: atLeast(!gpus[i].Known) + bytefmt.Format(gpus[i].Held)}
		}},
		{title: "USED", right: true, by: -1, rank: 7, cell: func(i int) cell { return some(gpus[i].Used) }},
		{title: "OF", right: true, by: -1, rank: 6, cell: func(i int) cell { return some(gpus[i].Total) }},
		{title: "UNEXPLAINED", right: true, by: -1, rank: 5, cell: func(i int) cell { return warnSome(gpus[i].Unexplained) }},
		{title: "PROCESSES", right: true, by: -1, rank: 3, cell: func(i int) cell {
			text := bytefmt.Count(int64(gpus[i].Traced))
			if gpus[i].Others > 0 {
				text += fmt.Sprintf(" of %d", gpus[i].Traced+gpus[i].Others)
			}
			return cell{text: text}
		}},
		{title: "MODEL", by: -1, rank: 2, cell: func(i int) cell { return word(gpus[i].Name) }},
		{title: "USE", by: -1, rank: 9, cell: func(i int) cell { return cell{text: bar(&gpus[i], flexible)} },
			fill: func(i, w int) cell { return cell{bar(&gpus[i], min(w, maxBar)), styleBar} }},
	}}
}

// maxBar bounds the width of a GPU's bar.
const maxBar = 80

// bar shows the used part of a GPU in w columns: "█" is of traced processes, "▒" of others.
// Where the total is not known it is as long as the most that the traced processes had.
func bar(g *live.GPU, w int) string {
	whole := cmp.Or(g.Total, g.Highest)
	if whole <= 0 {
		return ""
	}
	scale := bytefmt.Percent(max(g.Used, g.Held), whole) + " "
	if g.Total == 0 {
		scale = "most " + bytefmt.Format(whole) + " "
	}
	n := w - render.Width(scale) - 2
	if n < 1 {
		return render.Shorten(scale, w)
	}
	part := func(bytes int64) int {
		return int(float64(min(max(bytes, 0), whole))/float64(whole)*float64(n) + 0.5)
	}
	held, used := part(g.Held), part(max(g.Used, g.Held))
	return scale + "▕" + strings.Repeat("█", held) + strings.Repeat("▒", used-held) + strings.Repeat("·", n-used) + "▏"
}

// commandsFrom is the width from which on processes have their command line.
const commandsFrom = 100

// called returns what a process is called: a rank, or its name.
func (m *Model) called(pid int, name string) string {
	return render.Plain(cmp.Or(m.status.Ranks[pid], name))
}

func (m *Model) processTable() *table {
	ps := m.shown.Processes
	columns := []column{
		{title: "PID", right: true, by: -1, rank: 12, cell: func(i int) cell { return cell{text: pidText(ps[i].PID)} }},
		{title: "HOLDS", right: true, by: live.ByInuse, rank: 14, cell: func(i int) cell {
			x := &ps[i]
			return cell{text: atLeast(len(x.GPUs) > 0 && !x.Known) + bytefmt.Format(x.Held)}
		}},
		{title: "IN USE", right: true, by: -1, rank: 13, cell: func(i int) cell { return bytesCell(ps[i].Inuse) }},
		{title: grownTitle(m.status), right: true, by: live.ByGrown, rank: 11, cell: func(i int) cell { return grownCell(m.status, ps[i].Grown) }},
		{title: "RATE", right: true, by: live.ByRate, rank: 10, cell: func(i int) cell { return rateCell(m.status, ps[i].Rate) }},
		{title: "PEAK", right: true, by: live.ByPeak, rank: 9, cell: func(i int) cell { return bytesCell(ps[i].Peak) }},
		{title: "ALLOCATED", right: true, by: live.ByAllocated, rank: 5, cell: func(i int) cell { return bytesCell(ps[i].Allocated) }},
		{title: "UNEXPLAINED", right: true, by: -1, rank: 8, cell: func(i int) cell { return warnSome(ps[i].Unexplained) }},
		{title: "OOM", right: true, by: -1, rank: 7, cell: func(i int) cell { return cell{bytefmt.SomeCount(ps[i].OutOfMemory), styleWarn} }},
		{title: "OBJECTS", right: true, by: live.ByObjects, rank: 4, cell: func(i int) cell { return cell{text: bytefmt.Count(ps[i].LiveObjects)} }},
		{title: "MANAGED", right: true, by: -1, rank: 3, cell: func(i int) cell { return some(ps[i].Managed) }},
		{title: "HOST", right: true, by: -1, rank: 3, cell: func(i int) cell { return some(ps[i].Host) }},
		{title: "GPU", by: -1, rank: 6, cell: func(i int) cell { return word(strings.Join(ps[i].GPUs, ",")) }},
		{title: "USER", by: -1, rank: 11, cell: func(i int) cell { return word(render.Shorten(render.Plain(ps[i].User), 12)) }},
		{title: "WORKLOAD", by: -1, rank: 5, cell: func(i int) cell { return word(render.Shorten(render.Plain(ps[i].Home()), 30)) }},
		{title: "PROCESS", by: live.ByName, rank: 15, cell: func(i int) cell {
			x := &ps[i]
			name := m.called(x.PID, x.Name)
			switch {
			case x.Exited:
				name += " (exited)"
			case x.Difference != nil && *x.Difference != 0:
				return cell{name + ": nvidia-smi says " + bytefmt.Signed(*x.Difference), styleWarn}
			case x.Difference != nil:
				name += ", as nvidia-smi says"
			}
			return cell{text: name}
		}},
	}
	if m.width >= commandsFrom && slices.ContainsFunc(ps, func(x live.Process) bool { return x.Command != "" }) {
		columns = append(columns, column{title: "COMMAND", by: -1, rank: 16, cell: func(i int) cell { return word(ps[i].Command) }})
	}
	return &table{rows: len(ps), of: func(i int) any { return ps[i].PID }, columns: columns}
}

func (m *Model) ownerTable() *table {
	os := m.shown.Owners
	total := m.shown.OnGPUs.Inuse
	return &table{rows: len(os), of: func(i int) any { return os[i].Name }, columns: []column{
		{title: "IN USE", right: true, by: live.ByInuse, rank: 9, cell: func(i int) cell { return bytesCell(os[i].Inuse) }},
		{title: "OF ALL", right: true, by: -1, rank: 6, cell: func(i int) cell { return cell{text: bytefmt.Percent(os[i].Inuse, total)} }},
		{title: grownTitle(m.status), right: true, by: live.ByGrown, rank: 8, cell: func(i int) cell { return grownCell(m.status, os[i].Grown) }},
		{title: "RATE", right: true, by: live.ByRate, rank: 7, cell: func(i int) cell { return rateCell(m.status, os[i].Rate) }},
		{title: "OWNER", by: live.ByName, rank: 10, cell: func(i int) cell { return word(cmp.Or(os[i].Name, "unknown")) }},
	}}
}

func (m *Model) stackTable() *table {
	xs := m.shown.Stacks
	at := func(f func(x *live.Stack) cell) func(int) cell { return func(i int) cell { return f(xs[i]) } }
	columns := []column{
		{title: "IN USE", right: true, by: live.ByInuse, rank: 15, cell: at(func(x *live.Stack) cell { return bytesCell(x.Sample.InuseBytes) })},
		{title: grownTitle(m.status), right: true, by: live.ByGrown, rank: 14, cell: at(func(x *live.Stack) cell { return grownCell(m.status, x.Grown) })},
		{title: "RATE", right: true, by: live.ByRate, rank: 13, cell: at(func(x *live.Stack) cell { return rateCell(m.status, x.Rate) })},
		{title: "OBJECTS", right: true, by: live.ByObjects, rank: 8, cell: at(func(x *live.Stack) cell { return cell{text: bytefmt.Count(x.Sample.InuseObjects)} })},
		{title: "PEAK", right: true, by: live.ByPeak, rank: 7, cell: at(func(x *live.Stack) cell { return bytesCell(x.Sample.PeakBytes) })},
		{title: "ALLOCATED", right: true, by: live.ByAllocated, rank: 6, cell: at(func(x *live.Stack) cell { return bytesCell(x.Sample.AllocBytes) })},
		{title: "OWNER", by: -1, rank: 10, cell: at(func(x *live.Stack) cell { return word(render.Shorten(render.Plain(x.Sample.Owner), 12)) })},
		{title: "HOLDER", by: -1, rank: 9, cell: at(func(x *live.Stack) cell { return word(render.Shorten(render.Plain(x.Holder()), 40)) })},
		{title: "KIND", by: -1, rank: 5, cell: at(func(x *live.Stack) cell { return word(x.Sample.Kind) })},
		{title: "CATEGORY", by: -1, rank: 4, cell: at(func(x *live.Stack) cell { return word(x.Sample.Category) })},
		{title: "API", by: -1, rank: 3, cell: at(func(x *live.Stack) cell { return word(render.Shorten(render.Plain(x.Sample.API), 28)) })},
	}
	h := m.here()
	if h.GPU == nil && len(m.status.GPUs) > 1 {
		columns = append(columns, column{title: "GPU", by: -1, rank: 9, cell: at(func(x *live.Stack) cell { return word(x.Sample.GPU) })})
	}
	if h.PID == nil && len(m.status.Processes) > 1 {
		columns = append(columns, column{title: "PID", right: true, by: -1, rank: 11, cell: at(func(x *live.Stack) cell { return cell{text: pidText(x.Sample.PID)} })})
	}
	columns = append(columns, column{title: "STACK", stack: true, by: live.ByName, rank: 16, cell: at(func(x *live.Stack) cell { return cell{text: x.Text()} })})
	return &table{rows: len(xs), of: func(i int) any { return xs[i].ID }, columns: columns,
		find: func(chosen any) int {
			id, _ := chosen.(live.ID)
			return slices.IndexFunc(xs, func(x *live.Stack) bool { return x.ID == id })
		}}
}

// lineTable has the causes of a process's memory, on each GPU.
func (m *Model) lineTable() *table {
	type line struct {
		gpu, name, note string
		bytes, of       int64
	}
	var lines []line
	for i := range m.shown.Accounts {
		a := &m.shown.Accounts[i]
		for _, l := range a.Lines {
			lines = append(lines, line{a.GPU, l.Name, l.Note, l.Bytes, a.Total})
		}
	}
	columns := []column{
		{title: "BYTES", right: true, by: -1, rank: 9, cell: func(i int) cell { return bytesCell(lines[i].bytes) }},
		{title: "OF ALL", right: true, by: -1, rank: 8, cell: func(i int) cell { return cell{text: bytefmt.Percent(lines[i].bytes, lines[i].of)} }},
	}
	if len(m.shown.Accounts) > 1 {
		columns = append(columns, column{title: "GPU", by: -1, rank: 7, cell: func(i int) cell { return word(lines[i].gpu) }})
	}
	columns = append(columns, column{title: "WHAT", by: -1, rank: 10, cell: func(i int) cell {
		text := render.Plain(lines[i].name)
		if lines[i].note != "" {
			text += ": " + render.Plain(lines[i].note)
		}
		return cell{text: text}
	}})
	return &table{rows: len(lines), of: func(i int) any { return lines[i].gpu + " " + lines[i].name }, columns: columns}
}

// frameTable is the stack that was opened, leaf first. Native frames are folded beside Python
// frames, unless the user asked for them.
func (m *Model) frameTable(x *live.Stack) *table {
	type frame struct{ name, file, module string }
	var frames []frame
	stack := x.Sample.Frames()
	if !m.native {
		stack = stacks.Fold(stacks.NativeNone, stack)
	}
	for _, l := range stack {
		for i := range l.Lines {
			f := frame{name: render.Plain(l.Lines[i].Function), file: render.Where(render.Plain(l.Lines[i].File), l.Lines[i].Line)}
			if l.Mapping != nil {
				f.module = render.Plain(l.Mapping.Path[strings.LastIndexByte(l.Mapping.Path, '/')+1:])
			}
			frames = append(frames, f)
		}
	}
	names := max(m.width*3/5, 20)
	return &table{rows: len(frames), of: func(i int) any { return i }, columns: []column{
		{title: "FRAME", by: -1, rank: 9, cell: func(i int) cell { return cell{text: render.Shorten(frames[i].name, names)} }},
		{title: "IN", by: -1, rank: 1, cell: func(i int) cell { return cell{text: render.Shorten(frames[i].module, 24), style: styleDim} }},
		{title: "LINE", by: -1, rank: 5, cell: func(i int) cell { return cell{text: frames[i].file, style: styleDim} }},
	}}
}

// allocationTable is the live allocations of the stack that was opened, the youngest
// first.
func (m *Model) allocationTable() *table {
	rows := m.rows
	at := m.status.Meta.Start.Add(m.rowsAt)
	return &table{rows: len(rows), of: func(i int) any { return [2]uint64{rows[i].Address, rows[i].Handle} }, columns: []column{
		{title: "SIZE", right: true, by: -1, rank: 9, cell: func(i int) cell { return bytesCell(rows[i].Size) }},
		{title: "BYTES", right: true, by: -1, rank: 5, cell: func(i int) cell { return cell{text: bytefmt.Count(rows[i].Size)} }},
		{title: "AGE", right: true, by: -1, rank: 8, cell: func(i int) cell { return cell{text: short(max(at.Sub(rows[i].Time), 0))} }},
		{title: "MADE AT", right: true, by: -1, rank: 6, cell: func(i int) cell { return cell{text: elapsed(max(rows[i].Time.Sub(m.status.Meta.Start), 0))} }},
		{title: "ADDRESS", by: -1, rank: 10, cell: func(i int) cell {
			if rows[i].Handle != 0 {
				return cell{text: fmt.Sprintf("handle 0x%x", rows[i].Handle)}
			}
			return cell{text: fmt.Sprintf("0x%x", rows[i].Address)}
		}},
	}}
}

// named returns the labels of a stack in words.
func (m *Model) named(x *live.Stack) string {
	parts := []string{"process " + m.called(x.Sample.PID, x.Sample.Process) + " (" + pidText(x.Sample.PID) + ")"}
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+" "+render.Plain(value))
		}
	}
	add("GPU", x.Sample.GPU)
	add("kind", x.Sample.Kind)
	add("owner", x.Sample.Owner)
	add("by", x.Sample.API)
	add("category", x.Sample.Category)
	add("operator", x.Sample.Operator)
	add("module", x.Sample.Module)
	if snapshot.OnGPU(x.Sample.Kind) {
		add("for", snapshot.Cause(x.Sample))
	}
	return strings.Join(parts, ", ")
}
