// Package replay plays a recording into a state: anything that a live trace showed can be
// shown again.
//
// A recording stops at any time, to the nanosecond: what it shows is what the records before
// the first later event made. Stacks and names may come after that event; they are applied
// still, because they belong to earlier events.
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
	// At is how long after the trace began to stop, End for its end.
	At time.Duration
	// Later, if set, is the state at the end of the recording. The state at At knows from it
	// what shows only later: see state.State.LearnFrom.
	Later *state.State
	// From, if set, is when to begin: allocations and peaks count from then on.
	From *Start
	// Layout: the state can say where memory lies, and by which of the latest Remember
	// changes. See state.State.Remember.
	Layout   bool
	Remember int
	// Moment, if set, is called at each moment with the state as it is then, which is
	// valid during the call, and which it must not change.
	Moment func(*state.State)
	// Before, if set, is called with each record before it is applied, and Changed with
	// each change by it: see state.State.Watch. A Name changes its Place alone.
	Before  func(*state.State, record.Record)
	Changed func(*ledger.Site)
	// Progress, if set, is called now and then with the part of the recording that was
	// played, from 0 to 1.
	Progress func(float64)
	// OutOfMemory, if set, receives the failures for want of memory up to At, in
	// order: the last few at the end, when all names are known, and each other when
	// some more have come.
	OutOfMemory func(*state.Incident)
}

// A Start is a moment as of Options.At. State is called with the state as it is
// then, and again after each later gap, from which on all counts start at zero again.
type Start struct {
	At    time.Duration
	State func(*state.State)
}

// A player puts records into a state, and stops between two moments.
type player struct {
	opts          Options
	state         *state.State
	trace         *record.Trace // nil before the first
	first         uint64        // time of the first moment, 0 before
	cut           bool          // the recording's beginning was dropped
	begun         bool          // Options.From is over
	cutAfterBegin bool          // a Cut came after it
	over          bool          // records are beyond At
	stacksOver    bool          // and so far that no stack is of an event before
	slept         uint64        // of the last moment

	// batch are the records since the last moment: the last report among them is left
	// out at the end of the recording.
	batch     []record.Record
	events    []event.Event   // which those of batch are in
	left      []record.Record // what came after At, of the batch in which it was passed
	incidents []*state.Incident
	lost      record.Loss // the last one
}

// mostIncidents is how many failures for want of memory are reported of a recording at least.
const mostIncidents = 1000

// maxIncidents bounds those that wait for their names: each has a view.
const maxIncidents = 8

// stackDelay is more than the time between an event and its stack.
const stackDelay = uint64(3 * time.Second)

// ErrNoMoment says that a recording does not have the moment that was asked for.
var ErrNoMoment = errors.New("the recording does not have that moment")

// Play plays the recording at path up to a moment, and returns the state as it
// was then. It has the names that came later, too: a place had no other name then. Errors are those of record.Open and record.Reader, or wrap
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
	if opts.OutOfMemory != nil { // whether the trace itself reported failures or not
		p.state.ReportIncidents(mostIncidents)
	}
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
		p.add(rec)
		if records++; records%progressEvery == 0 && opts.Progress != nil {
			opts.Progress(r.Progress())
		}
	}
	if p.trace == nil {
		return nil, r.MissingTrace()
	}
	if !p.over {
		p.flush(false, true)
		if p.cutAfterBegin {
			p.begin()
		}
		if from := p.opts.From; from != nil && !p.begun && !p.after(p.state.Now(), from.At) {
			// No moment came after it, or it is the end.
			if err := p.checkRange(); err != nil {
				return nil, err
			}
			p.begin()
		}
	}
	if err := p.checkRange(); err != nil {
		return nil, err
	}
	p.addReaderLoss(r)
	if opts.Later != nil {
		p.state.LearnFrom(opts.Later)
	}
	p.reportIncidents(p.state.Incidents(true), 0)
	return p.state, nil
}

// progressEvery is the number of records between two calls of Options.Progress.
const progressEvery = 1 << 14

// checkRange checks that the recording has the moments at which to begin and to stop.
func (p *player) checkRange() error {
	if from := p.opts.From; from != nil {
		if err := p.checkMoment(from.At, p.begun); err != nil {
			return err
		}
	}
	return p.checkMoment(p.opts.At, p.over)
}

