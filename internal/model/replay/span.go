package replay

import (
	"cmp"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// A Span says what times a recording has, as durations since its trace began.
type Span struct {
	Start time.Time // when the trace began
	End   time.Duration
	// Peak is when all processes together held the most memory on GPUs. While they hold that
	// much, it is when most of it was allocated, and of that in tensors. It is the end if they
	// never held any.
	Peak time.Duration
	// Most is when tensors held most, and Tensors how many bytes, 0 if none were recorded.
	Most    time.Duration
	Tensors int64
	// First is when processes first held memory on GPUs, 0 if they never did, and Grew when they last came
	// to hold more, in tensors too: the end if they never did. What comes after that only frees.
	First, Grew time.Duration
	// OutOfMemory is when the last request failed for want of memory that did not recover, or else the
	// last one of all; negative for none.
	OutOfMemory time.Duration
}

// A failed follows the failures.
type failed struct {
	at        time.Time
	recovered bool
}

func (f *failed) add(in *state.Incident) {
	if at, recovered := in.Failed(); f.at.IsZero() || f.recovered || !recovered {
		f.at, f.recovered = at, recovered
	}
}

// Says says which moment at is: "at the peak, 14.212s after the trace began".
func (x Span) Says(at time.Duration) string {
	after := min(at, x.End).Round(time.Millisecond).String() + " after the trace began"
	switch {
	case at == x.Peak:
		return "at the peak, " + after
	case at >= x.End:
		return "at the end, " + after
	case at == 0:
		return "at the beginning of the trace"
	}
	return after
}

// Measure plays all of a recording, and returns its span and the state at its end. Before of
// opts is not used, and At is the end. Errors are as PlayReader's.
func Measure(r *record.Reader, opts Options) (Span, *state.State, error) {
	f := peakFinder{held: map[event.Process]state.Held{}}
	opts.At, opts.Before = End, f.before
	var out failed
	told := opts.OutOfMemory
	opts.OutOfMemory = func(in *state.Incident) {
		out.add(in)
		if told != nil {
			told(in)
		}
	}
	s, err := PlayReader(r, opts)
	if err != nil {
		return Span{}, nil, err
	}
	f.count(s)
	f.compare(s)
	x := Span{Start: s.Start(), End: s.Time().Sub(s.Start()), OutOfMemory: -1}
	if !out.at.IsZero() {
		x.OutOfMemory = min(max(out.at.Sub(x.Start), 0), x.End)
	}
	at := func(time uint64) time.Duration { return min(max(s.Wall(time).Sub(x.Start), 0), x.End) }
	x.Peak, x.Grew = x.End, x.End
	if f.at > 0 {
		x.Peak, x.Most, x.First, x.Grew = at(f.at), at(f.most), at(f.first), at(f.grew)
		x.Tensors = f.tensors
	}
	return x, s, nil
}

// A peakFinder follows a recording to its peak.
type peakFinder struct {
	held       map[event.Process]state.Held
	sum        state.Held
	changed    []event.Process // by the latest record
	rebuilding bool            // a gap was: the recording repeats what is live
	rebuilt    bool            // the latest record ended that
	differs    bool            // sum was not compared with peak yet

	peak state.Held
	at   uint64

	tensors int64 // the most
	most    uint64

	last        state.Held // when it was compared
	first, grew uint64
}

// before follows a record before the state applies it: the state shows what the record
// before it changed.
func (f *peakFinder) before(s *state.State, r record.Record) {
	f.count(s)
	switch r := r.(type) {
	case *event.Event:
		f.endMoment(s, r.Time)
		f.changed = append(f.changed, r.Proc)
		// A new process shows that the one which had its PID has ended.
		for _, id := range [...]event.Process{r.Proc, r.Child} {
			if old := s.Current(id.PID); old != id && old != (event.Process{}) {
				f.changed = append(f.changed, old)
			}
		}
	case *record.Cut:
		f.endMoment(s, r.Time)
		clear(f.held)
		f.sum, f.rebuilding = state.Held{}, true
	case *record.Moment:
		f.endMoment(s, r.Time)
		f.rebuilt, f.rebuilding = f.rebuilding, false
	}
}

// count adds what the latest record changed.
func (f *peakFinder) count(s *state.State) {
	if len(f.changed) == 0 && !f.rebuilt {
		return
	}
	for _, id := range f.changed {
		f.set(id, s)
	}
	if f.rebuilt {
		for id := range s.Living {
			f.set(id, s)
		}
	}
	f.changed, f.rebuilt, f.differs = f.changed[:0], false, true
}

// endMoment compares the sum if the next record is later: of each moment, the recording shows what
// the last of its records has made. Some events come after a record with a later time.
func (f *peakFinder) endMoment(s *state.State, next uint64) {
	if next > s.Now() {
		f.compare(s)
	}
}

func (f *peakFinder) compare(s *state.State) {
	if f.differs && !f.rebuilding {
		if f.peak.Compare(f.sum) < 0 {
			f.peak, f.at = f.sum, s.Now()
		}
		if f.sum.Tensors > f.tensors {
			f.tensors, f.most = f.sum.Tensors, s.Now()
		}
		if f.sum.Total > f.last.Total || f.sum.Allocated > f.last.Allocated || f.sum.Tensors > f.last.Tensors {
			f.first, f.grew = cmp.Or(f.first, s.Now()), s.Now()
		}
		f.last = f.sum
	}
	f.differs = false
}

// set replaces what a process holds in the sum.
func (f *peakFinder) set(id event.Process, s *state.State) {
	old, now := f.held[id], s.Held(id)
	f.sum.Total += now.Total - old.Total
	f.sum.Allocated += now.Allocated - old.Allocated
	f.sum.Tensors += now.Tensors - old.Tensors
	if now == (state.Held{}) {
		delete(f.held, id)
	} else {
		f.held[id] = now
	}
}
