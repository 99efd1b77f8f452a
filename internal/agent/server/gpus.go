package server

import "github.com/gpumemtrace/gpumemtrace/internal/output/html"

// gpusPart shows the use of each GPU's memory.
func gpusPart(all []gpuView, none string) html.Node {
	return section("GPUs", html.H2(html.Text("Now")), html.Div(html.Class("gpus"), html.Each(all, gpuBox)), html.If(none != "", quietLine(none)))
}

func gpuBox(x gpuView) html.Node {
	name := html.Text("GPU " + x.Label)
	if x.to != "" {
		name = link(x.to, "GPU "+x.Label)
	}
	return html.Article(
		html.H2(name, html.Text(" "), quiet(x.Name)),
		html.P(html.Text(x.Amount)),
		html.Each(x.Bars, barAndParts),
	)
}

func barAndParts(b bar) html.Node {
	by := "by " + b.By
	return html.Group(
		html.H3(html.Text(by)),
		html.SVG(html.Class("memory"), html.ViewBox("0 0 1000 20"), html.PreserveAspectRatio("none"), html.Role("img"), html.AriaLabel(by),
			html.Each(b.Parts, partBox)),
		html.Ul(html.Class("parts"), html.Each(b.Parts, partLine)),
	)
}

func partBox(p part) html.Node {
	return html.Rect(html.Class(p.Class), html.X(p.X), html.Y("0"), html.Width(p.Width), html.Height("20"), html.Title(html.Text(p.Name+": "+p.Bytes)))
}

func partLine(p part) html.Node {
	return html.Li(html.Span(html.Class("swatch "+p.Class)), html.Text(p.Name+" "), html.B(html.Text(p.Bytes)))
}
