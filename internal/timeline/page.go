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

// A dataBlock is data of the page, compressed.
type dataBlock struct {
	id      string
	content []byte
}

// blocks returns the data of the page, of so many bytes at most. Where all changes are too
// much for that, they are fewer.
func (d *document) blocks(most int) ([]dataBlock, error) {
	lives, err := packed(d.lifeColumns()...)
	if err != nil {
		return nil, err
	}
	about, err := d.meta.packed()
	if err != nil {
		return nil, err
	}
	left := max(most-len(lives)-len(about), most/4)
	for {
		c := d.changes()
		changes, err := packed(c.columns()...)
		if err != nil {
			return nil, err
		}
		if len(changes) > left && d.w.stream.halve() {
			continue
		}
		d.meta.Instants, d.meta.Bucket, d.meta.Exact = c.instants, d.w.stream.size, d.w.stream.size == 1
		d.meta.Loss = append(d.meta.Loss, shownLoss(d.w.lost.Counters())...)
		about, err = d.meta.packed()
		return []dataBlock{{"meta", about}, {"changes", changes}, {"lives", lives}}, err
	}
}

// write writes the page.
func (d *document) write(to io.Writer, blocks []dataBlock) error {
	w := bufio.NewWriterSize(to, 1<<16)
	js, css := "\n"+script(), "\n"+web.Style()
	policy := "default-src 'none'; script-src " + source(js) + "; style-src " + source(css) + "; base-uri 'none'; form-action 'none'"
	head, rest, _ := strings.Cut(asset("page/page.html"), "<!--data-->")
	head = strings.NewReplacer("<!--policy-->", html.EscapeString(policy), "<!--title-->", html.EscapeString(d.meta.Title), "<!--style-->", css).Replace(head)
	w.WriteString(head)
	for _, x := range blocks {
		fmt.Fprintf(w, "<script type=\"application/gzip\" id=\"%s\">", x.id)
		text := base64.NewEncoder(base64.StdEncoding, w)
		if _, err := text.Write(x.content); err != nil {
			return err
		}
		if err := text.Close(); err != nil {
			return err
		}
		w.WriteString("</script>\n")
	}
	w.WriteString(strings.Replace(rest, "<!--script-->", js, 1))
	return w.Flush()
}
