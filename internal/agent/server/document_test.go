package server

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	parser "golang.org/x/net/html"

	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
)

// hostileNames are names as a traced program may choose them.
var hostileNames = []string{
	"</script><script>hacked=1</script>", "<img src=x onerror=hacked=1>", "\"><b class=hacked>", "--><!--", "' onmouseover='hacked=1", "\u2028\u2029'+hacked=1+'", "\x00\x1b[2J\a\u202e", strings.Repeat("x", 10_000),
	"&lt;&#x3c;", "{{.}}", "javascript:hacked=1", "bad\xff\xfe",
}

// fill makes each text that a value has, however deep, what text returns of its path, and
// nothing zero.
func fill(v reflect.Value, path string, text func(path string) string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text(path))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(2)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), fmt.Sprintf("%s[%d]", path, i), text)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), path+"."+v.Type().Field(i).Name, text)
			}
		}
	default:
		panic("a view has a " + v.Type().String())
	}
}

// outlines are the pages of views with such texts, as a reader of HTML sees them: a line for
// each element, attribute and text.
func outlines(t *testing.T, text func(path string) string) map[string][]string {
	t.Helper()
	var v view
	fill(reflect.ValueOf(&v).Elem(), "", text)
	in := incident{Number: 1, Report: text(".Report")}
	out := map[string][]string{}
	for name, page := range map[string]html.Node{"page": wholePage(&v), "now": nowPart(&v), "report": reportPage(&in)} {
		var b bytes.Buffer
		if err := html.Write(&b, page); err != nil {
			t.Fatal(err)
		}
		all, err := parser.Parse(&b)
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

// Every text of a view is text or an attribute's value on the pages, whatever it is, and
// makes, ends and changes nothing else there, and no address.
func TestViewText(t *testing.T) {
	const harmless = "harmless"
	plain := outlines(t, func(string) string { return harmless })
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
		for name, got := range outlines(t, func(string) string { return hostile }) {
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

// The pages show all that a view says.
func TestViewShown(t *testing.T) {
	paths := map[string]bool{}
	all := outlines(t, func(path string) string {
		paths[path] = true
		return "(" + path + ")"
	})
	delete(paths, ".Version") // About has it
	for path := range paths {
		if !strings.Contains(strings.Join(append(all["page"], all["report"]...), "\n"), "("+path+")") {
			t.Errorf("no page shows %s", path)
		}
	}
}
