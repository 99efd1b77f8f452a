package server

import "github.com/gpumemtrace/gpumemtrace/internal/output/html"

// wholePage is the page, as it is until its script renews what changes.
func wholePage(v *view) html.Node {
	return document("GPU memory on "+v.Host, html.Script(script.address()),
		html.Div(html.ID("now"), nowPart(v)),
		timelinePart(),
		flamePart(&v.Choice),
		endPart(v),
		html.P(html.ID("failed"), html.Role("alert"), html.Hidden),
		html.NoScript(quietLine("Without JavaScript the page does not renew itself, and draws no timeline and no flame graph.")),
	)
}

func timelinePart() html.Node {
	return section("Memory over time",
		html.Div(html.Class("bar"),
			html.H2(html.Text("Over time")),
			html.Div(html.ID("places"), html.Role("tablist"), html.AriaLabel("GPU")),
			zoomButtons(),
		),
		html.Div(html.ID("chart"), html.TabIndex("0"), html.Role("application"), html.AriaDescribedBy("keys"), html.AriaLabel("Memory over time, by owner")),
		html.Div(html.ID("tip"), html.Hidden),
		html.Ul(html.ID("legend")),
		html.P(html.ID("here"), html.Role("status"), html.AriaLive("polite")),
		html.P(html.ID("keys"), html.Class("quiet"), html.Text("By owner, a note each second of the last hour and the highest of each minute before. Drag to zoom. Keys on the chart: ← → one note, + − 0 zoom, [ ] move.")),
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

func flamePart(c *choice) html.Node {
	return section("What is in use, by stack",
		html.Div(html.Class("bar"),
			html.H2(html.Text("In use by stack")),
			chooser("GPU", "gpu", c.GPUs),
			chooser("Process", "pid", c.Processes),
			html.Button(html.ID("again"), html.Text("Draw again")),
		),
		html.Div(html.ID("flame"), html.Role("tree"), html.AriaLabel("Flame graph: arrow keys move, Enter zooms, Escape zooms out")),
		html.P(html.ID("frame"), html.Class("quiet"), html.Role("status"), html.AriaLive("polite")),
	)
}

// chooser lets one of several things be chosen, or all.
func chooser(label, id string, of []option) html.Node {
	one := func(o option) html.Node { return html.Option(html.Value(o.Value), html.Text(o.Text)) }
	return html.Label(html.Text(label+" "), html.Select(html.ID(id), one(option{"", "all"}), html.Each(of, one)))
}

func endPart(v *view) html.Node {
	return html.Footer(html.Class("quiet"),
		html.P(
			html.Text("For programs: "), link("/debug/pprof/", "profiles"),
			html.Text(", "), link("/api/v1/top", "/api/v1/top"),
			html.Text(", "), link("/api/v1/history", "history"),
			html.Text(", "), link("/api/v1/oom", "oom"),
			html.If(v.Metrics, html.Group(html.Text(", "), link("/metrics", "metrics"))),
			html.Text("."),
		),
		html.If(v.LoggedIn, html.Form(html.Method("post"), html.Action("/logout"), html.Button(html.Text("Log out")))),
	)
}
