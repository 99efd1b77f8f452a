package ledger

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A SiteKey is what the allocations of one Site have in common.
type SiteKey struct {
	Proc   event.Process
	Stack  uint64 // 0 when the event had none, or for a synthetic site
	API    uint16
	Outer  uint16
	Kind   event.Kind
	Device int32 // event.NoDevice for host memory, or when not known
	// Ctx is the context when the device is not known and the context is: 0
	// otherwise.
	Ctx uint64
}

// A Site is one call site's memory. Two Sites may have the same key, when
// their device became known at different times: add them up.
type Site struct {
	SiteKey
	// A Synthetic site has what found no room, by kind: beyond MaxSites all
	// figures of a call, beyond MaxLive what is in use alone.
	Synthetic bool

	AllocObjects, AllocBytes int64
	// What of those was there at the last Reported.
	ReportedObjects, ReportedBytes int64
	PeakBytes                      int64 // held at the process's highest device total
	InuseObjects, InuseBytes       int64
	FailedObjects, FailedBytes     int64
	FreedObjects, FreedBytes       int64 // ended, by the end of their process too

	// Handed: tensors were handed out of its memory, once. Package tensors says so.
	Handed bool

	told   Counts // see Fresh
	last   uint64 // time of the latest allocation call, failed ones too
	epoch  uint64 // of PeakBytes; see settle
	device uint32 // index into process.devices, for memory on a device
}

// Counts are the figures of a Site that only rise.
type Counts struct {
	AllocObjects, AllocBytes   int64
	FreedObjects, FreedBytes   int64
	FailedObjects, FailedBytes int64
}

// Add adds o to c, up to the largest int64.
func (c *Counts) Add(o *Counts) {
	for _, x := range []struct{ to, by *int64 }{
		{&c.AllocObjects, &o.AllocObjects}, {&c.AllocBytes, &o.AllocBytes}, {&c.FreedObjects, &o.FreedObjects},
		{&c.FreedBytes, &o.FreedBytes}, {&c.FailedObjects, &o.FailedObjects}, {&c.FailedBytes, &o.FailedBytes},
	} {
		*x.to = addSaturated(*x.to, uint64(*x.by))
	}
}

// counts returns those of s so far.
func (s *Site) counts() Counts {
	return Counts{s.AllocObjects, s.AllocBytes, s.FreedObjects, s.FreedBytes, s.FailedObjects, s.FailedBytes}
}

// Fresh returns what s counted since Fresh was asked last: for whoever adds up counters
// that are there for longer than call sites are.
func (s *Site) Fresh() Counts {
	now, old := s.counts(), s.told
	s.told = now
	return Counts{
		now.AllocObjects - old.AllocObjects, now.AllocBytes - old.AllocBytes, now.FreedObjects - old.FreedObjects,
		now.FreedBytes - old.FreedBytes, now.FailedObjects - old.FailedObjects, now.FailedBytes - old.FailedBytes,
	}
}

// HasFresh tells whether Fresh would return anything.
func (s *Site) HasFresh() bool { return s.counts() != s.told }

// siteKey is a SiteKey inside one process.
type siteKey struct {
	stack, ctx uint64
	device     int32
	api, outer uint16
	kind       event.Kind
}

func (s *Site) key() siteKey {
	return siteKey{stack: s.Stack, ctx: s.Ctx, device: s.Device, api: s.API, outer: s.Outer, kind: s.Kind}
}

// site returns the Site of an allocation call and its index in p.sites.
func (l *Ledger) site(p *process, e *event.Event) (uint32, *Site) {
	key := siteKey{stack: e.Stack, device: max(e.Device, event.NoDevice), api: e.API, outer: e.Outer, kind: e.Kind}
	if key.device == event.NoDevice && e.Ctx != 0 && e.Kind.Class() != event.ClassHost && e.Time > p.exec {
		if d := p.contexts[l.context(p, e.Ctx)].device; d != event.NoDevice {
			key.device = d
		} else {
			key.ctx = e.Ctx
		}
	}
	if i, ok := p.siteAt[key]; ok {
		return i, p.sites[i]
	}
	// A living process's sites are worth more than an ended one's of the same user, and
	// those that hold memory more than those that hold none.
	for l.tables[SharedSites].Full() && l.dropBeside(p) {
	}
	if own := &p.shares[SharedSites]; !own.Room(1) && !l.fold(p) {
		l.loss.Add(lossSites, 1)
		own.Lose(1)
		return p.synthetic(e.Kind)
	}
	p.shares[SharedSites].Add(1)
	s := &Site{
		SiteKey: SiteKey{
			Proc: p.id, Stack: key.stack, API: key.api, Outer: key.outer,
			Kind: key.kind, Device: key.device, Ctx: key.ctx,
		},
		epoch: p.epoch,
	}
	l.place(p, s)
	i, _ := put(&p.sites, &p.freeSite, math.MaxInt, s)
	p.siteAt[key] = i
	if key.ctx != 0 {
		if c := p.contextAt[key.ctx]; c != ctxUnknown {
			p.contexts[c].unresolved = append(p.contexts[c].unresolved, i)
		}
	}
	return i, s
}

