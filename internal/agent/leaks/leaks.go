// Package leaks looks for leaks in every process while an agent runs: see internal/model/leak.
//
// An interval costs a visit of each call site. Live allocations and names are asked for only
// of stacks that grow.
package leaks

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/leak"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A Source is the trace: *session.Session.
type Source interface {
	Read(func(*state.State))
	View(state.Want) *state.View
}

// A Leak is a stack of a process whose memory grew, and is still held.
type Leak struct {
	PID     int           `json:"pid"`
	Process string        `json:"process"`       // comm
	GPU     string        `json:"gpu,omitempty"` // label
	Growth  int64         `json:"growth_bytes"`
	Held    int64         `json:"held_bytes"`
	Over    time.Duration `json:"over_ns"`
	// First and Last are when it was found first and last. Now: it was at the last look.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Now   bool      `json:"now"`
	// Starting: the process's memory rises so fast that it seems to start.
	Starting bool `json:"starting"`
	// Line is the program's own line that is nearest to the call, "" for none. Brief has the
	// most helpful frames, Frames all, innermost first. They are cut and clean.
	Line   string   `json:"line,omitempty"`
	Brief  string   `json:"brief"`
	Frames []string `json:"stack"`

	site ledger.SiteKey
}

const (
	// maxLooked bounds the growing stacks of which a look asks for allocations, maxLeaks the
	// leaks that are kept. maxFrames bounds the frames of a leak, maxName each, in bytes.
	maxLooked = 256
	maxLeaks  = 256
	maxFrames = 128
	maxName   = 300
	// A process starts while it holds more than it did at some time in so many intervals by
	// a tenth or more.
	starts = 6
	tenth  = 10
	// lookRest is how many times as long as a look for allocations took it rests after that.
	lookRest = 50
)

// A Search is for one goroutine, but for Found.
type Search struct {
	source   Source
	detector *leak.Detector
	shapes   *state.Shapes
	held     []state.SiteUsage
	past     []map[event.Process]int64 // what each process held, at the end of the latest intervals

	mu    sync.Mutex
	leaks []Leak // the largest growth first
}

// New returns a Search that has seen nothing.
func New(s Source) *Search {
	return &Search{source: s, detector: leak.New(leak.Options{}), shapes: state.NewShapes()}
}

// Run looks at the end of each interval until ctx ends.
func (s *Search) Run(ctx context.Context) {
	interval := time.NewTicker(leak.DefaultInterval)
	defer interval.Stop()
	var again time.Time
	for {
		select {
		case <-interval.C:
			growing := s.Observe()
			if begun := time.Now(); !begun.Before(again) || len(growing) == 0 {
				s.Look(growing)
				again = time.Now().Add(lookRest * time.Since(begun))
			}
		case <-ctx.Done():
			return
		}
	}
}

// Found returns the leaks of now, the largest growth first, and then earlier ones. The caller
// may not change them.
func (s *Search) Found() []Leak {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaks
}

// Observe ends an interval, and returns the call sites that grow.
func (s *Search) Observe() []ledger.SiteKey {
	s.held = s.held[:0]
	var now time.Time
	s.source.Read(func(st *state.State) {
		now = st.Time()
		for u := range st.InUse {
			s.held = append(s.held, u)
		}
	})
	s.detector.Observe(now, slices.Values(s.held))
	if len(s.past) > starts {
		clear(s.past[0])
		s.past = append(s.past[1:], s.past[0])
	} else {
		s.past = append(s.past, map[event.Process]int64{})
	}
	sums := s.past[len(s.past)-1]
	for i := range s.held {
		sums[s.held[i].Site.Proc] += s.held[i].Bytes
	}
	return s.detector.Growing(maxLooked)
}

// starting reports whether a process seems to start.
func (s *Search) starting(id event.Process) bool {
	now := s.past[len(s.past)-1][id]
	least := now
	for _, sums := range s.past {
		least = min(least, sums[id])
	}
	return (now-least)*tenth >= now
}

// Look finds out which of the call sites that grow leak.
func (s *Search) Look(growing []ledger.SiteKey) {
	var found []Leak
	var now time.Time
	if len(growing) > 0 {
		v := s.source.View(state.Want{Live: true, LiveOf: growing, Shapes: s.shapes})
		snap := v.Snapshot()
		now = snap.Meta.Start.Add(snap.Meta.Duration)
		r := s.detector.Report(snap, v.Sites)
		for i := range r.Stacks {
			found = append(found, s.leak(&r.Stacks[i], r.Options.Interval, now))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(found)
	for _, old := range s.leaks {
		if i := slices.IndexFunc(found[:n], func(l Leak) bool { return l.site == old.site }); i >= 0 {
			found[i].First = old.First
			continue
		}
		old.Now = false
		found = append(found, old)
	}
	sorting.Stable(found[n:], func(a, b Leak) int { return b.Last.Compare(a.Last) })
	s.leaks = found[:min(len(found), maxLeaks)]
}

func (s *Search) leak(of *leak.Stack, interval time.Duration, now time.Time) Leak {
	x := &of.Sample
	l := Leak{PID: x.PID, Process: name(x.Process), GPU: name(x.GPU), Growth: of.Growth, Held: x.InuseBytes, Over: time.Duration(of.Span) * interval,
		First: now, Last: now, Now: true, Starting: s.starting(of.Site.Proc),
		Brief: name(render.Brief(x.Frames(), 3)), Frames: render.Frames(x.Frames(), maxFrames, name), site: of.Site}
	if lines, own := stacks.Own(x.Stack); own {
		l.Line = name(render.Name(lines[0]))
	}
	return l
}

func name(s string) string { return render.Cut(s, maxName) }
