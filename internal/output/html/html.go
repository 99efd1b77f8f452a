// Package html builds pages from Go functions. It has a fixed set of elements and attributes.
// It escapes text and values, and accepts no address that came from somebody else. Nothing
// reaches a page in another way.
//
// html/template would guarantee that too. But its executor finds methods by their names, so
// that the linker keeps every exported method of every type in the program.
package html

import (
	"bufio"
	"io"
	"strings"
)

// A Node is part of a page: an element, text, an attribute of the element that it is given
// to, several of them, or nil for nothing.
type Node interface{ node() }

// An Address is where something leads, on this server: a constant, or made of what the
// server itself names.
type Address string

type (
	element struct {
		name   string
		void   bool // has no contents, and no end
		inside []Node
	}
	attribute struct{ name, value string }
	flag      string // an attribute without a value
	text      string
	group     []Node
	doctype   struct{}
)

func (*element) node()  {}
func (attribute) node() {}
func (flag) node()      {}
func (text) node()      {}
func (group) node()     {}
func (doctype) node()   {}

// Text is text.
func Text(s string) Node { return text(s) }

// Group is several nodes.
func Group(all ...Node) Node { return group(all) }

// Each is a node for each of several things.
func Each[T any](all []T, node func(T) Node) Node {
	out := make(group, len(all))
	for i := range all {
		out[i] = node(all[i])
	}
	return out
}

// If is a node, or nothing.
func If(is bool, n Node) Node {
	if is {
		return n
	}
	return nil
}

// Write writes a page, or a part of one.
func Write(w io.Writer, n Node) error {
	b := bufio.NewWriter(w)
	writeContents(b, group{n})
	return b.Flush()
}

func (e *element) write(b *bufio.Writer) {
	b.WriteByte('<')
	b.WriteString(e.name)
	writeAttributes(b, e.inside)
	b.WriteByte('>')
	if e.void {
		return
	}
	writeContents(b, e.inside)
	b.WriteString("</")
	b.WriteString(e.name)
	b.WriteByte('>')
}

func writeAttributes(b *bufio.Writer, all group) {
	for _, n := range all {
		switch n := n.(type) {
		case attribute:
			b.WriteByte(' ')
			b.WriteString(n.name)
			b.WriteString(`="`)
			writeText(b, n.value)
			b.WriteByte('"')
		case flag:
			b.WriteByte(' ')
			b.WriteString(string(n))
		case group:
			writeAttributes(b, n)
		}
	}
}

func writeContents(b *bufio.Writer, all group) {
	for _, n := range all {
		switch n := n.(type) {
		case *element:
			n.write(b)
		case text:
			writeText(b, string(n))
		case group:
			writeContents(b, n)
		case doctype:
			b.WriteString("<!doctype html>")
		}
	}
}

// escape is for text between tags, and for values in quotes. No page can have a NUL.
var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;", "\x00", "\ufffd")

func writeText(b *bufio.Writer, s string) {
	_, _ = escape.WriteString(b, s) // a bufio.Writer keeps its first error for Flush
}
