package server

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
)

//go:embed page/*
var files embed.FS

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

func fileText(name string) string {
	b, err := files.ReadFile("page/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(b)
}

// They are packed when the first server starts: that takes 5 ms, which a trace does not have.
var (
	script = sync.OnceValue(func() *asset {
		return assetOf("text/javascript; charset=utf-8", "page", ".js", web.Script(fileText("live.js"), fileText("page.js")))
	})
	style = sync.OnceValue(func() *asset {
		return assetOf("text/css; charset=utf-8", "page", ".css", web.Style()+fileText("page.css"))
	})
	icon = sync.OnceValue(func() *asset { return assetOf("image/svg+xml", "icon", ".svg", fileText("icon.svg")) })
)

func (a *asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable") // its path has a hash of its content
	_ = sendPacked(w, r, a.kind, a.body)                                   // nobody would read an error
}

// page answers with the page.
func (s *Server) page(w http.ResponseWriter, r *http.Request) error {
	return s.show(w, r, "page", wholePage)
}

// now answers with the part of the page that changes.
func (s *Server) now(w http.ResponseWriter, r *http.Request) error {
	return s.show(w, r, "now", nowPart)
}

func (s *Server) show(w http.ResponseWriter, r *http.Request, name string, part func(*view) html.Node) error {
	c, err := chosenOf(r)
	if err != nil {
		return err
	}
	return s.sendOf(w, r, htmlType, fmt.Sprint(name, " ", c.filter, " ", c.period, " ", c.by, " ", c.at), func(at *shot) (func(io.Writer) error, error) {
		var v *view
		s.looks.look(at, func(p *live.Status) { v = s.view(p, c) })
		return func(w io.Writer) error { return html.Write(w, part(v)) }, nil
	})
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
	sendPage(w, http.StatusOK, reportPage(in))
	return nil
}

// sendPage answers with a small page.
func sendPage(w http.ResponseWriter, status int, page html.Node) {
	w.Header().Set("Content-Type", htmlType)
	w.WriteHeader(status)
	_ = html.Write(w, page) // nobody would read an error
}
