package server

import "github.com/gpumemtrace/gpumemtrace/internal/output/html"

// gpusPart is what the memory of each GPU is used for.
func gpusPart(all []gpuView) html.Node {
	gpus := html.Each(all, gpuBox)
	if len(all) == 0 {
		gpus = html.Group(quietLine("No traced process holds memory on a GPU, and NVML was not asked."))
	}
	return section("GPUs", html.Class("gpus"), gpus)
}

func gpuBox(x gpuView) html.Node {
	return html.Article(
		html.H2(html.Text("GPU "+x.Label+" "), quiet(x.Name)),
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
