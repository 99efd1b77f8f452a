package server

import (
	"fmt"
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

// outline is the page of a report with a text, as a reader of HTML sees it: a line for each
// element, attribute and text.
func outline(t *testing.T, text string) (out []string) {
	t.Helper()
	w := httptest.NewRecorder()
	sendReport(w, &incident{Number: 1, Report: text})
	all, err := parser.Parse(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	for n := range all.Descendants() {
		out = append(out, fmt.Sprint(n.Type, " ", n.Data))
		for _, a := range n.Attr {
			out = append(out, "\t"+a.Key+"="+a.Val)
		}
	}
	return out
}

// The text of a report is text on its page, whatever it is. It makes, ends and changes nothing
// else there, and no address.
func TestReportText(t *testing.T) {
	const harmless = "harmless"
	plain := outline(t, harmless)
	for _, line := range plain {
		key, value, is := strings.Cut(strings.TrimPrefix(line, "\t"), "=")
		switch {
		case !is || !strings.HasPrefix(line, "\t"), strings.HasPrefix(value, "data:image/svg+xml;base64,"):
		case key == "href", key == "src", key == "action":
			if !strings.HasPrefix(value, "/") || strings.HasPrefix(value, "//") || strings.Contains(value, harmless) {
				t.Errorf("it leads to %q", value)
			}
		case strings.HasPrefix(key, "on"), key == "style":
			t.Errorf("it has %s", line)
		}
	}
	for _, hostile := range hostileNames {
		var want []string
		for _, line := range plain {
			want = append(want, strings.ReplaceAll(line, harmless, strings.ReplaceAll(hostile, "\x00", "\ufffd")))
		}
		if d := cmp.Diff(want, outline(t, hostile)); d != "" {
			t.Errorf("of %.50q: %.2000s", hostile, d)
		}
	}
}
