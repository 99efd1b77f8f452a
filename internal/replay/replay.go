// Package replay plays a recording into a state: what a live trace showed at any
// of its moments can be shown again.
package replay

import (
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/record"
	"github.com/gpumemtrace/gpumemtrace/internal/state"
)

// End is the moment at which a recording ends.
const End = time.Duration(math.MaxInt64)

// Options say how to play. The zero value plays nothing after the trace began.
type Options struct {
	// At is how long after the trace began to stop, End for its end. Time, if it
	// is set, is when to stop instead.
	At   time.Duration
	Time time.Time
	// Moment, if set, hears of each moment, with the state as it is then, which
	// it must not keep or change.
	Moment func(*state.State)
	// OutOfMemory, if set, receives the failures for want of memory up to At. It
	// is called once all names are known.
	OutOfMemory func(*state.Incident)
}

// A player puts records into a state, and stops between two moments.
type player struct {
	opts  Options
	state *state.State
	trace *record.Trace // nil before the first
	over  bool          // records are beyond At

	// batch are the records since the last moment. Whether they are before At
	// is known at the next.
	batch     []record.Record
	events    []event.Event // which those of batch are in
	incidents []*state.Incident
}

// Play plays the recording at path up to a moment, and returns the state as it
// was then. Names that were told later are in it: what was not named yet had no
// less of a name. Errors are those of record.Open and record.Reader; a recording
// that ends early, or has gaps, is played as far as it goes: notes of the state
// say so.
func Play(path string, opts Options) (_ *state.State, err error) {
	r, err := record.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	s, err := play(r, opts)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

func play(r *record.Reader, opts Options) (*state.State, error) {
	p := &player{opts: opts, state: state.New()}
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		p.take(rec)
	}
	if p.trace == nil {
		return nil, fmt.Errorf("%w: it does not say what was traced", record.ErrMalformed)
	}
	if !p.over {
		p.flush(true)
	}
	for _, text := range r.Notes() {
		p.state.Apply(&record.Note{Text: text})
	}
	p.incidents = append(p.incidents, p.state.Incidents(true)...)
	if opts.OutOfMemory != nil {
		for _, in := range p.incidents {
			opts.OutOfMemory(in)
		}
	}
	return p.state, nil
}

// take takes the next record.
func (p *player) take(r record.Record) {
	switch r := r.(type) {
	case *record.Trace:
		if p.trace == nil { // there is no moment before it
			p.trace = r
			p.state.Apply(r)
			return
		}
		p.trace = r
	case *record.Name:
		if p.over && r.Place.Named() {
			return // it had another name then
		}
		r.Apply()
		return
	case *record.Moment:
		if p.over || p.beyond(r.Time) {
			p.over, p.batch = true, nil
			return
		}
		p.flush(false)
		p.state.Apply(r)
		p.moment()
		return
	}
	if p.over {
		return
	}
	if e, ok := r.(*event.Event); ok {
		// It is used again by its source.
		p.events = append(p.events, *e)
		r = &p.events[len(p.events)-1]
	}
	p.batch = append(p.batch, r)
	if len(p.batch) >= maxBatch {
		p.flush(false)
	}
}

// maxBatch bounds the records between two moments that are kept. A tracer tells
// of a moment after so many events at most.
const maxBatch = 1 << 16

// beyond tells whether a moment comes after the one at which to stop.
func (p *player) beyond(at uint64) bool {
	if p.trace == nil {
		return false
	}
	t := p.trace.Boot.Add(time.Duration(at))
	if !p.opts.Time.IsZero() {
		return t.After(p.opts.Time)
	}
	return p.opts.At != End && t.Sub(p.trace.Start) > p.opts.At
}

// flush puts the batch into the state. At the end of the recording what was
// shown last is shown still.
func (p *player) flush(end bool) {
	for i, r := range p.batch {
		if _, reported := r.(*record.Reported); reported && end && i == len(p.batch)-1 {
			break
		}
		p.state.Apply(r)
	}
	p.batch, p.events = p.batch[:0], p.events[:0]
}

// moment does what the tracer did at each.
func (p *player) moment() {
	p.incidents = append(p.incidents, p.state.Incidents(false)...)
	p.state.Wants() // nobody is there to tell
	if p.opts.Moment != nil {
		p.opts.Moment(p.state)
	}
}
