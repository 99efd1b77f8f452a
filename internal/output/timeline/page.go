package timeline

import (
	"bufio"
	"embed"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
)

//go:embed page/*.js page/page.html
var assets embed.FS

// script returns every script of the page.
func script() string {
	var own []string
	for _, name := range []string{"unpack", "data", "table", "events", "map", "live", "main"} {
		own = append(own, web.Asset(assets, "page/"+name+".js"))
	}
	return web.Script(own...)
}

// blocks returns the data of the page, of so many bytes at most. Where all changes are too
// much for that, they are fewer.
func (d *document) blocks(most int) []block {
	lives := d.lifeBlock()
	left := max(most-len(lives.content)-len(d.meta.packed().content), most/4)
	for {
		c := d.changes()
		all := c.blocks()
		size := 0
		for _, x := range all {
			size += len(x.content)
		}
		if size > left && d.w.stream.Halve() {
			continue
		}
		d.meta.Instants, d.meta.Bucket, d.meta.Exact = c.times.n, d.w.stream.Bucket(), d.w.stream.Bucket() == 1
		d.meta.Loss = append(d.meta.Loss, shownLoss(d.w.lost.Counters())...)
		return append(append([]block{d.meta.packed()}, all...), lives)
	}
}

// pieceSize is how many bytes of a block a script element has: the page unpacks each while
// it reads the next.
const pieceSize = 48 << 10

// Live returns a page that fetches its data from the agent that serves it, and the
// Content-Security-Policy to serve it with. title is what is traced.
func Live(title string) (page, policy string) {
	policy = policyWith("connect-src 'self'; img-src data:")
	head, rest := parts(title, ` class="live"`, web.Icon(), policy)
	return head + rest, policy + "; frame-ancestors 'none'" // which a page cannot say itself
}

// policyWith returns a Content-Security-Policy that lets a page run its own script and style, and do
// what more says.
func policyWith(more string) string {
	return "default-src 'none'; script-src " + web.Source("\n"+script()) + "; style-src " + web.Source("\n"+web.Style()) + "; " + more + "; base-uri 'none'; form-action 'none'"
}

// parts returns what comes before the data of a page, and what comes after it.
func parts(title, class, icon, policy string) (head, rest string) {
	head, rest, _ = strings.Cut(web.Asset(assets, "page/page.html"), "<!--data-->")
	return strings.NewReplacer("<!--class-->", class, "<!--icon-->", icon, "<!--policy-->", web.Escape(policy), "<!--title-->", web.Escape(title), "<!--style-->", "\n"+web.Style(), "<!--script-->", "\n"+script()).Replace(head), rest
}

// write writes the page.
func (d *document) write(to io.Writer, blocks []block) error {
	w := bufio.NewWriterSize(to, 1<<16)
	head, rest := parts(d.meta.Title, "", "", policyWith("worker-src blob:"))
	w.WriteString(head)
	for _, x := range blocks {
		for piece := range slices.Chunk(x.content, pieceSize) {
			fmt.Fprintf(w, "<script type=\"application/gzip\" class=\"piece\" data-block=\"%s\">%s</script>\n", x.name, base64.StdEncoding.EncodeToString(piece))
		}
	}
	w.WriteString(rest)
	return w.Flush()
}
