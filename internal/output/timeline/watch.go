package timeline

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

// A role is how the bytes of a leaf count in what a process holds on a GPU.
type role uint8

const (
	roleOther   role = iota // as they are, in a total that is not a GPU's
	rolePlain               // an allocation or a tensor: it lies in what the kernel driver handed out
	roleAsync               // likewise, in a pool
	roleTaken               // handed out by the kernel driver
	roleBacking             // handed out by the kernel driver for allocations
	rolePool                // handed out by the kernel driver for pools
	roleOutside             // tensors in memory that was not seen allocated
	roleBeyond              // as state.Beyond has it
)

func roleOf(k event.Kind) role {
	switch {
	case k == event.KindAsync:
		return roleAsync
	case k == event.KindBacking:
		return roleBacking
	case k == event.KindPool:
		return rolePool
	case k.Class() == event.ClassDevice, k.Class() == event.ClassTensor:
		return rolePlain
	case k.Class() == event.ClassDriver:
		return roleTaken
	}
	return roleOther
}

// A leaf is what has bytes over time: a call site, or what a process holds beyond those.
type leaf struct {
	key    ledger.SiteKey
	role   role
	gpu    string // label, as far as it is known
	cached bool   // tensors are handed out of it: its bytes are what is in none
	sample *snapshot.Sample
}

// held is what a site holds, as the stream has it.
type held struct {
	leaf    int32
	site    *ledger.Site
	bytes   int64
	handed  int64 // bytes of it in tensors
	changed bool
}

// A rest names what has no call site: what a process holds on a GPU beyond what was
// seen, and its tensors on a device that lie in that.
type rest struct {
	proc   event.Process
	role   role
	gpu    string // of what is beyond
	device int32  // of tensors
}

// kept are the leaves of a process as they were when it ended.
type kept struct {
	leaves []int32
	view   *state.Selection
}

// A watcher hears of all that changes, and keeps what the page has of it.
type watcher struct {
	opts  Options
	lost  *loss.Set
	state *state.State
	trace record.Trace

	now, begin, gap uint64 // CLOCK_MONOTONIC in nanoseconds: gap is when the last one began
	// rebuilding: what was live is being told again, so that what is held is less than
	// it was.
	rebuilding bool
	reading    bool   // one may change what is held beyond what was seen
	rest       int    // records for which a reading waits, see beyondSeen
	read       uint64 // when the last one had
	drained    bool   // the latest record was a moment by which all was told

	leaves   []leaf
	stream   *stream
	lives    lives
	failing  *state.Failures
	failures []state.Failure // in the order in which they were over
	steps    *steps
	sites    map[*ledger.Site]*held
	of       map[event.Process][]*held
	pids     map[uint32][]event.Process // those in of
	full     map[ledger.SiteKey]int32   // leaves of sites for which there was no room
	rests    map[rest]int32
	bytes    map[int32]int64 // of leaves in rests
	views    []kept
	names    map[event.Process]string
	seen     map[event.Process]process
	changed  []*held
	dropped  []delta
	fresh    []uint32 // PIDs of processes that were heard of first
	known    map[event.Process]bool
	met      map[event.Process]uint64 // when a process was first told of
	older    []olderBytes
	places   map[string]int
}

// Bytes are older that were there when its process was met, as it came to be known later.
type olderBytes struct {
	time  uint64
	leaf  int32
	bytes int64
}

// A process is what totals must know of one.
type process struct{ seen, late, told bool }

func newWatcher(o Options, lost *loss.Set) *watcher {
	w := &watcher{opts: o, lost: lost, sites: map[*ledger.Site]*held{}, of: map[event.Process][]*held{}, pids: map[uint32][]event.Process{}, full: map[ledger.SiteKey]int32{},
		rests: map[rest]int32{}, bytes: map[int32]int64{}, names: map[event.Process]string{},
		seen: map[event.Process]process{}, known: map[event.Process]bool{}, met: map[event.Process]uint64{}, places: map[string]int{}}
	w.stream = newStream(cmp.Or(o.deltas, maxDeltas), w.place)
	w.lives.of, w.lives.max = w.layLeaf, cmp.Or(o.lives, maxLives)
	w.failing, w.steps = state.NewFailures(w.failed), newSteps(cmp.Or(o.steps, maxMarks))
	return w
}

