package state

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

// Lines of tensors that are not told one by one: synthetic frames, and lines of
// accounts. Each is signed, and together with the tensors that are told and
// LineCached they are what the allocator says, to the byte.
const (
	// What tensors are more or, with a minus, fewer than the estimates from the
	// sample.
	LineSampling = "[sampling error]"
	// The same of a process that was attached to late: a free tells of no tensor
	// whether it is from before.
	LineSamplingOld = "[sampling error, and tensors from before attach]"
	// Without a sample: tensors whose event was lost, or is on its way.
	LineUnseen = "[tensors not seen]"
)

// lineSmall names the tensors of fewer bytes than are told.
func lineSmall(least uint64) string {
	return fmt.Sprintf("[tensors below %s]", bytefmt.Format(int64(least)))
}

// partialNote says what the tensors of a view are where not all are told.
func partialNote(sample, least uint64) []string {
	var out []string
	if sample != 0 {
		out = append(out, "tensors are estimates from a random sample (--tensor-sample "+bytefmt.Format(int64(sample))+
			"): a row may be off by a multiple of that, and "+LineSampling+" is what its device's rows are off by together")
	}
	if least != 0 {
		out = append(out, "tensors below "+bytefmt.Format(int64(least))+" have no stacks (--tensor-min): they are one line of each device")
	}
	return out
}

// An owned is where one caching allocator is, or several whose GPUs are not known apart.
type owned struct {
	id  event.Process
	gpu string // label
}

// A stated is what a caching allocator says of itself, where not every tensor is told.
type stated struct {
	owned
	device         int32
	late, older    bool
	allocated      amount
	outside        amount // held in memory that was not seen allocated
	small          amount
	made, madeTiny values
}

// values are objects and bytes: in use, and ever made.
type values struct{ live, objects, bytes int64 }

// caughtUp takes what allocators said: the events have reached that moment. What they
// told before is older, and what they tell after is later.
func (s *State) caughtUp() {
	if s.stated != nil {
		sample, least := s.tensors.Telling()
		s.tensors.Tell(s.stated)
		if now, min := s.tensors.Telling(); now != sample || min != least {
			s.touchAll()
		}
		s.touchAllocators(s.stated)
		s.stated = nil
	}
}

// partial adds to v what allocators say of themselves.
func (s *State) partial(v *View, shown func(event.Process) bool) {
	if !s.tensors.Partial() {
		return
	}
	v.sample, v.least = s.tensors.Telling()
	v.partial = true
	v.whole = s.began == 0 && !s.afresh
	for id, a := range s.tensors.Allocators {
		if !v.has(id) {
			continue
		}
		k := stated{owned: owned{id: id}, device: a.Index, late: s.late(id)}
		k.older = k.late && a.Older
		k.is(a, shown(id))
		if v.want.Unreported {
			k.made.less(a.ReportedMade)
			k.madeTiny.less(a.ReportedSmall)
		}
		v.stated = append(v.stated, k)
	}
}

func (k *stated) is(a *tensors.Allocator, shown bool) {
	k.allocated.peak, k.outside.peak, k.small.peak = a.Peak.Allocated, a.Peak.Outside, a.Peak.Small
	k.made = values{0, int64(a.Made.Count), int64(a.Made.Bytes)}
	k.madeTiny = values{0, int64(a.SmallMade.Count), int64(a.SmallMade.Bytes)}
	if shown {
		k.allocated.inuse, k.outside.inuse, k.small.inuse = a.Now.Allocated, a.Now.Outside, a.Now.Small
		all, small := a.Live()
		k.made.live, k.madeTiny.live = all-small, max(small, 0)
	}
}

// late tells whether a process was attached to late.
func (s *State) late(id event.Process) bool {
	known := s.procs.known[id]
	return known == nil || !known.fromStart && !s.accounts.FromStart(id)
}

// A split is how what is handed out to the caching allocators of one place splits where
// not every tensor is told. Its lines, with the tensors that are told, add up to pools
// and what lies in older memory.
type split struct {
	owned
	told  snapshot.Values // the estimates of tensors that are told
	pools amount          // memory seen allocated that is the allocators'
	held  int64           // objects of pools
	older amount          // what they hold in memory that was not seen allocated
	lines []splitLine
}

type splitLine struct {
	name string
	kind event.Kind
	snapshot.Values
}

