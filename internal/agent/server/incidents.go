package server

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

const (
	// maxIncidents bounds the out-of-memory reports that are kept. The newest stay.
	maxIncidents = 64
	// maxReport bounds the text of a report, in bytes.
	maxReport = 256 << 10
)

// incidents are the newest out-of-memory reports.
type incidents struct {
	mu  sync.Mutex
	n   int64 // so far
	all []incident
}

// An incident is a failure for want of memory.
type incident struct {
	Number    int64     `json:"number"` // from 1 on
	Time      time.Time `json:"time"`
	PID       int       `json:"pid"`
	Process   string    `json:"process"`
	GPU       string    `json:"gpu"`
	API       string    `json:"api"`
	Requested int64     `json:"requested_bytes"`
	Recovered bool      `json:"recovered"`
	Stack     []string  `json:"stack,omitempty"`  // function, file and line of each frame, the innermost first
	Report    string    `json:"report,omitempty"` // the text of the file in --oom-dir
}

// Incident keeps a failure for want of memory, for the page and the API. One goroutine may
// call it.
func (s *Server) Incident(in *state.Incident) {
	s.keep(in.OutOfMemory(state.Want{Driver: true}))
}

// keep keeps the text of a report.
func (s *Server) keep(o *snapshot.OutOfMemory) {
	var b bytes.Buffer
	if err := export.OutOfMemory(&b, o); err != nil {
		s.opts.Warn("an out-of-memory report has no page: " + err.Error())
	}
	text := b.Bytes()
	if len(text) > maxReport {
		text = append(text[:bytes.LastIndexByte(text[:maxReport], '\n')+1], "[...]\n"...)
	}
	x := s.incidents
	x.mu.Lock()
	defer x.mu.Unlock()
	x.n++
	x.all = append(x.all, incident{x.n, o.Time, o.PID, o.Process, o.GPU, o.API, o.Requested, o.Recovered, render.Frames(o.Stack, shownFrames, frameName), string(text)})
	if len(x.all) > maxIncidents {
		x.all = slices.Delete(x.all, 0, 1)
		s.lost.Add(lossIncidents, 1)
	}
}

// shownFrames bounds the frames of a stack.
const shownFrames = 128

// maxFrame bounds a frame of a report, in bytes.
const maxFrame = 300

func frameName(s string) string { return render.Cut(s, maxFrame) }

// list returns the incidents, the newest first, without their reports.
func (x *incidents) list() []incident {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := append([]incident{}, x.all...) // not nil, which JSON has as null
	slices.Reverse(out)
	for i := range out {
		out[i].Report = ""
	}
	return out
}

// find returns the incident that a request's path names.
func (x *incidents) find(r *http.Request) (*incident, error) {
	text := r.PathValue("number")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != text {
		return nil, badRequest("give the number of a report")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.IndexFunc(x.all, func(in incident) bool { return in.Number == n })
	if i < 0 {
		return nil, errNothing("there is no such report, or it was dropped because newer ones came")
	}
	out := x.all[i]
	return &out, nil
}

func (s *Server) incidentsAPI(w http.ResponseWriter, r *http.Request) error {
	if _, err := paramsOf(r); err != nil {
		return err
	}
	return sendJSON(w, struct {
		Reports []incident `json:"reports"`
	}{s.incidents.list()})
}

func (s *Server) incidentAPI(w http.ResponseWriter, r *http.Request) error {
	if _, err := paramsOf(r); err != nil {
		return err
	}
	in, err := s.incidents.find(r)
	if err != nil {
		return err
	}
	return sendJSON(w, in)
}
