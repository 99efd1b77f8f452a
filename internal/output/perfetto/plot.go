package perfetto

import (
	"cmp"
	"slices"

	"github.com/google/btree"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/observe"
)

// A plot is the second pass: it writes the trace.
type plot struct {
	*observe.Observer[*held]
	instants
	lives
	survey *survey
	opts   Options
	lost   *loss.Set
	out    *writer

	records  int
	width    uint64 // of an interval, in nanoseconds
	offset   int64  // between the clocks, as the trace has it
	counters map[counterKey]*counter
	order    []*counter
	labels   map[ledger.SiteKey]*label
	dirty    []*counter // that the latest record changed
}

type counterKey struct {
	proc event.Process // none for all processes
	name string
}

// A label is the counters of a call site, and how its slices are shown.
type label struct {
	counters []string
	tracks   []*counter
	cached   []*counter // of its bytes in no tensor, if it is a pool
	title    string     // of slices
	args     message
}

// held is how much of a site its counters have.
type held struct {
	label         *label
	bytes, cached int64
}

// slack is more than two readings of the same two clocks differ by, in nanoseconds.
const slack = 1_000_000

// newPlot declares all that counts.
func newPlot(w *writer, v *survey, o Options, lost *loss.Set) *plot {
	t := &plot{survey: v, opts: o, lost: lost, out: w, counters: map[counterKey]*counter{}, labels: map[ledger.SiteKey]*label{}}
	t.Observer = observe.New(o.Native, observe.Hooks[*held]{Meet: t.meet, Count: t.count, Drop: t.drop, Flush: t.flush, Gone: t.gone, Failed: t.failed})
	t.lanes = map[laneKey]*btree.BTreeG[lane]{}
	t.offset = int64(v.slept)
	w.clocks(v.Begin, v.slept, v.Trace.Boot.UnixNano())
	for _, id := range v.ordered() {
		p := v.processes[id]
		p.uuid = w.process(id, p.name)
		if p.failed {
			p.failures = w.track("out of memory", p.uuid, 0, nil)
		}
		if p.driver {
			p.readings = w.track("driver's readings", p.uuid, 0, nil)
		}
	}
	t.declare()
	n := min(max(maxPoints/3/max(len(t.counters), 1), minIntervals), maxIntervals)
	t.width = (v.Now-v.Begin)/uint64(n) + 1
	return t
}

// declare makes the counters: first the totals, then their parts for which there is room.
func (t *plot) declare() {
	v := t.survey
	holders := map[string]map[event.Process]bool{} // of totals
	wanted := map[counterKey]int{}                 // 0 for totals
	want := func(id event.Process, name string, rank int) {
		key := counterKey{id, name}
		if old, ok := wanted[key]; !ok || rank < old {
			wanted[key] = rank
		}
	}
	for key, sample := range v.shown {
		l := &label{counters: v.counters(&sample, key.Kind)}
		if t.opts.Slices {
			l.title, l.args = describe(&sample)
		}
		t.labels[key] = l
		for i, name := range l.counters {
			want(key.Proc, name, min(i, 1))
		}
		if v.pools[key] {
			want(key.Proc, cached(&sample), 0)
		}
		if total := l.counters[0]; sample.GPU != "" {
			if holders[total] == nil {
				holders[total] = map[event.Process]bool{}
			}
			holders[total][key.Proc] = true
		}
	}
	for total, of := range holders {
		if len(of) > 1 {
			want(event.Process{}, total, 0)
		}
	}
	t.make(wanted)
	for key, l := range t.labels {
		add := func(tracks *[]*counter, id event.Process, name string) {
			if c := t.counters[counterKey{id, name}]; c != nil {
				*tracks = append(*tracks, c)
			}
		}
		for _, name := range l.counters {
			add(&l.tracks, key.Proc, name)
		}
		add(&l.tracks, event.Process{}, l.counters[0])
		if sample := v.shown[key]; v.pools[key] {
			add(&l.cached, key.Proc, cached(&sample))
		}
	}
	v.shown = nil
}

// compare orders totals before parts, then by process and name.
func (k counterKey) compare(other counterKey, rank map[counterKey]int) int {
	return cmp.Or(cmp.Compare(rank[k], rank[other]), cmp.Compare(k.proc.PID, other.proc.PID),
		cmp.Compare(k.proc.Start, other.proc.Start), cmp.Compare(k.name, other.name))
}

// make makes the counters that are wanted, in a certain order.
func (t *plot) make(wanted map[counterKey]int) {
	keys := make([]counterKey, 0, len(wanted))
	for key := range wanted {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b counterKey) int { return a.compare(b, wanted) })
	for i, key := range keys {
		if i >= maxTracks {
			t.lost.Add(lossTracks, uint64(len(keys)-i))
			return
		}
		name, parent := key.name, uint64(0)
		switch p := t.survey.processes[key.proc]; {
		case key.proc == event.Process{}:
			name += ", all processes"
		case p == nil:
			t.lost.Add(lossTracks, 1)
			continue
		default:
			parent = p.uuid
		}
		c := &counter{uuid: t.out.counter(name, parent)}
		t.counters[key] = c
		t.order = append(t.order, c)
	}
}