// splits returns those of the view, in order.
func (v *View) splits() []*split {
	if !v.partial {
		return nil
	}
	at := map[owned]*split{}
	of := func(x owned) *split {
		if at[x] == nil {
			at[x] = &split{owned: x}
		}
		return at[x]
	}
	for i := range v.sites {
		if x := &v.sites[i]; x.handed != (amount{}) || x.pool {
			s := of(owned{x.Proc, x.gpu})
			s.pools.plus(x.handed)
			if x.pool {
				s.held += x.InuseObjects
			}
		}
	}
	for i := range v.tensors {
		x := &v.tensors[i]
		values := x.values()
		of(owned{x.Proc, x.gpu}).told.Add(&values)
	}
	sums := map[*split]*stated{}
	for i := range v.stated {
		k := &v.stated[i]
		s := of(k.owned)
		if sums[s] == nil {
			sums[s] = &stated{owned: k.owned}
		}
		sums[s].plus(k)
	}
	var out []*split
	for _, s := range at {
		k := sums[s]
		if k == nil {
			k = &stated{}
		}
		v.split(s, k)
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *split) int {
		return cmp.Or(cmp.Compare(a.id.PID, b.id.PID), cmp.Compare(a.id.Start, b.id.Start), cmp.Compare(a.gpu, b.gpu))
	})
	return out
}

func (k *stated) plus(x *stated) {
	k.late, k.older = k.late || x.late, k.older || x.older
	k.allocated.plus(x.allocated)
	if x.late {
		k.outside.plus(x.outside)
	}
	k.small.plus(x.small)
	k.made.plus(x.made)
	k.madeTiny.plus(x.madeTiny)
}

func (n *values) less(t record.Tally) {
	n.objects -= int64(t.Count)
	n.bytes -= int64(t.Bytes)
}

func (n *values) plus(x values) {
	n.live += x.live
	n.objects += x.objects
	n.bytes += x.bytes
}

// split fills in the lines of s, of whose allocators k is the sum.
func (v *View) split(s *split, k *stated) {
	s.older = k.outside
	small := snapshot.Values{InuseObjects: k.madeTiny.live, InuseBytes: k.small.inuse, PeakBytes: k.small.peak}
	rest := snapshot.Values{InuseBytes: k.allocated.inuse - s.told.InuseBytes - small.InuseBytes,
		PeakBytes: k.allocated.peak - s.told.PeakBytes - small.PeakBytes}
	if v.whole {
		small.AllocObjects, small.AllocBytes = k.madeTiny.objects, k.madeTiny.bytes
		rest.AllocObjects, rest.AllocBytes = k.made.objects-s.told.AllocObjects, k.made.bytes-s.told.AllocBytes
	}
	if !k.late {
		rest.InuseObjects = k.made.live - s.told.InuseObjects
	}
	cached := snapshot.Values{InuseObjects: s.held, InuseBytes: s.pools.inuse + s.older.inuse - k.allocated.inuse,
		PeakBytes: s.pools.peak + s.older.peak - k.allocated.peak}
	name := LineSampling
	switch {
	case v.sample != 0 && k.older:
		name = LineSamplingOld
	case k.older:
		name = LineOldTensors
	case v.sample == 0:
		name = LineUnseen
	}
	for _, l := range []splitLine{
		{lineSmall(v.least), event.KindTensor, small}, {name, event.KindTensor, rest}, {LineCached, event.KindCached, cached},
	} {
		if l.Values != (snapshot.Values{}) {
			s.lines = append(s.lines, l)
		}
	}
}

// ownerAllocator is the owner of tensors that are not told.
const ownerAllocator = "pytorch"

// splitSamples returns those of the lines of all splits.
func (b *builder) splitSamples() (out []snapshot.Sample) {
	for _, s := range b.splits {
		labels := snapshot.Labels{GPU: s.gpu, Owner: ownerAllocator, Process: b.view.names[s.id], PID: int(s.id.PID)}
		for _, l := range s.lines {
			labels.Kind = l.kind.String()
			out = append(out, snapshot.Sample{Stack: []*snapshot.Location{b.leaf(l.name)}, Labels: labels, Values: l.Values})
		}
	}
	return out
}

// splitOf returns that of a process on a GPU, nil for none.
func splitOf(splits []*split, x owned) *split {
	if i := slices.IndexFunc(splits, func(s *split) bool { return s.owned == x }); i >= 0 {
		return splits[i]
	}
	return nil
}
