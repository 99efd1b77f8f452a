package ledger

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A siteTable has the call sites of one process, and the sums over them.
type siteTable struct {
	slots[*Site] // nil where one was folded
	p            *process
	at           map[siteKey]uint32
	other        [event.NumKinds]uint32 // synthetic sites, index + 1
	// foldAgain is how many calls find no room for a site before fold looks again for
	// sites that it can fold.
	foldAgain int

	devices             []DeviceUse // deviceUnknown, then in order of appearance
	inuse, unattributed [event.NumClasses]int64
	liveObjects         int64
	allocated           int64 // of class device
	failed, outOfMemory int64 // failed calls, and those for want of memory
	peak                [event.NumClasses]int64
	epoch               [event.NumClasses]uint64 // counts peaks
}

func newSiteTable(p *process) siteTable {
	return siteTable{p: p, at: map[siteKey]uint32{}, devices: []DeviceUse{deviceUnknown: {Device: event.NoDevice}}}
}

// find returns the Site of an allocation call and its index, made if need be.
func (t *siteTable) find(e *event.Event) (uint32, *Site) {
	key := siteKey{stack: e.Stack, device: max(e.Device, event.NoDevice), api: e.API, outer: e.Outer, kind: e.Kind}
	if key.device == event.NoDevice && e.Ctx != 0 && e.Kind.Class() != event.ClassHost && e.Time > t.p.exec {
		if d := t.p.contexts.all[t.p.contexts.index(e.Ctx)].device; d != event.NoDevice {
			key.device = d
		} else {
			key.ctx = e.Ctx
		}
	}
	if i, ok := t.at[key]; ok {
		return i, t.all[i]
	}
	if e.Bare || !t.room() {
		t.p.loss.Add(lossSites, 1)
		return t.synthetic(e.Kind)
	}
	t.p.count(Sites, 1)
	s := &Site{
		SiteKey: SiteKey{
			Proc: t.p.id, Stack: key.stack, API: key.api, Outer: key.outer,
			Kind: key.kind, Device: key.device, Ctx: key.ctx,
		},
		epoch: t.epoch[key.kind.Class()],
	}
	t.assignDevice(s)
	i, _ := t.put(math.MaxInt, s)
	s.index = i
	t.at[key] = i
	if key.ctx != 0 {
		if c := t.p.contexts.at[key.ctx]; c != ctxUnknown {
			wait := &t.p.contexts.all[c].unresolved
			*wait = append(*wait, i)
		}
	}
	return i, s
}

// room returns whether there is room for one more site. A living process's sites are
// worth more than those of an ended one, and sites that hold memory more than sites that
// hold none.
func (t *siteTable) room() bool {
	for t.p.l.full(Sites) && t.p.l.dropBeside(t.p) {
	}
	return !t.p.l.full(Sites) || t.fold()
}

// synthetic returns the site for allocations without a site of their own.
func (t *siteTable) synthetic(k event.Kind) (uint32, *Site) {
	if t.other[k] == 0 {
		t.all = append(t.all, &Site{
			SiteKey:   SiteKey{Proc: t.p.id, Kind: k, Device: event.NoDevice},
			Synthetic: true,
			epoch:     t.epoch[k.Class()],
			index:     uint32(len(t.all)),
		})
		t.other[k] = uint32(len(t.all))
	}
	i := t.other[k] - 1
	return i, t.all[i]
}

// each yields all sites, up to date, and returns whether yield wanted all.
func (t *siteTable) each(yield func(*Site) bool) bool {
	for _, s := range t.all {
		if s == nil {
			continue
		}
		t.updatePeak(s)
		t.updateReported(s)
		if !yield(s) {
			return false
		}
	}
	return true
}

// count adds a successful allocation to what s and the process ever allocated.
func (t *siteTable) count(s *Site, at uint64, objects int64, bytes uint64) {
	s.called(at)
	t.updateReported(s)
	s.AllocObjects += objects
	s.AllocBytes = addSaturated(s.AllocBytes, bytes)
	if s.Kind.Class() == event.ClassDevice {
		t.allocated = addSaturated(t.allocated, bytes)
	}
}