// before follows a record before the state applies it.
func (t *plot) before(s *state.State, r record.Record) {
	if t.records++; t.records > t.survey.records {
		return // it was written after the first pass had ended
	}
	t.Before(s, r)
	switch r := r.(type) {
	case *record.Moment:
		if d := int64(t.Slept) - t.offset; d > slack || d < -slack {
			t.offset = int64(t.Slept)
			t.out.clocks(t.Now, t.Slept, t.Trace.Boot.UnixNano())
		}
	case *record.Reading:
		if !t.Rebuilding {
			t.reading(r)
		}
	}
}

// gone ends the lives of what a process holds.
func (t *plot) gone(id event.Process) {
	if t.opts.Slices && t.Holds(id) {
		t.rest(t.State.RowsOf(id), func(event.Process) bool { return true }, t.Now, true)
	}
}

// drop subtracts what a site held.
func (t *plot) drop(x *observe.Site[*held]) { t.change(x.Own, -x.Own.bytes, -x.Own.cached) }

// count adds what a site holds now.
func (t *plot) count(x *observe.Site[*held]) {
	cached := int64(0)
	if len(x.Own.label.cached) > 0 {
		cached, _ = t.State.CachedBytes(x.Site)
	}
	t.change(x.Own, x.InuseBytes-x.Own.bytes, cached-x.Own.cached)
}

// flush writes what the latest record changed.
func (t *plot) flush() {
	t.writeOver()
	slices.SortFunc(t.dirty, func(a, b *counter) int { return cmp.Compare(a.uuid, b.uuid) })
	for _, c := range t.dirty {
		c.add(t.out, (t.Now-min(t.survey.Begin, t.Now))/t.width, t.Now)
	}
	t.dirty = t.dirty[:0]
}

// change changes the counters that have what a site holds.
func (t *plot) change(h *held, bytes, cached int64) {
	h.bytes += bytes
	h.cached += cached
	if bytes != 0 {
		t.add(h.label.tracks, bytes)
	}
	if cached != 0 {
		t.add(h.label.cached, cached)
	}
}

func (t *plot) add(to []*counter, bytes int64) {
	for _, c := range to {
		c.value += bytes
		if !c.dirty {
			c.dirty = true
			t.dirty = append(t.dirty, c)
		}
	}
}

// label returns the label of a site, nil if it has none.
func (t *plot) label(site *ledger.Site) *label {
	if x := t.Site(site); x != nil {
		return x.Own.label
	}
	return t.labels[site.SiteKey]
}

// unlabelled returns the label of a site that is not known: its bytes are in the totals.
func (t *plot) unlabelled(site *ledger.Site) *label {
	of := snapshot.Sample{Labels: snapshot.Labels{GPU: t.State.GPU(&site.SiteKey), Kind: site.Kind.String()}}
	l := &label{counters: t.survey.counters(&of, site.Kind)[:1]}
	for _, id := range []event.Process{site.Proc, {}} {
		if c := t.counters[counterKey{id, l.counters[0]}]; c != nil {
			l.tracks = append(l.tracks, c)
		}
	}
	return l
}

// meet returns the label of a new site.
func (t *plot) meet(site *ledger.Site) (*held, bool) {
	l := t.labels[site.SiteKey]
	if l == nil {
		t.lost.Add(lossSites, 1)
		l = t.unlabelled(site)
	}
	t.Prune(2*maxSites, func(x *observe.Site[*held]) bool { return x.Own.bytes == 0 && x.Own.cached == 0 })
	return &held{label: l}, true
}

// hear follows a change of what a site holds.
func (t *plot) hear(c ledger.Change) {
	if t.records > t.survey.records {
		return
	}
	t.Hear(c)
	// An allocation without a time is beyond the limit of live ones.
	if class := c.Site.Kind.Class(); !t.opts.Slices || !c.Ended || c.Time == 0 || t.Rebuilding || class == event.ClassDriver || c.Site.Kind == event.KindSystem {
		return
	}
	if t.over = append(t.over, life{c.Allocation, t.Now, true}); len(t.over) >= maxOver {
		t.writeOver()
	}
}

// finish writes what is left, at the end of the recording.
func (t *plot) finish(s *state.State) {
	if t.records <= t.survey.records {
		t.Finish(s)
	}
	for _, c := range t.order {
		c.flush(t.out)
	}
	t.EndFailures()
	if t.opts.Slices {
		t.rest(s.Rows, s.IsAlive, t.Now, false)
	}
}
