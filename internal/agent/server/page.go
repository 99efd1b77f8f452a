package server

import (
	"cmp"
	"io"
	"net/http"

	"github.com/gpumemtrace/gpumemtrace/internal/output/timeline"
)

// page answers with the page, which fetches what it shows.
func (s *Server) page(w http.ResponseWriter, r *http.Request) error {
	if _, err := paramsOf(r); err != nil {
		return err
	}
	text, policy := timeline.Live(cmp.Or(s.guard.host, "this machine"))
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
