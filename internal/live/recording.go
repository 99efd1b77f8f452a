package live

import (
	"fmt"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// A Recording is a file of records as a Source.
type Recording struct {
	maker
	player *replay.Player
	span   replay.Span
	past   []int64
	target string // as the recording's end knows it: a trace names its targets one after the other
}

// OpenRecording plays the recording at path once, so that it is known how long it is.
// Errors are those of record.Open and replay.Measure.
func OpenRecording(path string) (*Recording, error) {
	file, err := record.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var past past
	span, end, err := replay.Measure(file, replay.Options{Moment: past.moment})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	span.End = max(span.End, time.Nanosecond)
	return &Recording{maker: newMaker(), player: replay.NewPlayer(path), span: span, past: past.parts(span.End), target: end.Target()}, nil
}

// Measured returns what times the recording has.
func (r *Recording) Measured() replay.Span { return r.span }

// At returns the moment of Query.At that is so long after the trace's beginning, replay.End
// for the recording's end. An error wraps replay.ErrNoMoment.
func (r *Recording) At(after time.Duration) (time.Duration, error) {
	if after == replay.End {
		return r.span.End, nil
	}
	if after < 0 || after > r.span.End {
		return 0, fmt.Errorf("%w: it is %v long", replay.ErrNoMoment, r.span.End)
	}
	return after, nil
}

// Close closes the file.
func (r *Recording) Close() error { return r.player.Close() }

// Span returns how long the recording is, and what was in use through it.
func (r *Recording) Span() (time.Duration, []int64) { return r.span.End, r.past }

// Snapshot returns a snapshot of a moment.
func (r *Recording) Snapshot(q Query) (*Snapshot, error) {
	s, err := r.player.To(q.At)
	if err != nil {
		return nil, fmt.Errorf("show %v: %w", q.At, err)
	}
	out := r.snapshot(s.View(r.want(q)))
	// Between two moments nothing happens, but time goes on.
	out.Snapshot.Meta.Duration = max(out.Snapshot.Meta.Duration, min(q.At, r.span.End))
	out.Snapshot.Meta.Target = r.target
	return out, nil
}

// maxParts bounds the parts of a recording.
const maxParts = 1024

// A past is the highest use in each part of a recording so far.
type past struct {
	length    time.Duration // of a part
	most      []int64
	events    uint64 // at the last moment that was looked at
	inuse     int64  // then
	processes int    // then
}

// moment adds a moment of a recording.
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
	// Only events change what is in use. Each pays for a look at so many processes: with more of
	// them, moments that few events came before are passed over.
	const looks = 64
	if events := s.Events(); events != p.events && (events-p.events)*looks >= uint64(p.processes) {
		p.events = events
		p.inuse, p.processes = s.HeldByAll()
	}
	inuse := p.inuse
	i := int(max(at, 0) / p.length)
	for len(p.most) <= i {
		last := int64(0)
		if n := len(p.most); n > 0 && len(p.most) < i {
			last = p.most[n-1] // nothing was recorded in between
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
