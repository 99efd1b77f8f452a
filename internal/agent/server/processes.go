package server

import (
	"fmt"
	"strconv"

	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
)

// processesPart is what each process holds.
func processesPart(v *view) html.Node {
	title := html.H2(html.Text("Processes"))
	if len(v.Processes) == 0 {
		return section("Processes", title, quietLine("None is traced."))
	}
	row := func(x processView) html.Node { return processRow(&x, v.Workloads) }
	return section("Processes", title,
		html.Div(html.Class("scroll some"), html.TabIndex("0"), html.Table(html.Class("rows"),
			html.THead(processHead(v.Workloads)),
			html.TBody(html.Each(v.Processes, row)),
		)),
		html.If(v.MoreProcesses > 0, quietLine(fmt.Sprintf("And %d more.", v.MoreProcesses))),
	)
}

func processHead(workloads bool) html.Node {
	return html.Tr(
		headCell("n", "PID"),
		headCell("", "NAME"),
		html.If(workloads, headCell("", "WORKLOAD")),
		headCell("n", "HELD"),
		headCell("n", "IN USE"),
		headCell("n", "GROWN"),
		headCell("", "GPU"),
		headCell("n", "PEAK"),
		headCell("n", "NO CAUSE"),
		headCell("n", "ALLOCATES"),
		headCell("", "FAILED"),
	)
}

func processRow(x *processView, workloads bool) html.Node {
	return html.Tr(html.If(x.Exited, html.Class("gone")),
		rowCell("n", strconv.Itoa(x.PID)),
		html.Td(html.Class("name"), html.Text(x.Name), html.If(x.Exited, html.Group(html.Text(" "), quiet("ended")))),
		html.If(workloads, rowCell("name", x.Workload)),
		rowCell("n", x.Held),
		rowCell("n", x.Inuse),
		rowCell("n", x.Grown),
		rowCell("", x.GPUs),
		rowCell("n", x.Peak),
		rowCell("n", x.Unexplained),
		rowCell("n", x.Rate),
		rowCell("", x.Failed),
	)
}
