package server

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io"
	"net/http"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
)

//go:embed page/*
var files embed.FS

// An asset is part of the page, which does not change while this program is the same.
type asset struct {
	kind, path string
	body       []byte // packed
}

func assetOf(kind, name, extension, text string) *asset {
	sum := sha256.Sum256([]byte(text))
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil {
		panic(err) // a Buffer takes all
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

var (
	script = assetOf("text/javascript; charset=utf-8", "page", ".js", web.Script(fileText("live.js"), fileText("page.js")))
	style  = assetOf("text/css; charset=utf-8", "page", ".css", web.Style()+fileText("page.css"))
	icon   = assetOf("image/svg+xml", "icon", ".svg", fileText("icon.svg"))
)

func (a *asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable") // its name has what it is
	_ = sendPacked(w, r, a.kind, a.body)                                   // nobody is told
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
	if _, err := paramsOf(r); err != nil {
		return err
	}
	at, err := s.looks.now(r.Context())
	if err != nil {
		return err
	}
	body, err := s.looks.of(r.Context(), at, name, func() ([]byte, error) {
		var v *view
		s.looks.look(at, func(p *live.Picture) { v = s.view(p) })
		return packed(func(w io.Writer) error { return html.Write(w, part(v)) })
	})
	if err != nil {
		return err
	}
	return sendPacked(w, r, htmlType, body)
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
	_ = html.Write(w, page) // nobody is told
}

// askForToken answers who may not read, in a browser. Wrong is for another token given.
func (s *Server) askForToken(w http.ResponseWriter, wrong bool) {
	sendPage(w, http.StatusUnauthorized, loginPage(wrong, s.guard.token() == ""))
}

// logIn takes the token, and gives a cookie that stands for it.
func (s *Server) logIn(w http.ResponseWriter, r *http.Request) {
	token := s.guard.token()
	if !sameOrigin(r) {
		s.refuse(w, http.StatusForbidden, "a page of another origin may not log in here")
		return
	}
	if err := r.ParseForm(); err != nil {
		s.refuse(w, http.StatusBadRequest, "this is no login")
		return
	}
	if token == "" {
		s.askForToken(w, true)
		return
	}
	switch verdict, wait := s.guard.gives(r, r.PostForm.Get("token")); verdict {
	case mayRead:
	case mustWait:
		s.putOff(w, wait)
		return
	default:
		s.askForToken(w, true)
		return
	}
	until := time.Now().Add(cookieFor)
	s.setCookie(w, cookieOf(token, s.guard.from(r), until), until)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// logOut takes the cookie back.
func (s *Server) logOut(w http.ResponseWriter, r *http.Request) {
	if !sameOrigin(r) {
		s.refuse(w, http.StatusForbidden, "a page of another origin may not log out here")
		return
	}
	s.setCookie(w, "", time.Unix(1, 0))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func (s *Server) setCookie(w http.ResponseWriter, value string, until time.Time) {
	http.SetCookie(w, &http.Cookie{Name: s.guard.cookieName(), Value: value, Path: "/", Expires: until, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: s.guard.secure})
}
