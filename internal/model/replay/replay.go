// Package replay plays a recording into a state: what a live trace showed at any
// of its moments can be shown again.
package replay

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// End is the moment at which a recording ends.
const End = time.Duration(math.MaxInt64)

// Options say how to play. The zero value plays nothing after the trace began.
type Options struct {
	// At is how long after the trace began to stop, End for its end. Time, if it
	// is set, is when to stop instead.
	At   time.Duration
	Time time.Time
	// From, if set, is when to begin: what was allocated and peaks count from then on.
	From *Start
	// Layout: the state can say where memory lies, and by which of the latest Remember
	// changes. See state.State.Remember.
	Layout   bool
	Remember int
	// Moment, if set, hears of each moment, with the state as it is then, which
	// it must not keep or change.
	Moment func(*state.State)
	// Before, if set, hears of each record before the state takes it, and Changed of what
	// it changes: see state.State.Watch. A Name applies to its Place alone.
	Before  func(*state.State, record.Record)
	Changed func(ledger.Change)
	// Progress, if set, hears now and then which part of the recording was played, from
	// 0 to 1.
	Progress func(float64)
	// OutOfMemory, if set, receives the failures for want of memory up to At, in
	// order: the last few at the end, when all names are known, and each other when
	// some more have come.
	OutOfMemory func(*state.Incident)
}

// A Start is a moment as of Options.At and Time, and what hears of the state as it is
// then: again where records after it were not kept, from which on all counts anew.
type Start struct {
	At    time.Duration
	Time  time.Time
	State func(*state.State)
}

// A player puts records into a state, and stops between two moments.
type player struct {
	opts  Options
	state *state.State
	trace *record.Trace // nil before the first
	first uint64        // time of the first moment, 0 before
	cut   bool          // the recording's beginning was dropped
	begun bool          // Options.From is over
	again bool          // a Cut came after it
	over  bool          // records are beyond At
	late  bool          // and so far that no stack is of an event before

	// batch are the records since the last moment. Whether they are before At
	// is known at the next.
	batch     []record.Record
	events    []event.Event // which those of batch are in
	incidents []*state.Incident
	lost      record.Loss // the last one
}

// maxIncidents bounds those that wait for their names: each has a view.
const maxIncidents = 8

// soon is more than the time between an event and its stack.
const soon = uint64(3 * time.Second)

// ErrNoMoment says that a recording does not have the moment that was asked for.
var ErrNoMoment = errors.New("the recording does not have that moment")

// Play plays the recording at path up to a moment, and returns the state as it
// was then. Names that were told later are in it: what was not named yet had no
// less of a name. Errors are those of record.Open and record.Reader, or wrap
// ErrNoMoment; a recording that ends early, or has gaps, is played as far as it
// goes: notes and counters of the state say so.
func Play(path string, opts Options) (_ *state.State, err error) {
	r, err := record.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	s, err := PlayReader(r, opts)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

// PlayReader is Play of a recording that is open, of which nothing was read.
func PlayReader(r *record.Reader, opts Options) (*state.State, error) {
	p := &player{opts: opts, state: state.New()}
	records := 0
	if opts.Changed != nil {
		p.state.Watch(opts.Changed)
	}
	if opts.Layout {
		p.state.Remember(opts.Remember)
	}
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		p.take(rec)
		if records++; records%progressEvery == 0 && opts.Progress != nil {
			opts.Progress(r.Progress())
		}
	}
	if p.trace == nil {
		return nil, r.Untold()
	}
	if !p.over {
		p.flush(true)
		if p.again {
			p.begin()
		}
		if from := p.opts.From; from != nil && !p.begun && !p.after(p.state.Now(), from.At, from.Time) {
			// No moment came after it, or it is the end.
			if err := p.within(); err != nil {
				return nil, err
			}
			p.begin()
		}
	}
	if err := p.within(); err != nil {
		return nil, err
	}
	p.tell(r)
	p.report(p.state.Incidents(true), 0)
	return p.state, nil
}

// progressEvery is after how many records Progress hears something.
const progressEvery = 1 << 14

// within checks that the recording has the moment at which to stop.
func (p *player) within() error {
	if from := p.opts.From; from != nil {
		if err := p.has(from.At, from.Time, p.begun); err != nil {
			return err
		}
	}
	return p.has(p.opts.At, p.opts.Time, p.over)
}

// has checks that the recording has a moment; passed tells whether there were records
// after it.
func (p *player) has(so time.Duration, when time.Time, passed bool) error {
	if when.IsZero() && so == End {
		return nil
	}
	from, to := p.trace.Start, p.wall(p.state.Now())
	if p.cut {
		from = p.wall(p.first)
	}
	want := when
	if want.IsZero() {
		want = p.trace.Start.Add(so)
	}
	if !want.Before(from) && (passed || !want.After(to)) {
		return nil
	}
	text := func(t time.Time) string {
		return fmt.Sprintf("%s (%v)", t.UTC().Format(time.RFC3339Nano), t.Sub(p.trace.Start))
	}
	if passed {
		return fmt.Errorf("%w: it begins at %s", ErrNoMoment, text(from))
	}
	return fmt.Errorf("%w: it ends at %s", ErrNoMoment, text(to))
}

