package server

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	parser "golang.org/x/net/html"
)

// hostileNames are names as a traced program may choose them.
var hostileNames = []string{
	"</script><script>hacked=1</script>", "<img src=x onerror=hacked=1>", "\"><b class=hacked>", "--><!--", "' onmouseover='hacked=1", "\u2028\u2029'+hacked=1+'", "\x00\x1b[2J\a\u202e", strings.Repeat("x", 10_000),
	"&lt;&#x3c;", "{{.}}", "javascript:hacked=1", "bad\xff\xfe",
}

// outlines are the pages with such a text, as a reader of HTML sees them: a line for each
// element, attribute and text.
func outlines(t *testing.T, text string) map[string][]string {
	t.Helper()
	in := incident{Number: 1, Report: text}
	out := map[string][]string{}
	for name, page := range map[string]func(http.ResponseWriter){"report": func(w http.ResponseWriter) { sendReport(w, &in) }} {
		w := httptest.NewRecorder()
		page(w)
		all, err := parser.Parse(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		for n := range all.Descendants() {
			out[name] = append(out[name], fmt.Sprint(n.Type, " ", n.Data))
			for _, a := range n.Attr {
				out[name] = append(out[name], "\t"+a.Key+"="+a.Val)
			}
		}
	}
	return out
}

// Every text of a report is text or an attribute's value on the pages, whatever it is, and
// makes, ends and changes nothing else there, and no address.
func TestReportText(t *testing.T) {
	const harmless = "harmless"
	plain := outlines(t, harmless)
	for name, lines := range plain {
		for _, line := range lines {
			key, value, is := strings.Cut(strings.TrimPrefix(line, "\t"), "=")
			switch {
			case !is || !strings.HasPrefix(line, "\t"):
			case key == "href", key == "src", key == "action":
				if !strings.HasPrefix(value, "/") || strings.HasPrefix(value, "//") || strings.Contains(value, harmless) {
					t.Errorf("%s leads to %q", name, value)
				}
			case strings.HasPrefix(key, "on"), key == "style":
				t.Errorf("%s has %s", name, line)
			}
		}
	}
	for _, hostile := range hostileNames {
		for name, got := range outlines(t, hostile) {
			var want []string
			for _, line := range plain[name] {
				want = append(want, strings.ReplaceAll(line, harmless, strings.ReplaceAll(hostile, "\x00", "\ufffd")))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s of %.50q: %.2000s", name, hostile, d)
			}
		}
	}
}
