package server

import (
	"strconv"

	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
)

func (a *asset) address() html.Address { return html.Address(a.path) }

func reportAddress(number int64) html.Address {
	return html.Address("/oom/" + strconv.FormatInt(number, 10))
}

// document returns a whole page. head is more for its head, and may be nil.
func document(title string, head html.Node, body ...html.Node) html.Node {
	return html.HTML(html.Lang("en"),
		html.Head(
			html.Meta(html.Charset("utf-8")),
			html.Meta(html.Name("viewport"), html.Content("width=device-width, initial-scale=1")),
			html.Meta(html.Name("color-scheme"), html.Content("light dark")),
			html.Meta(html.Name("robots"), html.Content("noindex")),
			html.Link(html.Rel("stylesheet"), html.Href(style().address())),
			html.Link(html.Rel("icon"), html.Href(icon().address())),
			html.Title(html.Text(title)),
			head,
		),
		html.Body(body...),
	)
}

// section returns a part of a page with a name.
func section(name string, children ...html.Node) html.Node {
	return html.Section(html.AriaLabel(name), html.Group(children...))
}

func link(to html.Address, text string) html.Node { return html.A(html.Href(to), html.Text(text)) }

// class returns the class of an element, none for "".
func class(name string) html.Node {
	if name == "" {
		return nil
	}
	return html.Class(name)
}

func quiet(text string) html.Node { return html.Span(html.Class("quiet"), html.Text(text)) }

func quietLine(text string) html.Node { return html.P(html.Class("quiet"), html.Text(text)) }

// list returns an item for each text.
func list(texts []string) html.Node {
	return html.Each(texts, func(text string) html.Node { return html.Li(html.Text(text)) })
}

// headCell returns the head of a column, and rowCell its cell in a row.
func headCell(of, text string) html.Node {
	return html.Th(html.Scope("col"), class(of), html.Text(text))
}

func rowCell(of, text string) html.Node { return html.Td(class(of), html.Text(text)) }
