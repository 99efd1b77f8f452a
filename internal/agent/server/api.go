package server

import (
	"net/http"
	"strconv"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
)

// topAPI answers with what top shows, as its --json does.
func (s *Server) topAPI(w http.ResponseWriter, r *http.Request) error {
	p, err := paramsOf(r, "stacks")
	if err != nil {
		return err
	}
	n, err := p.number("stacks", 0, maxStacks, 20)
	if err != nil {
		return err
	}
	at, err := s.looks.now(r.Context())
	if err != nil {
		return err
	}
	body, err := s.looks.of(r.Context(), at, "top "+strconv.Itoa(n), func() ([]byte, error) {
		var d *live.Document
		s.looks.look(at, func(p *live.Picture) { d = p.Document(n) })
		return packed(d.Write)
	})
	if err != nil {
		return err
	}
	return sendPacked(w, r, jsonType, body)
}

// lookAPI answers with what top --agent asks for: see live.Remote.
func (s *Server) lookAPI(w http.ResponseWriter, r *http.Request) error {
	p, err := paramsOf(r, "site")
	if err != nil {
		return err
	}
	ctx := r.Context()
	if text, ok := p["site"]; ok {
		site, err := live.ParseSite(text)
		if err != nil {
			return badRequest("site is not a call site's name")
		}
		l, err := s.looks.allocations(ctx, site)
		if err != nil {
			return err
		}
		body, err := s.looks.alone(ctx, func() ([]byte, error) { return packed(l.Write) })
		if err != nil {
			return err
		}
		return sendPacked(w, r, jsonType, body)
	}
	at, err := s.looks.now(ctx)
	if err != nil {
		return err
	}
	body, err := s.looks.of(ctx, at, "look", func() ([]byte, error) { return packed(at.Write) })
	if err != nil {
		return err
	}
	return sendPacked(w, r, jsonType, body)
}

// profiles answers with which profiles there are.
func (s *Server) profiles(w http.ResponseWriter, r *http.Request) error {
	if _, err := paramsOf(r); err != nil {
		return err
	}
	all := []profileLink{{"gpumem", "GPU memory by call stack: ?pid=, ?gpu=, ?seconds= for what is allocated in a window, ?debug=1 for text"}}
	if s.opts.Profiling {
		for _, name := range append(ownProfiles, "profile", "trace") {
			all = append(all, profileLink{html.Address(name), "Go's own, of this agent"})
		}
	}
	sendPage(w, http.StatusOK, profilesPage(all))
	return nil
}
