package server

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"io"
	"net/http"
	"sync"

	"github.com/gpumemtrace/gpumemtrace/internal/output/timeline"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
)

//go:embed icon.svg
var iconText string

// An asset is a file of the page. It changes only with this program.
type asset struct {
	kind, path string
	body       []byte // packed
}

func assetOf(kind, name, extension, text string) *asset {
	sum := sha256.Sum256([]byte(text))
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil {
		panic(err) // a Buffer returns no error
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return &asset{kind, "/assets/" + name + "-" + hex.EncodeToString(sum[:8]) + extension, b.Bytes()}
}

// They are packed when the first server starts: that takes 5 ms, which a trace does not have.
var (
	style = sync.OnceValue(func() *asset { return assetOf("text/css; charset=utf-8", "page", ".css", web.Style()) })
	icon  = sync.OnceValue(func() *asset { return assetOf("image/svg+xml", "icon", ".svg", iconText) })
)

func (a *asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable") // its path has a hash of its content
	_ = sendPacked(w, r, a.kind, a.body)                                   // nobody would read an error
}

// page answers with the page, which fetches what it shows.
func (s *Server) page(w http.ResponseWriter, r *http.Request) error {
	if _, err := paramsOf(r); err != nil {
		return err
	}
	text, policy := timeline.Live(cmp.Or(s.guard.host, "this machine"), icon().path)
	w.Header().Set("Content-Security-Policy", policy)
	body, err := packed(func(w io.Writer) error { _, err := io.WriteString(w, text); return err })
	if err != nil {
		return err
	}
	return sendPacked(w, r, htmlType, body)
}

// sendOf answers with the output of write, which build returns for the newest snapshot. The
// answer is made once for all requests with the same name.
func (s *Server) sendOf(w http.ResponseWriter, r *http.Request, kind, name string, build func(*shot) (write func(io.Writer) error, err error)) error {
	at, err := s.looks.now(r.Context())
	if err != nil {
		return err
	}
	body, err := s.looks.of(r.Context(), at, name, func() ([]byte, error) {
		write, err := build(at)
		if err != nil {
			return nil, err
		}
		return packed(write)
	})
	if err != nil {
		return err
	}
	return sendPacked(w, r, kind, body)
}

const htmlType = "text/html; charset=utf-8"

// incidentPage answers with one out-of-memory report.
func (s *Server) incidentPage(w http.ResponseWriter, r *http.Request) error {
	if _, err := paramsOf(r); err != nil {
		return err
	}
	in, err := s.incidents.find(r)
	if err != nil {
		return err
	}
	sendReport(w, in)
	return nil
}