// place returns the total that a leaf is part of: of what lies in what the kernel driver
// handed out, only that counts.
func (w *watcher) place(i int32) int {
	l := &w.leaves[i]
	if l.gpu == "" || l.gpu == unknownGPU {
		if l.role != roleBeyond && w.state != nil && w.state.Lives(l.key.Proc) {
			l.gpu = w.state.GPU(&l.key)
		}
	}
	name := l.gpu
	switch l.role {
	case rolePlain, roleAsync:
		if w.sees(l.key.Proc) {
			return -1
		}
	case roleBacking, rolePool, roleTaken, roleBeyond:
	case roleOutside:
		return -1
	default:
		name = l.key.Kind.Class().String()
	}
	n, ok := w.places[name]
	if !ok {
		n = len(w.places)
		w.places[name] = n
	}
	return n
}

// sees is state.Sees of a process that may have ended.
func (w *watcher) sees(id event.Process) bool {
	if w.state.Lives(id) {
		return w.state.Sees(id)
	}
	return w.seen[id].seen
}

const unknownGPU = "unknown"

// before hears of each record before the state takes it: what the one before it changed
// is in the state then.
func (w *watcher) before(s *state.State, r record.Record) {
	if w.state == nil {
		s.WatchPlaces(w.laid)
		s.WatchSteps(w.stepped)
	}
	w.state = s
	w.settle()
	switch r := r.(type) {
	case *record.Trace:
		w.trace = *r
	case *record.Cut:
		w.keepAll()
		w.drop(func(event.Process) bool { return true })
		w.gap = w.now
		w.now, w.rebuilding = max(w.now, r.Time), true
		w.lives.endAll(w.now, nil)
	case *record.Moment:
		w.now, w.rebuilding, w.drained = max(w.now, r.Time), false, r.Drained
	case *record.Process:
		if _, ok := w.met[r.Process]; !ok && len(w.met) < maxProcesses {
			w.met[r.Process] = w.now
		}
	case *record.Reading:
		w.reading = true
	case *event.Event:
		if w.rebuilding {
			break
		}
		w.now = max(w.now, r.Time)
		w.event(r)
	}
	if w.begin == 0 && !w.rebuilding {
		w.begin = w.now
	}
}

func (w *watcher) event(e *event.Event) {
	if state.OutOfMemory(e) {
		w.failing.Add(w.state, e)
	}
	if e.Op == event.OpExit {
		w.gone(e.Proc, e.Name)
		return
	}
	if !w.known[e.Proc] {
		if len(w.known) >= maxProcesses {
			clear(w.known)
		}
		w.known[e.Proc], w.fresh = true, append(w.fresh, e.Proc.PID)
	}
}

// gone ends what a process holds.
func (w *watcher) gone(id event.Process, name string) {
	if len(w.of[id]) > 0 {
		w.names[id] = cmp.Or(w.state.Name(id), name, w.names[id])
		w.learn(id)
		w.keep(id)
		w.steps.learn(w.state, func(other event.Process) bool { return other == id })
	}
	w.drop(func(other event.Process) bool { return other == id })
	w.lives.endAll(w.now, &id)
	delete(w.known, id)
	delete(w.met, id)
}

func (w *watcher) learn(id event.Process) {
	p := w.seen[id]
	p.seen, p.late = w.state.Sees(id), w.state.Late(id)
	w.seen[id] = p
}

// keep keeps the leaves of a process that is about to end.
func (w *watcher) keep(id event.Process) {
	var of kept
	var sites []*ledger.Site
	for _, h := range w.of[id] {
		if h.site != nil && w.leaves[h.leaf].sample == nil {
			of.leaves, sites = append(of.leaves, h.leaf), append(sites, h.site)
		}
	}
	if len(sites) > 0 {
		of.view = w.state.Select(sites, w.opts.Native)
		w.views = append(w.views, of)
	}
}

func (w *watcher) keepAll() {
	w.steps.learn(w.state, w.state.Lives)
	for _, id := range slices.SortedFunc(maps.Keys(w.of), compareProcesses) {
		w.names[id] = cmp.Or(w.state.Name(id), w.names[id])
		w.learn(id)
		w.keep(id)
	}
}

func compareProcesses(a, b event.Process) int {
	return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Start, b.Start))
}

