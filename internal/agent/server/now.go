package server

import (
	"fmt"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
)

// nowPart returns the part of the page that changes.
func nowPart(v *view) html.Node {
	return html.Group(titlePart(v), choicesPart(&v.Choice), eventsPart(&v.Events), pastPart(&v.Past), gpusPart(v.GPUs, v.NoGPUs), processesPart(v), stacksPart(v), windowsPart(v), notesPart(v.Notes))
}

func titlePart(v *view) html.Node {
	return html.Header(
		html.H1(html.Text("GPU memory on "+v.Host)),
		html.P(html.Text(strings.Join(v.About, " · "))),
		html.If(v.Ended != "", html.P(html.B(html.Text(v.Ended)))),
	)
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
		html.Summary(html.Text(fmt.Sprintf("%d %s about what is not known or was lost", len(notes), word))),
		html.Ul(list(notes)),
	)
}
