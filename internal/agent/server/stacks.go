package server

import (
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
)

// stacksPart shows the memory of each call stack.
func stacksPart(v *view) html.Node {
	const name = "Stacks that hold most"
	return section(name,
		html.H2(html.Text(name+" "), html.If(v.Window != "", quiet("grown: in the last "+v.Window))),
		html.Div(html.Class("scroll"), html.Table(html.Class("rows"),
			html.THead(stackHead()),
			html.TBody(html.Each(v.Stacks, stackRow)),
		)),
		html.If(v.MoreStacks > 0, quietLine(fmt.Sprintf("And %d more: see the flame graph.", v.MoreStacks))),
	)
}

func stackHead() html.Node {
	return html.Tr(
		headCell("n", "IN USE"),
		headCell("n", "GROWN"),
		headCell("n wide", "LIVE"),
		headCell("wide", "OWNER"),
		headCell("wide", "KIND"),
		headCell("wide", "GPU"),
		headCell("wide", "PROCESS"),
		headCell("", "STACK"),
	)
}

func stackRow(x stackView) html.Node {
	return html.Tr(
		rowCell("n", x.Bytes),
		rowCell("n", x.Grown),
		rowCell("n wide", x.Objects),
		rowCell("name wide", x.Owner),
		rowCell("wide", x.Kind),
		rowCell("wide", x.GPU),
		rowCell("name wide", x.Process),
		html.Td(html.Class("s"), html.Details(html.DataKey(x.Key), html.Summary(html.Text(x.Title)), html.If(x.Holder != "", quietLine("held by "+x.Holder)), html.Ol(list(x.Frames)))),
	)
}