// drop takes what processes hold out of the stream.
func (w *watcher) drop(whose func(event.Process) bool) {
	take := func(leaf int32, bytes int64) {
		if bytes != 0 {
			w.dropped = append(w.dropped, delta{leaf, -bytes})
		}
	}
	for id, all := range w.of {
		if !whose(id) {
			continue
		}
		for _, h := range all {
			take(h.leaf, h.bytes)
			delete(w.sites, h.site)
		}
		delete(w.of, id)
		if left := slices.DeleteFunc(w.pids[id.PID], func(other event.Process) bool { return other == id }); len(left) > 0 {
			w.pids[id.PID] = left
		} else {
			delete(w.pids, id.PID)
		}
	}
	for key, leaf := range w.rests {
		if whose(key.proc) {
			take(leaf, w.bytes[leaf])
			delete(w.bytes, leaf)
		}
	}
	w.changed = slices.DeleteFunc(w.changed, func(h *held) bool { return whose(w.leaves[h.leaf].key.Proc) })
}

// settle adds to the stream what the latest record changed.
func (w *watcher) settle() {
	w.lives.settle(w, w.now)
	if w.rebuilding {
		return // until all is told again
	}
	by := w.dropped
	w.dropped = w.dropped[:0]
	// A process that has a PID shows that the one that had it has ended.
	for _, pid := range w.fresh {
		for _, id := range slices.SortedFunc(slices.Values(w.pids[pid]), compareProcesses) {
			if !w.state.Lives(id) {
				w.gone(id, "")
			}
		}
		by, w.dropped = append(by, w.dropped...), w.dropped[:0]
	}
	w.fresh = w.fresh[:0]
	partial := w.partial()
	for _, h := range w.changed {
		h.changed = false
		by = w.count(by, h, partial)
	}
	w.changed = w.changed[:0]
	switch {
	case !w.reading:
	case w.rest > 0:
		w.rest--
	default:
		by = w.beyondSeen(by)
		if w.drained {
			w.reading, w.read = false, w.now
		}
	}
	w.drained = false
	if by = sum(by); len(by) > 0 {
		w.stream.add(w.now, by)
	}
}

// sum puts deltas in order, one of each leaf.
func sum(by []delta) []delta {
	if len(by) > 1 {
		slices.SortFunc(by, func(a, b delta) int { return cmp.Compare(a.leaf, b.leaf) })
	}
	out := by[:0]
	for _, d := range by {
		if n := len(out); n > 0 && out[n-1].leaf == d.leaf {
			out[n-1].bytes += d.bytes
		} else {
			out = append(out, d)
		}
	}
	return slices.DeleteFunc(out, func(d delta) bool { return d.bytes == 0 })
}

// partial tells that not every tensor is told: what of segments is in tensors is not
// known at each moment, and all of them count as allocations.
func (w *watcher) partial() bool {
	sample, least := w.state.Telling()
	return sample != 0 || least != 0
}

// count adds to by what a site holds more than before.
func (w *watcher) count(by []delta, h *held, partial bool) []delta {
	bytes, handed, tensor := h.site.InuseBytes, int64(0), h.site.Kind.Class() == event.ClassTensor
	switch {
	case partial && tensor:
		bytes = 0
	case !tensor && w.state.Pools(h.site):
		handed = bytes - w.state.Cached(h.site)
		w.leaves[h.leaf].cached = true
	}
	bytes -= handed
	more, out := bytes-h.bytes, h.handed-handed
	h.bytes, h.handed = bytes, handed
	if more != 0 {
		by = append(by, delta{h.leaf, more})
	}
	if tensor {
		out += more
	}
	if out != 0 {
		// What is in tensors, and in none of the segments that were seen, is outside.
		by = w.more(by, rest{proc: h.site.Proc, role: roleOutside, device: h.site.Device}, out)
	}
	return by
}

// more adds to by that a rest became more.
func (w *watcher) more(by []delta, key rest, bytes int64) []delta {
	leaf, ok := w.rests[key]
	if !ok {
		if leaf = w.add(ledger.SiteKey{Proc: key.proc, Kind: event.KindTensor, Device: key.device}, key.role, key.gpu); leaf < 0 {
			w.lost.Add(lossSites, 1)
			return by
		}
		w.rests[key] = leaf
	}
	w.bytes[leaf] += bytes
	return append(by, delta{leaf, bytes})
}

