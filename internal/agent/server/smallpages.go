package server

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
)

// sendPage answers with a small page, whose body is markup.
func sendPage(w http.ResponseWriter, title, body string) {
	w.Header().Set("Content-Type", htmlType)
	w.Header().Set("Content-Security-Policy", policy+"; img-src data:; style-src "+web.Source(web.Style()))
	// Nobody would read an error.
	_, _ = io.WriteString(w, `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">`+
		`<meta name="color-scheme" content="light dark"><style>`+web.Style()+`</style>`+web.Icon()+`<title>`+web.Escape(title)+`</title></head><body>`+body+`</body></html>`)
}

// sendReport answers with the page of an out-of-memory report.
func sendReport(w http.ResponseWriter, in *incident) {
	sendPage(w, fmt.Sprintf("Out of GPU memory: report %d", in.Number), `<p><a href="/">GPU memory</a></p><pre class="report">`+web.Escape(in.Report)+`</pre>`)
}

// sendProfiles answers with links to profiles, by name, in order. They have descriptions.
func sendProfiles(w http.ResponseWriter, all [][2]string) {
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintf(&b, `<li><a href="%s">%s</a> %s</li>`, p[0], p[0], web.Escape(p[1]))
	}
	const path = "/debug/pprof/"
	sendPage(w, path, "<h1>"+path+"</h1><ul>"+b.String()+"</ul>")
}
