package server

import "github.com/gpumemtrace/gpumemtrace/internal/output/html"

// wholePage returns the whole page. Its script replaces nowPart later.
func wholePage(v *view) html.Node {
	return document("GPU memory on "+v.Host, html.Script(script().address()),
		choosersPart(&v.Choice),
		html.Div(html.ID("now"), nowPart(v)),
		timelinePart(),
		flamePart(),
		endPart(v),
		html.P(html.ID("failed"), html.Role("alert"), html.Hidden),
		html.NoScript(quietLine("Without JavaScript the page does not renew itself, and draws no timeline and no flame graph.")),
	)
}

func timelinePart() html.Node {
	return section("Memory over time",
		html.Div(html.Class("bar"),
			html.H2(html.Text("Over time "), html.Span(html.ID("of"), html.Class("quiet"))),
			html.Span(html.Class("buttons"), html.Role("group"), html.AriaLabel("Divided by"),
				html.Button(html.ID("grouping"), html.Text("By process")),
				html.Button(html.ID("owners"), html.Text("By owner")),
			),
			zoomButtons(),
		),
		html.Div(html.ID("chart"), html.TabIndex("0"), html.Role("application"), html.AriaDescribedBy("keys"), html.AriaLabel("Memory over time")),
		html.Div(html.ID("tip"), html.Hidden),
		html.Ul(html.ID("legend")),
		html.P(html.ID("here"), html.Role("status"), html.AriaLive("polite")),
		html.P(html.ID("keys"), html.Class("quiet"), html.Text("A note each second of the last hour and the highest of each minute before, in UTC. Drag to zoom. Keys on the chart: ← → one note, + − 0 zoom, [ ] move. A click, or Enter, shows who held what then.")),
	)
}

func zoomButtons() html.Node {
	sign := func(id, does, key, text string) html.Node {
		return html.Button(html.ID(id), html.Tooltip(does+" ("+key+")"), html.AriaLabel(does), html.Text(text))
	}
	return html.Span(html.Class("buttons"), html.Role("group"), html.AriaLabel("Zoom"),
		sign("out", "Zoom out", "−", "−"),
		sign("in", "Zoom in", "+", "+"),
		sign("left", "Move left", "[", "◀"),
		sign("right", "Move right", "]", "▶"),
		html.Button(html.ID("quarter"), html.Text("15 min")),
		html.Button(html.ID("hour"), html.Text("1 h")),
		html.Button(html.ID("all"), html.Tooltip("Show all (0)"), html.Text("All")),
	)
}

func flamePart() html.Node {
	return section("What is in use, by stack",
		html.Div(html.Class("bar"),
			html.H2(html.Text("In use by stack")),
			html.Button(html.ID("again"), html.Text("Draw again")),
		),
		html.Div(html.ID("flame"), html.Role("tree"), html.AriaLabel("Flame graph: arrow keys move, Enter zooms, Escape zooms out")),
		html.P(html.ID("frame"), html.Class("quiet"), html.Role("status"), html.AriaLive("polite")),
	)
}

func endPart(v *view) html.Node {
	return html.Footer(html.Class("quiet"),
		html.P(
			html.Text("For programs: "), link("/debug/pprof/", "profiles"),
			html.Text(", "), link("/api/v1/top", "/api/v1/top"),
			html.Text(", "), link("/api/v1/history", "history"),
			html.Text(", "), link("/api/v1/events", "events"),
			html.Text(", "), link("/api/v1/oom", "oom"),
			html.If(v.Metrics, html.Group(html.Text(", "), link("/metrics", "metrics"))),
			html.Text("."),
		),
	)
}