// beyondSeen adds by how much what processes hold beyond what was seen changed.
//
// All processes are looked at. With many of them, further readings wait for some records.
func (w *watcher) beyondSeen(by []delta) []delta {
	const looksPerRecord = 64
	looks := 0
	defer func() { w.rest = looks / looksPerRecord }()
	for id := range w.state.Living {
		looks++
		w.state.Beyond(id, func(gpu string, bytes int64) {
			p := w.seen[id]
			p.told = true
			w.seen[id] = p
			key := rest{proc: id, role: roleBeyond, gpu: gpu}
			was := w.leafOfRest(key)
			if d := bytes - w.bytes[was]; d != 0 {
				by = w.more(by, key, d)
			}
			if met, ok := w.met[id]; ok && was < 0 && w.read <= met && bytes > 0 {
				by = w.sinceMet(by, w.leafOfRest(key), met)
			}
		})
	}
	return by
}

// sinceMet takes what a leaf became more by, the last in by, for what its process held
// when it was met: no reading says that it was less then.
func (w *watcher) sinceMet(by []delta, leaf int32, met uint64) []delta {
	last := len(by) - 1
	if leaf < 0 || last < 0 || by[last].leaf != leaf {
		return by
	}
	w.older = append(w.older, olderBytes{met, leaf, by[last].bytes})
	return by[:last]
}

func (w *watcher) leafOfRest(key rest) int32 {
	if leaf, ok := w.rests[key]; ok {
		return leaf
	}
	return -1
}

// add makes a leaf, or returns a negative number where there is no room.
func (w *watcher) add(key ledger.SiteKey, r role, gpu string) int32 {
	if len(w.leaves) >= maxLeaves {
		return -1
	}
	w.leaves = append(w.leaves, leaf{key: key, role: r, gpu: gpu})
	return int32(len(w.leaves) - 1)
}

// leafOf returns the leaf of a new site: its own, or where there are too many one for all
// of its process, GPU and kind.
func (w *watcher) leafOf(one *ledger.Site) int32 {
	if leaf := w.add(one.SiteKey, roleOf(one.Kind), ""); leaf >= 0 {
		return leaf
	}
	w.lost.Add(lossSites, 1)
	key := ledger.SiteKey{Proc: one.Proc, Kind: one.Kind, Device: one.Device}
	leaf, ok := w.full[key]
	if !ok {
		leaf = int32(len(w.leaves))
		w.leaves = w.made(key)
		w.full[key] = leaf
	}
	return leaf
}

func (w *watcher) made(key ledger.SiteKey) []leaf {
	return append(w.leaves, leaf{key: key, role: roleOf(key.Kind)})
}

// held returns what a site holds.
func (w *watcher) held(one *ledger.Site) *held {
	h := w.sites[one]
	if h == nil {
		h = &held{site: one, leaf: w.leafOf(one)}
		w.sites[one] = h
		if w.of[one.Proc] == nil {
			w.pids[one.Proc.PID] = append(w.pids[one.Proc.PID], one.Proc)
		}
		w.of[one.Proc] = append(w.of[one.Proc], h)
		if one.Kind == event.KindTensor {
			w.lives.made(one.Proc, one.Stack, h.leaf)
		}
	}
	w.touch(h)
	return h
}

func (w *watcher) touch(h *held) {
	if !h.changed {
		h.changed = true
		w.changed = append(w.changed, h)
	}
}

// hear hears of a change of what a site holds.
func (w *watcher) hear(c ledger.Change) { w.held(c.Site) }

// laid hears of where memory lies. Which leaf it is of is known when the event is over.
func (w *watcher) laid(c tensors.Piece) { w.lives.news = append(w.lives.news, c) }

// stepped hears of a training step. A keyframe tells of those before it, of which only
// those are new that ended in a gap of the recording.
func (w *watcher) stepped(x state.TrainingStep) {
	if !w.rebuilding || w.begin > 0 && x.End > w.gap {
		w.steps.add(x)
	}
}

// layLeaf returns the leaf of memory that the driver handed out.
func (w *watcher) layLeaf(one *ledger.Site) int32 { return w.held(one).leaf }

// finish names what was kept, at the end of the recording.
func (w *watcher) finish(s *state.State) {
	w.state, w.rebuilding = s, false
	w.rest = 0
	w.settle()
	w.keepAll()
	w.failing.End()
	w.lives.finish(w)
	for _, k := range w.views {
		for i, sample := range k.view.Selected() {
			w.leaves[k.leaves[i]].sample = &sample
		}
	}
	w.stream.finish()
}
