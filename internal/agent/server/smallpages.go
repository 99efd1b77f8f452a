package server

import (
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
)

// reportPage shows an out-of-memory report.
func reportPage(in *incident) html.Node {
	return document(fmt.Sprintf("Out of GPU memory: report %d", in.Number), nil,
		html.P(link("/", "GPU memory")),
		html.Pre(html.Class("report"), html.Text(in.Report)),
	)
}

// A profileLink is a link to a profile, with a description.
type profileLink struct {
	to   html.Address
	text string
}

// profilesPage lists the profiles.
func profilesPage(all []profileLink) html.Node {
	const name = "/debug/pprof/"
	line := func(p profileLink) html.Node { return html.Li(link(p.to, string(p.to)), html.Text(" "+p.text)) }
	return document(name, nil, html.Class("small"), html.H1(html.Text(name)), html.Ul(html.Each(all, line)))
}