// checkMoment checks that the recording has a moment; passed reports whether there were records
// after it.
func (p *player) checkMoment(so time.Duration, passed bool) error {
	if so == End {
		return nil
	}
	from, to := p.trace.Start, p.wall(p.state.Now())
	if p.cut {
		from = p.wall(p.first)
	}
	want := p.trace.Start.Add(so)
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

// addReaderLoss adds the gaps of the recording to the losses of the trace.
func (p *player) addReaderLoss(r *record.Reader) {
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

// reportIncidents reports failures for want of memory, but for the last few.
func (p *player) reportIncidents(more []*state.Incident, keep int) {
	if p.opts.OutOfMemory == nil {
		return
	}
	p.incidents = append(p.incidents, more...)
	for ; len(p.incidents) > keep; p.incidents = slices.Delete(p.incidents, 0, 1) {
		p.opts.OutOfMemory(p.incidents[0])
	}
}

// add plays the next record.
func (p *player) add(r record.Record) {
	switch r := r.(type) {
	case *record.Trace:
		if p.trace == nil { // there is no moment before it
			p.flush(false, false)
			p.trace = r
			p.apply(r)
			return
		}
		p.trace = r
	case *record.Cut:
		p.cut = p.cut || p.trace == nil
	case *record.Stack:
		if p.over {
			if !p.stacksOver {
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
		p.addMoment(r)
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
		p.flush(false, false)
	}
}

// addMoment plays what came before a moment, and the moment.
func (p *player) addMoment(r *record.Moment) {
	if !p.over {
		p.flush(p.beyond(r.Time), false)
	}
	if p.first == 0 {
		p.first = r.Time
	}
	if p.over {
		p.stacksOver = p.stacksOver || r.Time >= p.state.Now()+stackDelay
		return
	}
	if p.beginsBefore(r.Time) {
		p.begin()
	}
	p.slept = r.Slept
	p.apply(r)
	if p.cutAfterBegin {
		p.cutAfterBegin = false
		p.begin()
	}
	p.moment()
}

// apply puts one record into the state.
func (p *player) apply(r record.Record) {
	if p.opts.Before != nil {
		p.opts.Before(p.state, r)
	}
	p.state.Apply(r)
}

// maxBatch bounds the records between two moments that are held back. A tracer reports a
// moment after at most so many events.
const maxBatch = 1 << 16

// beyond reports whether a time comes after the one at which to stop.
func (p *player) beyond(at uint64) bool { return p.after(at, p.opts.At) }

// beginsBefore reports whether a time is the first after the one at which to begin.
func (p *player) beginsBefore(at uint64) bool {
	from := p.opts.From
	return from != nil && !p.begun && p.after(at, from.At)
}

// after reports whether a time comes after a moment as of Options.
func (p *player) after(at uint64, so time.Duration) bool {
	return p.trace != nil && so != End && p.wall(at).Sub(p.trace.Start) > so
}

// momentOf returns a moment as of Options.
func (p *player) momentOf(so time.Duration) *record.Moment {
	return &record.Moment{Time: uint64(max(p.trace.Start.Add(so).Sub(p.trace.Boot), 0)), Slept: p.slept}
}

// begin begins after the last record that was applied.
func (p *player) begin() {
	if !p.begun {
		p.state.Apply(p.momentOf(p.opts.From.At))
	}
	p.begun = true
	p.opts.From.State(p.state)
	p.state.ResetCounts()
}

// wall returns a time of records as that of the wall clock.
func (p *player) wall(at uint64) time.Time { return p.trace.Boot.Add(time.Duration(at)) }

// stop makes the state as it is at the moment at which to stop. Of the records that are left
// of the batch it applies the stacks: they are of events before, perhaps.
func (p *player) stop(left []record.Record) {
	p.over = true
	p.left, p.batch, p.events = left, nil, nil // left refers to the events
	for _, r := range left {
		if st, ok := r.(*record.Stack); ok {
			p.apply(st)
		}
	}
	to := p.momentOf(p.opts.At)
	if from := p.opts.From; from != nil && !p.begun && p.momentOf(from.At).Time <= to.Time {
		p.begin()
	}
	p.state.Apply(to)
}

// flush applies the batch. If stops is set, what comes next is beyond At. At the end of the
// recording the last record.Reported is left out, so that the processes which it removes are
// shown still.
func (p *player) flush(stops, end bool) {
	last := -1
	if end {
		last = lastReport(p.batch)
	}
	n := p.countUntil(stops)
	for i, r := range p.batch[:n] {
		if i == last {
			continue
		}
		if p.beginsBefore(p.timeOf(r)) {
			p.begin()
		}
		p.applyNext(r)
	}
	if stops = stops || n < len(p.batch); stops {
		p.stop(p.batch[n:])
		return
	}
	p.batch, p.events = p.batch[:0], p.events[:0]
}

// countUntil returns how many records of the batch come before the first event beyond At, or
// all if there is none and stops is not set. Those between the last event at At or before and
// the next event have no time of their own: they come later.
func (p *player) countUntil(stops bool) (n int) {
	for i, r := range p.batch {
		switch at := p.timeOf(r); {
		case at == 0:
		case p.beyond(at):
			return n
		default:
			n = i + 1
		}
	}
	if stops {
		return n
	}
	return len(p.batch)
}

// applyNext applies the next record of the batch.
func (p *player) applyNext(r record.Record) {
	switch r := r.(type) {
	case *record.Loss:
		p.lost = *r
	case *record.Cut:
		p.cutAfterBegin = p.cutAfterBegin || p.begun
	}
	p.apply(r)
}

// lastReport returns where the last record.Reported is, negative if there is none.
func lastReport(all []record.Record) int {
	for i, r := range slices.Backward(all) {
		if _, ok := r.(*record.Reported); ok {
			return i
		}
	}
	return -1
}

// timeOf returns the time of a record that all later records follow, 0 for others: readings
// come before some of the events before them. A keyframe has none: it ends with a moment.
func (p *player) timeOf(r record.Record) uint64 {
	switch r := r.(type) {
	case *event.Event:
		return r.Time
	case *record.Cut:
		return r.Time
	}
	return 0
}

// moment does the work of a tracer at each moment.
func (p *player) moment() {
	p.reportIncidents(p.state.Incidents(false), maxIncidents)
	p.state.Wants() // there is no source to ask
	if p.opts.Moment != nil {
		p.opts.Moment(p.state)
	}
}
