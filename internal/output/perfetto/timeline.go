package perfetto

import (
	"cmp"
	"maps"
	"slices"

	"github.com/google/btree"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// A timeline is the second pass: it writes the trace.
type timeline struct {
	moment
	instants
	lives
	survey *survey
	state  *state.State
	opts   Options
	lost   *loss.Set
	out    *writer

	records  int
	width    uint64 // of an interval, in nanoseconds
	told     int64  // what the clocks were told to be apart
	counters map[counterKey]*counter
	order    []*counter
	labels   map[ledger.SiteKey]*label

	sites map[*ledger.Site]*held
	of    map[event.Process][]*ledger.Site
	// What the latest record changed.
	changed  []*held
	dirty    []*counter
	newcomer bool // it is of a process that was not heard of
	known    map[event.Process]bool
}

type counterKey struct {
	proc event.Process // none for all processes
	name string
}

// A label is what a call site is.
type label struct {
	counters []string
	tracks   []*counter
	cached   []*counter // what it holds in no tensor, if it is a pool
	title    string     // of slices
	args     message
}

// held is what a site holds, as its counters have it.
type held struct {
	site          *ledger.Site
	label         *label
	bytes, cached int64
	changed       bool
}

// slack is more than two readings of the same two clocks differ by, in nanoseconds.
const slack = 1_000_000

// newTimeline declares all that counts.
func newTimeline(w *writer, v *survey, o Options, lost *loss.Set) *timeline {
	t := &timeline{survey: v, opts: o, lost: lost, out: w, counters: map[counterKey]*counter{}, labels: map[ledger.SiteKey]*label{},
		sites: map[*ledger.Site]*held{}, of: map[event.Process][]*ledger.Site{}, known: map[event.Process]bool{}}
	t.failing = state.NewFailures(t.failed)
	t.lanes = map[laneKey]*btree.BTreeG[lane]{}
	t.told = int64(v.first)
	w.clocks(v.begin, v.first, v.trace.Boot.UnixNano())
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
	t.width = (v.end-v.begin)/uint64(n) + 1
	return t
}

// declare makes the counters: first the totals, then their parts for which there is room.
func (t *timeline) declare() {
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
func (t *timeline) make(wanted map[counterKey]int) {
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

// before hears of each record before the state takes it: what the one before it changed
// is in the state then.
func (t *timeline) before(s *state.State, r record.Record) {
	if t.records++; t.records > t.survey.records {
		return // it was written after the first pass had ended
	}
	t.state = s
	t.settle(s)
	t.take(r)
	switch r := r.(type) {
	case *record.Cut:
		t.drop(func(event.Process) bool { return true })
	case *record.Moment:
		if d := int64(t.slept) - t.told; d > slack || d < -slack {
			t.told = int64(t.slept)
			t.out.clocks(t.now, t.slept, t.trace.Boot.UnixNano())
		}
	case *record.Reading:
		if !t.rebuilding {
			t.reading(r)
		}
	case *event.Event:
		t.event(s, r)
	}
}

func (t *timeline) event(s *state.State, e *event.Event) {
	if t.rebuilding {
		return
	}
	if state.OutOfMemory(e) {
		t.failing.Add(s, e)
	}
	if e.Op == event.OpExit {
		t.gone(s, e.Proc)
		return
	}
	if !t.known[e.Proc] {
		if len(t.known) >= maxProcesses {
			clear(t.known)
		}
		t.known[e.Proc], t.newcomer = true, true
	}
}

// gone ends what a process holds.
func (t *timeline) gone(s *state.State, id event.Process) {
	whose := func(other event.Process) bool { return other == id }
	if t.opts.Slices && t.of[id] != nil {
		t.rest(s, whose, t.now, true)
	}
	t.drop(whose)
	delete(t.known, id)
}

// drop takes what processes hold out of the counters.
func (t *timeline) drop(whose func(event.Process) bool) {
	for id, all := range t.of {
		if !whose(id) {
			continue
		}
		for _, one := range all {
			h := t.sites[one]
			h.count(t, -h.bytes, -h.cached)
			delete(t.sites, one)
		}
		delete(t.of, id)
	}
	t.changed = slices.DeleteFunc(t.changed, func(h *held) bool { return whose(h.site.Proc) })
}

// settle counts what the latest record changed.
func (t *timeline) settle(s *state.State) {
	if t.newcomer {
		// A process that has a PID shows that the one that had it has ended.
		t.newcomer = false
		for _, id := range slices.SortedFunc(maps.Keys(t.of), compareProcesses) {
			if !s.Lives(id) {
				t.gone(s, id)
			}
		}
	}
	for _, h := range t.changed {
		h.changed = false
		cached := int64(0)
		if len(h.label.cached) > 0 {
			cached = s.Cached(h.site)
		}
		h.count(t, h.site.InuseBytes-h.bytes, cached-h.cached)
	}
	t.changed = t.changed[:0]
	t.writeOver()
	if t.rebuilding {
		return
	}
	slices.SortFunc(t.dirty, func(a, b *counter) int { return cmp.Compare(a.uuid, b.uuid) })
	for _, c := range t.dirty {
		c.take(t.out, (t.now-min(t.survey.begin, t.now))/t.width, t.now)
	}
	t.dirty = t.dirty[:0]
}

// count changes the counters that have what a site holds.
func (h *held) count(t *timeline, bytes, cached int64) {
	h.bytes += bytes
	h.cached += cached
	if bytes != 0 {
		t.add(h.label.tracks, bytes)
	}
	if cached != 0 {
		t.add(h.label.cached, cached)
	}
}

func (t *timeline) add(to []*counter, bytes int64) {
	for _, c := range to {
		c.value += bytes
		if !c.dirty {
			c.dirty = true
			t.dirty = append(t.dirty, c)
		}
	}
}

// label returns what a site is, nil if that is not known.
func (t *timeline) label(one *ledger.Site) *label {
	if h := t.sites[one]; h != nil {
		return h.label
	}
	return t.labels[one.SiteKey]
}

// unlabelled returns the label of a site that is not known: its bytes are in the totals.
func (t *timeline) unlabelled(one *ledger.Site) *label {
	of := snapshot.Sample{Labels: snapshot.Labels{GPU: t.state.GPU(&one.SiteKey), Kind: one.Kind.String()}}
	l := &label{counters: t.survey.counters(&of, one.Kind)[:1]}
	for _, id := range []event.Process{one.Proc, {}} {
		if c := t.counters[counterKey{id, l.counters[0]}]; c != nil {
			l.tracks = append(l.tracks, c)
		}
	}
	return l
}

// prune forgets the sites that hold nothing.
func (t *timeline) prune() {
	for one, h := range t.sites {
		if h.bytes == 0 && h.cached == 0 && !h.changed {
			delete(t.sites, one)
		}
	}
	for id, all := range t.of {
		t.of[id] = slices.DeleteFunc(all, func(one *ledger.Site) bool { return t.sites[one] == nil })
	}
}

// held returns what a site holds.
func (t *timeline) held(one *ledger.Site) *held {
	h := t.sites[one]
	if h == nil {
		l := t.labels[one.SiteKey]
		if l == nil {
			t.lost.Add(lossSites, 1)
			l = t.unlabelled(one)
		}
		if len(t.sites) >= 2*maxSites {
			t.prune()
		}
		h = &held{site: one, label: l}
		t.sites[one] = h
		t.of[one.Proc] = append(t.of[one.Proc], one)
	}
	if !h.changed {
		h.changed = true
		t.changed = append(t.changed, h)
	}
	return h
}

// hear hears of a change.
func (t *timeline) hear(c ledger.Change) {
	if t.records > t.survey.records {
		return
	}
	t.held(c.Site)
	class := c.Site.Kind.Class()
	// What has no time of its own is beyond what is kept.
	if !t.opts.Slices || !c.Ended || c.Time == 0 || t.rebuilding || class == event.ClassDriver || c.Site.Kind == event.KindSystem {
		return
	}
	if t.over = append(t.over, life{c.Allocation, t.now, true}); len(t.over) >= maxOver {
		t.writeOver()
	}
}

// finish writes what is left, at the end of the recording.
func (t *timeline) finish(s *state.State) {
	if t.records <= t.survey.records {
		t.rebuilding = false
		t.settle(s)
	}
	for _, c := range t.order {
		c.flush(t.out)
	}
	t.failing.End()
	if t.opts.Slices {
		t.rest(s, s.Lives, t.now, false)
	}
}
