package html

import (
	"errors"
	"io"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

func write(t testing.TB, n Node) string {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, n); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestWrite(t *testing.T) {
	list := Each([]int{1, 2}, func(i int) Node { return Li(Text(strings.Repeat("x", i))) })
	for want, n := range map[string]Node{
		"":        nil,
		"<p></p>": P(nil, If(false, Text("x")), Group()),
		`<ul class="a" id="b"><li>x</li><li>xx</li></ul>`:                  Ul(Class("a"), list, Group(ID("b"))),
		`<input name="a" hidden>`:                                          Input(Name("a"), Hidden, Text("not in it")),
		`<a href="/x">a<b>b</b>c</a>`:                                      A(Text("a"), B(Text("b")), Href("/x"), Text("c")),
		`<!doctype html><html lang="en"><body></body></html>`:              HTML(Lang("en"), Body()),
		`<script src="/x.js" defer></script>`:                              Script("/x.js"),
		`<svg viewBox="0 0 1 1"><rect x="0"><title>x</title></rect></svg>`: SVG(ViewBox("0 0 1 1"), Rect(X("0"), Title(Text("x")))),
		"&lt;&amp;&gt;&#34;&#39;\ufffd":                                    Text("<&>\"'\x00"),
	} {
		if got := write(t, n); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// Whatever text and a value are, a reader of the page finds them so, and nothing else.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "</p><script>x</script>", `" onclick="x`, "' x='", "<!--", "]]>", "&lt;&#x3c;&amp", "\x00<\x00b>", "\r\n\n\r", "\xff\xfe", "\u2028", strings.Repeat("<", 10_000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := html.Parse(strings.NewReader(write(t, HTML(Body(P(Class(s), Text("."+s)))))))
		if err != nil {
			t.Fatal(err)
		}
		want := strings.NewReplacer("\x00", "\ufffd", "\r\n", "\n", "\r", "\n").Replace(s) // as HTML says
		p := n.LastChild.LastChild.FirstChild
		if p.Data != "p" || len(p.Attr) != 1 || p.Attr[0].Val != want {
			t.Errorf("%+v has %+v, want %q", p, p.Attr, want)
		}
		if c := p.FirstChild; c == nil || c.Type != html.TextNode || c.Data != "."+want || c.NextSibling != nil || p.NextSibling != nil {
			t.Errorf("%+v, want %q", c, want)
		}
	})
}

// A page that cannot be written is told.
func TestWriteFails(t *testing.T) {
	r, w := io.Pipe()
	broken := errors.New("broken")
	r.CloseWithError(broken)
	if err := Write(w, Text("x")); !errors.Is(err, broken) {
		t.Error(err)
	}
}
