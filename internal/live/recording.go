package live

import (
	"fmt"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// A Recording is a file of records as a Source.
type Recording struct {
	looker
	player *replay.Player
	start  time.Time
	span   time.Duration
	past   []int64
}

// OpenRecording plays the recording at path once, so that it is known how long it is.
// Errors are those of replay.Play.
func OpenRecording(path string) (*Recording, error) {
	var past past
	end, err := replay.Play(path, replay.Options{At: replay.End, Moment: past.moment})
	if err != nil {
		return nil, err
	}
	span := end.Time().Sub(end.Start())
	return &Recording{looker: newLooker(), player: replay.NewPlayer(path), start: end.Start(), span: max(span, time.Nanosecond), past: past.parts(span)}, nil
}

// At returns how long after the trace's beginning a moment is: so long after, or, if when
// is set, then. An error wraps replay.ErrNoMoment.
func (r *Recording) At(after time.Duration, when time.Time) (time.Duration, error) {
	if !when.IsZero() {
		after = when.Sub(r.start)
	}
	if after < 0 || after > r.span {
		return 0, fmt.Errorf("%w: it is %v long", replay.ErrNoMoment, r.span)
	}
	return after, nil
}

// Close closes the file.
func (r *Recording) Close() error { return r.player.Close() }

// Span returns how long the recording is, and what was in use through it.
func (r *Recording) Span() (time.Duration, []int64) { return r.span, r.past }

// Look shows a moment.
func (r *Recording) Look(q Query) (*Look, error) {
	s, err := r.player.To(q.At)
	if err != nil {
		return nil, fmt.Errorf("look at %v: %w", q.At, err)
	}
	out := r.look(s.View(r.want(q)))
	// Between two moments nothing happens, but time goes on.
	out.Snapshot.Meta.Duration = max(out.Snapshot.Meta.Duration, min(q.At, r.span))
	return out, nil
}

// maxParts bounds the parts of a recording whose use is known.
const maxParts = 1024

// A past is the most that was in use in each part of a recording so far.
type past struct {
	length time.Duration // of a part
	most   []int64
	events uint64 // at the last moment
	inuse  int64  // then
}

// moment takes a moment of a recording.
func (p *past) moment(s *state.State) {
	if p.length == 0 {
		p.length = time.Millisecond
	}
	at := s.Time().Sub(s.Start())
	for at/p.length >= maxParts {
		p.length *= 2
		for i := range (len(p.most) + 1) / 2 {
			p.most[i] = p.most[2*i]
			if 2*i+1 < len(p.most) {
				p.most[i] = max(p.most[i], p.most[2*i+1])
			}
		}
		p.most = p.most[:(len(p.most)+1)/2]
	}
	if events := s.Events(); events != p.events { // nothing else changes what is in use
		p.events, p.inuse = events, 0
		for _, x := range s.Totals() {
			p.inuse += max(x.Physical, x.Inuse)
		}
	}
	inuse := p.inuse
	i := int(max(at, 0) / p.length)
	for len(p.most) <= i {
		last := int64(0)
		if n := len(p.most); n > 0 && len(p.most) < i {
			last = p.most[n-1] // nothing was told meanwhile
		}
		p.most = append(p.most, last)
	}
	p.most[i] = max(p.most[i], inuse)
}

// parts returns what was in use through a recording so long, in parts of equal length.
func (p *past) parts(span time.Duration) []int64 {
	if p.length == 0 {
		return nil
	}
	n := int(span/p.length) + 1
	for len(p.most) < n && len(p.most) > 0 && n <= maxParts {
		p.most = append(p.most, p.most[len(p.most)-1])
	}
	return p.most
}
