package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
)

// topAPI answers with the document that top --json prints.
func (s *Server) topAPI(w http.ResponseWriter, r *http.Request) error {
	p, err := paramsOf(r, "stacks")
	if err != nil {
		return err
	}
	n, err := p.number("stacks", 0, maxStacks, 20)
	if err != nil {
		return err
	}
	return s.sendOf(w, r, jsonType, "top "+strconv.Itoa(n), func(at *shot) (func(io.Writer) error, error) {
		var d *live.Document
		s.looks.look(at, func(p *live.Status) { d = p.Document(n) })
		return d.Write, nil
	})
}

// lookAPI answers top --agent: see live.Remote.
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
	return s.sendOf(w, r, jsonType, "look", func(at *shot) (func(io.Writer) error, error) { return at.Write, nil })
}

// eventsAPI answers with what happened in a period.
func (s *Server) eventsAPI(w http.ResponseWriter, r *http.Request) error {
	p, err := paramsOf(r, "gpu", "pid", "minutes")
	if err != nil {
		return err
	}
	f, err := p.filter()
	if err != nil {
		return err
	}
	n, err := p.number("minutes", 1, int(coarseFor/time.Minute), 30)
	if err != nil {
		return err
	}
	c := &chosen{f, time.Duration(n) * time.Minute}
	return s.sendOf(w, r, jsonType, fmt.Sprint("events ", c.filter, " ", c.period), func(at *shot) (func(io.Writer) error, error) {
		var e *events
		s.looks.look(at, func(p *live.Status) { e = s.events(p, p.Select(&live.Scope{}, "", live.ByInuse, false).Processes, c) })
		return func(w io.Writer) error { return json.NewEncoder(w).Encode(e) }, nil
	})
}

// profiles answers with the list of profiles.
func (s *Server) profiles(w http.ResponseWriter, r *http.Request) error {
	if _, err := paramsOf(r); err != nil {
		return err
	}
	all := [][2]string{{"gpumem", "GPU memory by call stack: ?pid=, ?gpu=, ?seconds= for what is allocated in a window, ?debug=1 for text"}}
	if s.opts.Profiling {
		for _, name := range append(ownProfiles, "profile", "trace") {
			all = append(all, [2]string{name, "Go's own, of this agent"})
		}
	}
	sendProfiles(w, all)
	return nil
}
