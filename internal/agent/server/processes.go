package server

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
)

// A processTable is the memory of processes, or of groups of them.
type processTable struct {
	Grouped bool
	Groups  []groupView
	More    int // processes without a row
}

// A column is one of processes. It is shown where a row has something in it. Those of who a
// process is have no sum.
type column struct {
	class, head string
	of          func(*processView) string
	sum         func(*figures) string
}

func figureColumn(class, head string, of func(*figures) string) column {
	return column{class, head, func(x *processView) string { return of(&x.Figures) }, of}
}

// columns are those of a table. A narrow screen shows the first ones.
var columns = []column{
	figureColumn("n", "HELD", func(x *figures) string { return x.Held }),
	figureColumn("", "GPU", func(x *figures) string { return x.GPUs }),
	{"n", "PID", func(x *processView) string { return strconv.Itoa(x.PID) }, nil},
	{"name", "NAME", func(x *processView) string { return x.Name }, nil},
	{"name", "USER", func(x *processView) string { return x.User }, nil},
	{"name", "WORKLOAD", func(x *processView) string { return x.Workload }, nil},
	figureColumn("n", "PEAK", func(x *figures) string { return x.Peak }),
	figureColumn("n", "IN USE", func(x *figures) string { return x.Inuse }),
	figureColumn("n", "GROWN", func(x *figures) string { return x.Grown }),
	figureColumn("n", "NO CAUSE", func(x *figures) string { return x.Unexplained }),
	figureColumn("n", "ALLOCATES", func(x *figures) string { return x.Rate }),
	figureColumn("", "FAILED", func(x *figures) string { return x.Failed }),
	{"name", "COMMAND", func(x *processView) string { return x.Command }, nil},
}

// shown returns the columns that have something.
func (t *processTable) shown() (out []column) {
	for _, c := range columns {
		if slices.ContainsFunc(t.Groups, func(g groupView) bool {
			return slices.ContainsFunc(g.Processes, func(x processView) bool { return c.of(&x) != "" })
		}) {
			out = append(out, c)
		}
	}
	return out
}

// processesPart shows the memory of each process, or of groups of them.
func processesPart(v *view) html.Node {
	title := html.H2(html.Text("Processes "), quiet(v.Meaning))
	if len(v.Processes.Groups) == 0 {
		return section("Processes", title, quietLine("None is traced."))
	}
	return section("Processes", title, tablePart(&v.Processes))
}

func tablePart(t *processTable) html.Node {
	shown := t.shown()
	return html.Group(
		html.Div(html.Class("scroll some"), html.TabIndex("0"), html.Table(html.Class("rows"),
			html.THead(html.Tr(html.Each(shown, func(c column) html.Node { return headCell(c.class, c.head) }))),
			html.TBody(html.Each(t.Groups, func(g groupView) html.Node {
				return html.Group(html.If(t.Grouped, groupRow(&g, shown)), html.Each(g.Processes, func(x processView) html.Node { return processRow(&x, shown) }))
			})),
		)),
		html.If(t.More > 0, quietLine(fmt.Sprintf("And %d more.", t.More))),
	)
}

// groupRow has the sums of a group, before the rows of its processes. Its name is where they
// say who they are.
func groupRow(g *groupView, shown []column) html.Node {
	count := "1 process"
	if g.Count != 1 {
		count = fmt.Sprintf("%d processes", g.Count)
	}
	begin := slices.IndexFunc(shown, func(c column) bool { return c.sum == nil })
	end := begin + slices.IndexFunc(append(slices.Clone(shown[begin:]), columns[0]), func(c column) bool { return c.sum != nil })
	sums := func(c column) html.Node {
		if c.sum == nil {
			return rowCell("", "")
		}
		return rowCell(c.class, c.sum(&g.Sum))
	}
	return html.Tr(html.Class("sum"),
		html.Each(shown[:begin], sums),
		html.Th(html.Scope("rowgroup"), html.ColSpan(strconv.Itoa(end-begin)), html.Class("name"), html.Tooltip(g.Name), html.Text(g.Name), html.Text(" "), quiet(count)),
		html.Each(shown[end:], sums),
	)
}

func processRow(x *processView, shown []column) html.Node {
	return html.Tr(html.If(x.Ended != "", html.Class("gone")), html.Each(shown, func(c column) html.Node {
		text := c.of(x)
		switch c.head {
		case "NAME":
			return html.Td(html.Class("name"), html.Text(text), html.If(x.Ended != "", html.Group(html.Text(" "), quiet(x.Ended))))
		case "USER", "WORKLOAD", "COMMAND":
			return html.Td(html.Class("name"), html.Tooltip(text), html.Text(text))
		}
		return rowCell(c.class, text)
	}))
}