// tell adds what the recording lacks to what the trace lost.
func (p *player) tell(r *record.Reader) {
	for _, text := range r.Notes() {
		p.state.Apply(&record.Note{Text: text})
	}
	all := record.Loss{Counters: slices.Clone(p.lost.Counters), Notes: p.lost.Notes}
	for _, c := range r.Loss() {
		i := slices.IndexFunc(all.Counters, func(old loss.Counter) bool { return old.Name == c.Name })
		switch {
		case c.Value == 0:
		case i < 0:
			all.Counters = append(all.Counters, c)
		default: // the writer's own count is as of some moment
			all.Counters[i].Value = max(all.Counters[i].Value, c.Value)
		}
	}
	p.state.Apply(&all)
}

// report hands out incidents, but for the last few: those to keep.
func (p *player) report(more []*state.Incident, keep int) {
	if p.opts.OutOfMemory == nil {
		return
	}
	p.incidents = append(p.incidents, more...)
	for ; len(p.incidents) > keep; p.incidents = slices.Delete(p.incidents, 0, 1) {
		p.opts.OutOfMemory(p.incidents[0])
	}
}

// take takes the next record.
func (p *player) take(r record.Record) {
	switch r := r.(type) {
	case *record.Trace:
		if p.trace == nil { // there is no moment before it
			p.flush(false)
			p.trace = r
			p.apply(r)
			return
		}
		p.trace = r
	case *record.Cut:
		p.cut = p.cut || p.trace == nil
		p.again = p.again || p.begun && !p.over
	case *record.Stack:
		if p.over {
			if !p.late {
				p.apply(r) // of an event before, perhaps
			}
			return
		}
	case *record.Name:
		if p.over && r.Place.Named() {
			return // it had another name then
		}
		r.Apply()
		return
	case *record.Moment:
		if from := p.opts.From; from != nil && !p.begun && !p.over && p.after(r.Time, from.At, from.Time) {
			p.begin()
		}
		if p.over || p.beyond(r.Time) {
			p.end(r.Time)
			return
		}
		if p.first == 0 {
			p.first = r.Time
		}
		p.flush(false)
		p.apply(r)
		if p.again {
			p.again = false
			p.begin()
		}
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

// apply puts one record into the state.
func (p *player) apply(r record.Record) {
	if p.opts.Before != nil {
		p.opts.Before(p.state, r)
	}
	p.state.Apply(r)
}

// maxBatch bounds the records between two moments that are kept. A tracer tells
// of a moment after so many events at most.
const maxBatch = 1 << 16

// beyond tells whether a moment comes after the one at which to stop.
func (p *player) beyond(at uint64) bool {
	return p.after(at, p.opts.At, p.opts.Time)
}

// after tells whether a moment comes after one as of Options.
func (p *player) after(at uint64, so time.Duration, when time.Time) bool {
	if p.trace == nil {
		return false
	}
	t := p.wall(at)
	if !when.IsZero() {
		return t.After(when)
	}
	return so != End && t.Sub(p.trace.Start) > so
}

// start is the moment at which the trace began.
func (p *player) start() *record.Moment {
	return &record.Moment{Time: uint64(p.trace.Start.Sub(p.trace.Boot))}
}

// begin begins at the last moment that was.
func (p *player) begin() {
	p.begun = true
	if p.first == 0 {
		p.state.Apply(p.start())
	}
	p.opts.From.State(p.state)
	p.state.Afresh()
}

// wall returns a time of records as that of the wall clock.
func (p *player) wall(at uint64) time.Time { return p.trace.Boot.Add(time.Duration(at)) }

// end stops before a moment. Stacks come after their events.
func (p *player) end(at uint64) {
	if p.first == 0 {
		p.first = at
		p.state.Apply(p.start())
	}
	p.over = true
	for _, r := range p.batch {
		if st, ok := r.(*record.Stack); ok {
			p.apply(st)
		}
	}
	p.batch, p.events = nil, nil
	p.late = p.late || at >= p.state.Now()+soon
}

// flush puts the batch into the state. At the end of the recording what was
// shown last is shown still.
func (p *player) flush(end bool) {
	last := -1
	if end {
		for i, r := range p.batch {
			if _, ok := r.(*record.Reported); ok {
				last = i
			}
		}
	}
	for i, r := range p.batch {
		if i == last {
			continue
		}
		if l, ok := r.(*record.Loss); ok {
			p.lost = *l
		}
		p.apply(r)
	}
	p.batch, p.events = p.batch[:0], p.events[:0]
}

// moment does what the tracer did at each.
func (p *player) moment() {
	p.report(p.state.Incidents(false), maxIncidents)
	p.state.Wants() // nobody is there to tell
	if p.opts.Moment != nil {
		p.opts.Moment(p.state)
	}
}
