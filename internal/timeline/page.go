package timeline

import (
	"bufio"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html"
	"io"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/web"
)

//go:embed page/*.js page/page.html
var assets embed.FS

func asset(name string) string {
	b, err := assets.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(b)
}

// script returns all that the page runs.
func script() string {
	return web.Script(asset("page/data.js"), asset("page/table.js"), asset("page/map.js"), asset("page/main.js"))
}

// source returns how a Content-Security-Policy names an inline script or style.
func source(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// write writes the page.
func (d *document) write(to io.Writer) error {
	w := bufio.NewWriterSize(to, 1<<16)
	js, css := "\n"+script(), "\n"+web.Style()
	policy := "default-src 'none'; script-src " + source(js) + "; style-src " + source(css) + "; base-uri 'none'; form-action 'none'"
	head, rest, _ := strings.Cut(asset("page/page.html"), "<!--data-->")
	head = strings.NewReplacer("<!--policy-->", html.EscapeString(policy), "<!--title-->", html.EscapeString(d.meta.Title), "<!--style-->", css).Replace(head)
	w.WriteString(head)
	about, err := d.meta.json()
	if err != nil {
		return err
	}
	for _, x := range []struct {
		id      string
		content [][]byte
	}{{"meta", [][]byte{about}}, {"changes", d.changeColumns()}, {"lives", d.lifeColumns()}} {
		fmt.Fprintf(w, "<script type=\"application/gzip\" id=\"%s\">", x.id)
		if err := packed(w, x.content...); err != nil {
			return err
		}
		w.WriteString("</script>\n")
	}
	w.WriteString(strings.Replace(rest, "<!--script-->", js, 1))
	return w.Flush()
}
