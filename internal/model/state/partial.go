package state

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

// Lines of tensors without events of their own: synthetic frames, and lines of accounts.
// Each is signed. Together with the tensors that have events and with LineCached they add
// up to the allocator's own totals, to the byte.
const (
	// The difference of all tensors from the estimates by the sample.
	LineSampling = "[sampling error]"
	// The same of a process that was attached to late: a free does not show whether its
	// tensor is from before.
	LineSamplingOld = "[sampling error, and tensors from before attach]"
)

// notes say how to read the tensors of a view where not all have events.
func (p *partial) notes() (out []string) {
	if p.active {
		out = append(out, "tensors are estimates from a random sample (--tensor-sample "+bytefmt.Format(int64(p.sample))+
			"): a row may be off by a multiple of that, and "+LineSampling+" is what its device's rows are off by together")
	}
	return out
}

// An allocatorKey is the process and the GPU of a caching allocator, or of several whose
// GPUs are not known.
type allocatorKey struct {
	id  event.Process
	gpu string // label
}

// A report has the totals of a caching allocator, where not every tensor has events.
type report struct {
	onDevice
	late, older bool
	allocated   amount
	outside     amount // held in memory that was not seen allocated
	made        tally
}

// A tally has objects in use, and objects and bytes ever made.
type tally struct{ live, objects, bytes int64 }

// A partial has the contents of a View where not every tensor has events: which ones have,
// as in record.Tensors, and the totals of allocators.
type partial struct {
	active  bool
	sample  uint64
	whole   bool // nothing of the trace was dropped
	reports []report
}

// addPartial copies the totals of allocators.
func (c *collector) addPartial() {
	s := c.s
	if !s.tensors.Partial() {
		return
	}
	p := &c.v.partial
	p.active, p.whole = true, s.began == 0 && !s.reset
	p.sample = s.tensors.Sample()
	for id, a := range s.tensors.Allocators {
		k := report{onDevice: onDevice{id: id, device: a.Index}, late: s.AttachedLate(id)}
		k.older = k.late && a.Older
		k.setFigures(a, c.shown(id))
		if c.v.want.Unreported {
			k.made.subtract(a.ReportedMade)
		}
		p.reports = append(p.reports, k)
	}
}

func (k *report) setFigures(a *tensors.Allocator, shown bool) {
	k.allocated.peak, k.outside.peak = a.Peak.Allocated, a.Peak.Outside
	k.made = tally{0, int64(a.Made.Count), int64(a.Made.Bytes)}
	if shown {
		k.allocated.inuse, k.outside.inuse = a.Now.Allocated, a.Now.Outside
		k.made.live = a.Live()
	}
}

// A split divides the memory of the caching allocators of a process on a GPU where not every
// tensor has events. Its lines, with the tensors that have events, add up to pools and
// older.
type split struct {
	allocatorKey
	reported snapshot.Values // the estimates of tensors that have events
	pools    amount          // memory seen allocated that is the allocators'
	objects  int64           // objects of pools
	older    amount          // memory of theirs that was not seen allocated
	lines    []splitLine
}

type splitLine struct {
	name string
	kind event.Kind
	snapshot.Values
}

// splits returns those of the view, in order.
func (v *View) splits() []*split {
	if !v.partial.active {
		return nil
	}
	at := map[allocatorKey]*split{}
	splitOfKey := func(x allocatorKey) *split {
		if at[x] == nil {
			at[x] = &split{allocatorKey: x}
		}
		return at[x]
	}
	for i := range v.sites {
		if x := &v.sites[i]; x.handed != (amount{}) || x.pool {
			s := splitOfKey(allocatorKey{x.Proc, x.gpu})
			s.pools.add(x.handed)
			if x.pool {
				s.objects += x.InuseObjects
			}
		}
	}
	for i := range v.tensors {
		x := &v.tensors[i]
		values := x.values()
		splitOfKey(allocatorKey{x.Proc, x.gpu}).reported.Add(&values)
	}
	sums := map[*split]*report{}
	for i := range v.partial.reports {
		k := &v.partial.reports[i]
		s := splitOfKey(allocatorKey{k.id, k.gpu})
		if sums[s] == nil {
			sums[s] = &report{}
		}
		sums[s].add(k)
	}
	var out []*split
	for _, s := range at {
		k := sums[s]
		if k == nil {
			k = &report{}
		}
		v.split(s, k)
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *split) int {
		return cmp.Or(a.id.Compare(b.id), cmp.Compare(a.gpu, b.gpu))
	})
	return out
}

func (k *report) add(x *report) {
	k.late, k.older = k.late || x.late, k.older || x.older
	k.allocated.add(x.allocated)
	if x.late {
		k.outside.add(x.outside)
	}
	k.made.add(x.made)
}

func (n *tally) subtract(t record.Tally) {
	n.objects -= int64(t.Count)
	n.bytes -= int64(t.Bytes)
}

func (n *tally) add(x tally) {
	n.live += x.live
	n.objects += x.objects
	n.bytes += x.bytes
}

// split fills in the lines of s, of whose allocators k is the sum.
func (v *View) split(s *split, k *report) {
	s.older = k.outside
	rest := snapshot.Values{InuseBytes: k.allocated.inuse - s.reported.InuseBytes,
		PeakBytes: k.allocated.peak - s.reported.PeakBytes}
	if v.partial.whole {
		rest.AllocObjects, rest.AllocBytes = k.made.objects-s.reported.AllocObjects, k.made.bytes-s.reported.AllocBytes
	}
	if !k.late {
		rest.InuseObjects = k.made.live - s.reported.InuseObjects
	}
	cached := snapshot.Values{InuseObjects: s.objects, InuseBytes: s.pools.inuse + s.older.inuse - k.allocated.inuse,
		PeakBytes: s.pools.peak + s.older.peak - k.allocated.peak}
	name := LineSampling
	if k.older {
		name = LineSamplingOld
	}
	for _, l := range []splitLine{
		{name, event.KindTensor, rest}, {LineCached, event.KindCached, cached},
	} {
		if l.Values != (snapshot.Values{}) {
			s.lines = append(s.lines, l)
		}
	}
}

// ownerAllocator is the owner of tensors without events.
const ownerAllocator = "pytorch"

// splitSamples returns those of the lines of all splits.
func (b *builder) splitSamples() (out []snapshot.Sample) {
	for _, s := range b.splits {
		labels := snapshot.Labels{GPU: s.gpu, Owner: ownerAllocator, Process: b.view.names[s.id], PID: int(s.id.PID), Who: b.view.whos[s.id]}
		for _, l := range s.lines {
			labels.Kind = l.kind.String()
			out = append(out, snapshot.Sample{Stack: []*snapshot.Location{b.leaf(l.name)}, Labels: labels, Values: l.Values})
		}
	}
	return out
}

// splitOf returns that of a process on a GPU, nil for none.
func splitOf(splits []*split, x allocatorKey) *split {
	if i := slices.IndexFunc(splits, func(s *split) bool { return s.allocatorKey == x }); i >= 0 {
		return splits[i]
	}
	return nil
}
