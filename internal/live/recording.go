package live

import (
	"fmt"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/series"
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

// A past is what was in use through a recording so far.
type past struct {
	curve     series.Curve // by nanoseconds since the trace began
	events    uint64       // at the last moment that was looked at
	inuse     int64        // then
	processes int          // then
}

// moment adds a moment of a recording.
func (p *past) moment(s *state.State) {
	// Only events change what is in use. Each pays for a look at so many processes: with more of
	// them, moments that few events came before are passed over.
	const looks = 16
	if events := s.Events(); events != p.events && (events-p.events)*looks >= uint64(p.processes) {
		p.events = events
		p.inuse, p.processes = s.HeldByAll()
		p.curve.Add(uint64(max(s.Time().Sub(s.Start()), 0)), p.inuse)
	}
}

// parts returns what was in use in each of the equal parts of a recording so long: the most of
// the changes in it, or else as before it.
func (p *past) parts(span time.Duration) []int64 {
	length := time.Millisecond // of a part
	for span/length >= maxParts {
		length *= 2
	}
	out := make([]int64, span/length+1)
	next, held := 0, int64(0) // the first part without a figure, and what was in use before it
	until := func(part int) {
		for ; next < part; next++ {
			out[next] = held
		}
	}
	for time, bytes := range p.curve.All {
		part := min(int(time/uint64(length)), len(out)-1)
		until(part)
		out[part] = max(out[part], bytes)
		next, held = part+1, bytes
	}
	until(len(out))
	return out
}
