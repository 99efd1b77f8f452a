package server

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// handler returns the handler of all paths.
func (s *Server) handler() http.Handler {
	m := http.NewServeMux()
	// These show nothing of a trace, so everybody may read them.
	m.HandleFunc("GET /healthz", s.health)
	m.HandleFunc("GET /readyz", s.ready)

	get := func(path string, f func(http.ResponseWriter, *http.Request) error) {
		m.Handle("GET "+path, s.guarded(s.answering(f)))
	}
	get("/{$}", s.page)
	get("/oom/{number}", s.incidentPage)
	get("/debug/pprof/{$}", s.profiles)
	get("/debug/pprof/gpumem", s.profile)
	get("/api/v1/top", s.topAPI)
	get("/api/v1/look", s.lookAPI)
	get("/api/v1/history", s.historyAPI)
	get("/api/v1/events", s.eventsAPI)
	get("/api/v1/oom", s.incidentsAPI)
	get("/api/v1/oom/{number}", s.incidentAPI)
	m.Handle("GET /metrics", s.guarded(s.opts.Metrics))
	if s.opts.Profiling {
		for _, name := range ownProfiles {
			m.Handle("GET /debug/pprof/"+name, s.guarded(ownProfile(name)))
		}
		m.Handle("GET /debug/pprof/profile", s.guarded(waiting(ownProcessorProfile)))
		m.Handle("GET /debug/pprof/trace", s.guarded(waiting(ownTrace)))
	}
	return s.limited(m)
}

// limited bounds the time of requests, and forbids browsers all that no page needs.
func (s *Server) limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", policy)
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerWithin)); err != nil {
			return
		}
		next.ServeHTTP(w, r)
	})
}

// policy lets a page load nothing.
const policy = "default-src 'none'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"

// guarded passes on requests that may read, at most maxRequests at a time.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		verdict, err := s.guard.judge(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		switch verdict {
		case mayRead:
			select {
			case <-s.opts.Begun:
			default:
				s.fail(w, r, errBegins)
				return
			}
			select {
			case s.requests <- struct{}{}:
				defer func() { <-s.requests }()
				next.ServeHTTP(w, r)
			default:
				s.fail(w, r, errBusy)
			}
		case crossSite:
			s.refuse(w, http.StatusForbidden, "a page of another origin may not read this")
		case wrongHost:
			s.refuse(w, http.StatusForbidden, "ask for localhost, an address or this machine's own name")
		default:
			w.Header().Set("WWW-Authenticate", `Basic realm="gpumemtrace"`) // a browser asks for it
			s.refuse(w, http.StatusUnauthorized, "give a user and a password of the agent's web configuration, by HTTP's basic authentication")
		}
	})
}

// refuse ends a request, and its connection, with a sentence.
func (s *Server) refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Connection", "close")
	plain(w, status, text)
}

// plain answers with a sentence, which go tool pprof shows too.
func plain(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Go-Pprof", "1")
	h.Del("Content-Disposition")
	w.WriteHeader(status)
	fmt.Fprintln(w, text)
}

// answering makes a handler of a function that may fail before it writes anything.
func (s *Server) answering(f func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := f(w, r); err != nil {
			s.fail(w, r, err)
		}
	})
}

// fail answers with an error.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	var bad badRequest
	var nothing errNothing
	switch {
	case r.Context().Err() != nil: // the client is gone
	case errors.As(err, &bad):
		plain(w, http.StatusBadRequest, err.Error())
	case errors.As(err, &nothing):
		plain(w, http.StatusNotFound, err.Error())
	case errors.Is(err, errBusy), errors.Is(err, errLate), errors.Is(err, errEnding), errors.Is(err, errBegins):
		if errors.Is(err, errBusy) {
			s.lost.Add(lossRefused, 1)
		}
		w.Header().Set("Retry-After", "2")
		plain(w, http.StatusServiceUnavailable, err.Error())
	default:
		plain(w, http.StatusInternalServerError, render.Clean(err.Error()))
	}
}

// health answers whether this program works.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) { says(w, "ok", s.opts.Healthy()) }

// maxNotSeen bounds the lines of ready's answer about processes that are not seen.
const maxNotSeen = 20

// ready answers whether the trace makes progress, and which processes it does not see. The
// agent is ready even if it does not see a process: it would not see it after a restart
// either. Otherwise one program that maps too many libraries could stop the update of every
// agent.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	so, why := "ready", s.opts.Ready()
	var lines []string
	if why == nil {
		lines = s.opts.NotSeen()
	}
	for _, line := range lines[:min(len(lines), maxNotSeen)] {
		so += "\nnot seen: " + render.Clean(line)
	}
	if n := len(lines) - maxNotSeen; n > 0 {
		so += fmt.Sprintf("\nnot seen: others, in %d more lines", n)
	}
	says(w, so, why)
}

// says answers with so, or with why that is not so.
func says(w http.ResponseWriter, so string, why error) {
	if why != nil {
		plain(w, http.StatusServiceUnavailable, "not "+so+": "+why.Error())
		return
	}
	plain(w, http.StatusOK, so)
}

// packed returns the output of write, compressed with gzip.
func packed(write func(io.Writer) error) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := write(z); err != nil {
		return nil, err
	}
	err = z.Close()
	return b.Bytes(), err
}

// sendPacked answers with a packed body. It unpacks the body for clients that do not accept
// gzip.
func sendPacked(w http.ResponseWriter, r *http.Request, kind string, body []byte) error {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Vary", "Accept-Encoding")
	if takesGzip(r.Header.Get("Accept-Encoding")) {
		h.Set("Content-Encoding", "gzip")
		h.Set("Content-Length", strconv.Itoa(len(body)))
		_, err := w.Write(body)
		return ignored(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return err
	}
	_, err = io.Copy(w, z)
	return ignored(err)
}

// ignored drops the error of an answer that cannot be sent: nobody would read it.
func ignored(error) error { return nil }

func takesGzip(accept string) bool {
	for one := range strings.SplitSeq(accept, ",") {
		name, q, _ := strings.Cut(strings.TrimSpace(one), ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") && strings.TrimSpace(q) != "q=0" {
			return true
		}
	}
	return false
}

const jsonType = "application/json"

// sendJSON answers with one object.
func sendJSON(w http.ResponseWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", jsonType)
	_, err = w.Write(append(b, '\n'))
	return ignored(err)
}