// countFailure adds an allocation call that failed.
func (t *siteTable) countFailure(e *event.Event) {
	_, s := t.find(e)
	s.called(e.Time)
	s.FailedObjects++
	s.FailedBytes = addSaturated(s.FailedBytes, e.Size)
	t.failed++
	if e.Result == event.OutOfMemory {
		t.outOfMemory++
	}
}

// addSaturated returns a+b, or the largest int64 if that is less. a is not
// negative.
func addSaturated(a int64, b uint64) int64 {
	if b > uint64(math.MaxInt64-a) {
		return math.MaxInt64
	}
	return a + int64(b)
}

// updateReported makes what s had allocated at the last Reported current.
func (t *siteTable) updateReported(s *Site) {
	if s.reports != t.p.l.reports {
		s.reports, s.ReportedObjects, s.ReportedBytes = t.p.l.reports, s.AllocObjects, s.AllocBytes
	}
}

// resetCounts makes all counts begin at zero, and the peak at what is in use.
func (t *siteTable) resetCounts() {
	for _, s := range t.all {
		if s != nil {
			s.resetCounts()
		}
	}
	for class := range t.epoch {
		t.epoch[class]++
	}
	t.peak = t.inuse
	t.allocated, t.failed, t.outOfMemory = 0, 0, 0
}

// Fold makes room among the sites of a process that hold nothing, and returns how many made it.
func (l *Ledger) Fold(proc event.Process) int {
	p := l.procs[proc]
	if p == nil || !p.active {
		return 0
	}
	before := p.held[Sites]
	p.sites.foldAgain = 0 // the gate asks far less often than calls do
	p.sites.fold()
	return before - p.held[Sites]
}

// fold makes room among the sites: it folds the half of those that hold nothing whose
// last call is longest ago. It returns whether it found any. If not, it does not look
// again for a while.
func (t *siteTable) fold() bool {
	if t.foldAgain > 0 {
		t.foldAgain--
		return false
	}
	empty := t.foldable()
	if len(empty) == 0 {
		t.foldAgain = len(t.all) / 4
		return false
	}
	for _, i := range empty[:(len(empty)+1)/2] {
		t.foldSite(i)
	}
	return true
}

// foldable returns the sites that hold nothing, those whose last call is longest ago first.
func (t *siteTable) foldable() (out []uint32) {
	for i, s := range t.all {
		if s != nil && !s.Synthetic && s.InuseObjects == 0 && s.InuseBytes == 0 {
			out = append(out, uint32(i))
		}
	}
	slices.SortFunc(out, func(a, b uint32) int {
		x, y := t.all[a], t.all[b]
		return cmp.Or(cmp.Compare(x.last, y.last), cmp.Compare(a, b))
	})
	return out
}

// foldSite removes a site and adds its counters to the synthetic site of its kind: every
// sum over the process's sites stays.
func (t *siteTable) foldSite(i uint32) {
	s := t.all[i]
	t.p.l.leaving(s)
	t.updatePeak(s)
	_, into := t.synthetic(s.Kind)
	t.updatePeak(into)
	t.updateReported(s)
	t.updateReported(into)
	into.Counts.Add(&s.Counts)
	into.fetched.Add(&s.fetched)
	into.ReportedObjects += s.ReportedObjects
	into.ReportedBytes = addSaturated(into.ReportedBytes, uint64(s.ReportedBytes))
	into.PeakBytes += s.PeakBytes
	into.called(s.last)
	// A site whose context's device became known is not in at any more.
	if at, ok := t.at[s.key()]; ok && at == i {
		delete(t.at, s.key())
	}
	if c, ok := t.p.contexts.at[s.Ctx]; ok && s.Ctx != 0 {
		wait := &t.p.contexts.all[c].unresolved
		*wait = slices.DeleteFunc(*wait, func(id uint32) bool { return id == i })
	}
	t.all[i] = nil
	t.release(i)
	t.p.count(Sites, -1)
	t.p.loss.Add(lossFolded, 1)
}
