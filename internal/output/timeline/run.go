package timeline

import (
	"cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/series"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A remainder is memory without a call site: what a process holds on a GPU beyond what was
// seen, and its tensors on a device that lie in that.
type remainder struct {
	proc   event.Process
	role   role
	gpu    string // of memory beyond what was seen
	device int32  // of others
}

// A run collects what the page shows of a recording.
type run struct {
	sites
	State *state.State // as of the latest record
	opts  Options
	lost  *loss.Set

	// The time of the latest record, in nanoseconds of CLOCK_MONOTONIC.
	Trace      record.Trace
	Begin, Now uint64
	Gap        uint64 // when the latest gap of the recording began
	// Rebuilding: after a gap the recording repeats what is live. Until it has done so, sums
	// are too small.
	Rebuilding bool

	reading bool   // a reading may have changed what is held beyond what was seen
	rest    int    // records for which a reading waits, see countBeyond
	read    uint64 // when the last reading was counted
	drained bool   // the latest record is a moment by which everything was recorded

	leaves     []leaf
	stream     *series.Stream
	lives      lives
	failing    *state.Failures
	failures   []state.Failure // in the order in which they were over
	steps      *steps
	full       map[ledger.SiteKey]int32 // leaves of sites for which there was no room
	remainders map[remainder]int32
	bytes      map[int32]int64 // of leaves in remainders
	names      map[event.Process]string
	seen       map[event.Process]process
	deltas     []series.Delta           // by the latest record
	met        map[event.Process]uint64 // when a process was first recorded
	older      []olderBytes
	totals     render.Index[string]
	capacities map[string]int64 // bytes of GPUs, by gpuName
	calls      calls
	caller     thread         // of the latest event
	moment     uint64         // of what is in pending
	pending    []series.Delta // changes of one moment, of which there may be more
}

// olderBytes were there when their process was met, and became known later.
type olderBytes struct {
	time  uint64
	leaf  int32
	bytes int64
}

// A process is what totals must know of one.
type process struct{ seen, late, known bool }

func newRun(o Options, lost *loss.Set) *run {
	w := &run{sites: newSites(), opts: o, lost: lost, full: map[ledger.SiteKey]int32{}, remainders: map[remainder]int32{}, bytes: map[int32]int64{}, names: map[event.Process]string{},
		seen: map[event.Process]process{}, met: map[event.Process]uint64{}, totals: render.Index[string]{}, capacities: map[string]int64{}, calls: calls{}}
	w.failing = state.NewFailures(w.failed)
	w.stream = series.New(cmp.Or(o.deltas, maxDeltas), w.total)
	w.lives.leafOf, w.lives.max = func(site *ledger.Site) int32 { return w.touch(site).leaf }, cmp.Or(o.lives, maxLives)
	w.steps = newSteps(cmp.Or(o.steps, maxMarks))
	return w
}

// before follows a record before the state applies it.
func (w *run) before(s *state.State, r record.Record) {
	if w.State == nil {
		s.WatchPieces(func(c tensors.Piece) { w.lives.news = append(w.lives.news, c) })
		s.WatchSteps(w.stepped)
	}
	w.State = s
	w.lives.add(w, w.Now)
	if _, cut := r.(*record.Cut); cut {
		w.steps.label(s, s.IsAlive)
	}
	w.countChanged()
	switch r := r.(type) {
	case *record.Trace:
		w.Trace, w.selection = *r, nil // that is of another trace
	case *event.Event:
		w.Now = max(w.Now, r.Time)
		w.event(r)
		w.follow(r)
	case *record.Cut:
		w.Gap = w.Now
		w.Now, w.Rebuilding = max(w.Now, r.Time), true
		w.cut()
	case *record.Moment:
		w.Now, w.Rebuilding, w.drained = max(w.Now, r.Time), false, r.Drained
		w.giveUp()
	case *record.Process:
		if _, ok := w.met[r.Process]; !ok && len(w.met) < maxProcesses {
			w.met[r.Process] = w.Now
		}
	case *record.Reading:
		w.reading = true
		for i := range r.Devices {
			if d := &r.Devices[i]; d.Total > 0 {
				w.capacities[gpuName(d.Label)] = d.Total
			}
		}
	}
	if w.Begin == 0 && !w.Rebuilding {
		w.Begin = w.Now
	}
}

// dropRemainders subtracts what processes held beyond their call sites.
func (w *run) dropRemainders(whose func(event.Process) bool) {
	for key, leaf := range w.remainders {
		if whose(key.proc) {
			w.subtract(leaf, w.bytes[leaf])
			delete(w.bytes, leaf)
		}
	}
}

// flush adds to the stream what the latest record changed.
func (w *run) flush() {
	switch {
	case !w.reading:
	case w.rest > 0:
		w.rest--
	default:
		w.countBeyond()
		if w.drained {
			w.reading, w.read = false, w.Now
		}
	}
	w.drained = false
	if len(w.deltas) > 0 && w.Now != w.moment {
		w.endMoment()
		w.moment = w.Now
	}
	w.pending = append(w.pending, w.deltas...)
	w.deltas = w.deltas[:0]
}

// endMoment adds to the stream what a moment changed: memory that a call gives back leaves
// the program and the driver at one moment, as two records.
func (w *run) endMoment() {
	if by := series.Sum(w.pending); len(by) > 0 {
		w.stream.Add(w.moment, by)
	}
	w.pending = w.pending[:0]
}

// count adds what a site holds more than before.
func (w *run) count(x *site) {
	bytes, handed, tensor := x.InuseBytes, int64(0), x.Kind.Class() == event.ClassTensor
	cached, divided := w.State.CachedBytes(x.Site)
	if !tensor && divided {
		handed = bytes - cached
		w.leaves[x.leaf].cached = true
	}
	bytes -= handed
	more, out := bytes-x.bytes, x.handed-handed
	x.bytes, x.handed = bytes, handed
	if more != 0 {
		w.deltas = append(w.deltas, series.Delta{Line: x.leaf, Bytes: more})
	}
	if more != 0 && x.Kind == event.KindBacking {
		w.take(x.Device, more)
	}
	if tensor {
		out += more
	}
	if out != 0 {
		// Bytes that are in tensors, and in none of the segments that were seen, are outside.
		w.grow(remainder{proc: x.Proc, role: roleOutside, device: x.Device}, out)
	}
}

// grow adds bytes to a remainder.
func (w *run) grow(key remainder, bytes int64) {
	leaf, ok := w.remainders[key]
	if !ok {
		kind := event.KindTensor
		if key.role == roleCall {
			kind = event.KindBacking
		}
		if leaf = w.newLeaf(ledger.SiteKey{Proc: key.proc, Kind: kind, Device: key.device}, key.role, key.gpu); leaf < 0 {
			w.lost.Add(lossSites, 1)
			return
		}
		w.remainders[key] = leaf
	}
	w.bytes[leaf] += bytes
	w.deltas = append(w.deltas, series.Delta{Line: leaf, Bytes: bytes})
}

// countBeyond adds by how much what processes hold beyond what was seen changed.
//
// It looks at all processes. With many of them, further readings wait for some records.
func (w *run) countBeyond() {
	const looksPerRecord = 64
	looks := 0
	for id := range w.State.Living {
		looks++
		w.State.Unseen(id, func(gpu string, bytes int64) {
			p := w.seen[id]
			p.known = true
			w.seen[id] = p
			key := remainder{proc: id, role: roleBeyond, gpu: gpu}
			leaf, old := w.remainders[key]
			d := bytes
			if old {
				d -= w.bytes[leaf]
			}
			if d != 0 {
				w.grow(key, d)
			}
			if met, ok := w.met[id]; ok && !old && w.read <= met && bytes > 0 {
				w.sinceMet(key, met)
			}
		})
	}
	w.rest = looks / looksPerRecord
}

// sinceMet counts the latest growth of a remainder from when its process was met: no
// reading says that it was less then.
func (w *run) sinceMet(key remainder, met uint64) {
	leaf, ok := w.remainders[key]
	last := len(w.deltas) - 1
	if ok && last >= 0 && w.deltas[last].Line == leaf {
		w.older = append(w.older, olderBytes{met, leaf, w.deltas[last].Bytes})
		w.deltas = w.deltas[:last]
	}
}

// stepped adds a training step. A keyframe repeats older steps, of which only those are new
// that ended in a gap of the recording.
func (w *run) stepped(x state.TrainingStep) {
	if !w.Rebuilding || w.Begin > 0 && x.End > w.Gap {
		w.steps.add(x)
	}
}

// finish names all leaves, at the end of the recording.
func (w *run) finish(s *state.State) {
	w.State, w.rest = s, 0
	w.lives.add(w, w.Now)
	w.steps.label(s, s.IsAlive)
	w.Rebuilding = false
	w.countChanged()
	w.storeAll()
	w.failing.End()
	w.lives.finish(w)
	w.nameSites()
	w.endMoment()
	w.stream.Finish()
}
