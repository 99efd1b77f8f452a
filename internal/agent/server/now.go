package server

import (
	"fmt"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
)

// nowPart is the part of the page that changes.
func nowPart(v *view) html.Node {
	return html.Group(titlePart(v), incidentsPart(v.Incidents), gpusPart(v.GPUs), processesPart(v), stacksPart(v), notesPart(v.Notes))
}

func titlePart(v *view) html.Node {
	return html.Header(
		html.H1(html.Text("GPU memory on "+v.Host)),
		html.P(html.Text(strings.Join(v.About, " · "))),
		html.If(v.Ended != "", html.P(html.B(html.Text(v.Ended)))),
	)
}

func incidentsPart(all []incidentView) html.Node {
	if len(all) == 0 {
		return nil
	}
	return section("Out of memory",
		html.H2(html.Text("Out of memory")),
		html.Ul(html.Class("reports"), html.Each(all, incidentLine)),
	)
}

func incidentLine(in incidentView) html.Node {
	text := in.Process + " asked for " + in.Asked
	if in.GPU != "" {
		text += " on GPU " + in.GPU
	}
	return html.Li(link(reportAddress(in.Number), text), html.Text(" "), quiet(in.Time+", "+in.Came))
}

func notesPart(notes []string) html.Node {
	if len(notes) == 0 {
		return nil
	}
	word := "notes"
	if len(notes) == 1 {
		word = "note"
	}
	return html.Details(html.ID("notes"), html.DataKey("notes"),
		html.Summary(html.Text(fmt.Sprintf("%d %s on what is not known, or was lost", len(notes), word))),
		html.Ul(list(notes)),
	)
}