// dropBeside forgets the process that ended first of those of p's user, and says whether
// there was one.
func (l *Ledger) dropBeside(p *process) bool {
	i := slices.IndexFunc(l.ended, func(q *process) bool {
		return q != p && p.shares[SharedSites].Beside(&q.shares[SharedSites])
	})
	return i >= 0 && l.drop(l.ended[i:])
}

// synthetic returns the site of what has none of its own.
func (p *process) synthetic(k event.Kind) (uint32, *Site) {
	if p.other[k] == 0 {
		p.sites = append(p.sites, &Site{
			SiteKey:   SiteKey{Proc: p.id, Kind: k, Device: event.NoDevice},
			Synthetic: true,
			epoch:     p.epoch,
		})
		p.other[k] = uint32(len(p.sites))
	}
	i := p.other[k] - 1
	return i, p.sites[i]
}

// seen keeps the time of a call at s.
func (s *Site) seen(t uint64) { s.last = max(s.last, t) }

// count adds a successful allocation to what s and p ever allocated.
func (p *process) count(s *Site, t uint64, objects int64, bytes uint64) {
	s.seen(t)
	p.unreported = true
	s.AllocObjects += objects
	s.AllocBytes = addSaturated(s.AllocBytes, bytes)
	if s.Kind.Class() == event.ClassDevice {
		p.sums.Allocated = addSaturated(p.sums.Allocated, bytes)
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

// fold makes room among the sites of p. Of those that hold nothing it takes the half that
// was called least lately, and adds their counters to the synthetic site of their kind:
// every sum over a process's sites stays. It says whether it found any. If not, it
// does not look again for a while.
func (l *Ledger) fold(p *process) bool {
	if p.foldAgain > 0 {
		p.foldAgain--
		return false
	}
	var dead []uint32
	for i, s := range p.sites {
		if s != nil && !s.Synthetic && s.InuseObjects == 0 && s.InuseBytes == 0 {
			dead = append(dead, uint32(i))
		}
	}
	if len(dead) == 0 {
		p.foldAgain = len(p.sites) / 4
		return false
	}
	slices.SortFunc(dead, func(a, b uint32) int {
		return cmp.Or(cmp.Compare(p.sites[a].last, p.sites[b].last), cmp.Compare(a, b))
	})
	for _, i := range dead[:(len(dead)+1)/2] {
		l.foldSite(p, i)
	}
	return true
}

func (l *Ledger) foldSite(p *process, i uint32) {
	s := p.sites[i]
	l.touched(p)
	l.leaves(s)
	p.settle(s)
	_, into := p.synthetic(s.Kind)
	p.settle(into)
	into.AllocObjects += s.AllocObjects
	into.AllocBytes = addSaturated(into.AllocBytes, uint64(s.AllocBytes))
	into.ReportedObjects += s.ReportedObjects
	into.ReportedBytes = addSaturated(into.ReportedBytes, uint64(s.ReportedBytes))
	into.PeakBytes += s.PeakBytes
	into.FailedObjects += s.FailedObjects
	into.FailedBytes = addSaturated(into.FailedBytes, uint64(s.FailedBytes))
	into.FreedObjects += s.FreedObjects
	into.FreedBytes = addSaturated(into.FreedBytes, uint64(s.FreedBytes))
	into.told.Add(&s.told)
	into.seen(s.last)
	// One whose context's device became known is found no more already.
	if at, ok := p.siteAt[s.key()]; ok && at == i {
		delete(p.siteAt, s.key())
	}
	if c, ok := p.contextAt[s.Ctx]; ok && s.Ctx != 0 {
		wait := &p.contexts[c].unresolved
		*wait = slices.DeleteFunc(*wait, func(id uint32) bool { return id == i })
	}
	p.sites[i] = nil
	p.freeSite = append(p.freeSite, i)
	p.shares[SharedSites].Add(-1)
	l.loss.Add(lossFolded, 1)
}
