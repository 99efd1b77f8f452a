package state

import (
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/record"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/stacks"
)

// Sites are the call sites of a Snapshot's samples, in their order. What the
// driver holds for itself, at the end of the samples, has none.
func (v *View) Sites(yield func(ledger.SiteKey) bool) {
	for i := range v.sites {
		if !yield(v.sites[i].SiteKey) {
			return
		}
	}
}

// Snapshot shows the view under the names that its places have by then. Live
// allocations are in the order of their times.
func (v *View) Snapshot() *snapshot.Snapshot {
	b := newBuilder(v)
	out := v.snapshot
	out.Samples = make([]snapshot.Sample, 0, len(v.sites))
	for i := range v.sites {
		out.Samples = append(out.Samples, b.sample(&v.sites[i]))
	}
	out.Live = v.rows()
	if v.want.Driver {
		b.driver(&out)
	}
	out.Mappings = b.programsFirst()
	return &out
}

// rows returns the live allocations by time. Those of one moment have an order
// too: the same records give the same rows.
func (v *View) rows() []snapshot.Allocation {
	if len(v.live) == 0 {
		return nil
	}
	out := make([]snapshot.Allocation, 0, len(v.live))
	for _, p := range byTime(v.live) {
		r := &v.live[p.row]
		out = append(out, snapshot.Allocation{Sample: int(r.site), Address: r.address, Handle: r.handle, Size: r.size, Time: v.trace.Boot.Add(time.Duration(r.time))})
	}
	return out
}

// A builder makes samples.
type builder struct {
	view     *View
	located  map[uint64]shape // by stack
	leaves   map[string]*snapshot.Location
	mappings []*snapshot.Mapping
	mapped   map[snapshot.Mapping]bool // by Key
	faces    map[face]int              // of samples of the kernel driver's memory
	paths    map[step]int              // of their frames, from 1 on
	same     map[*snapshot.Location]*snapshot.Location
	equal    map[place][]*snapshot.Location
}

// A shape is how a stack is shown.
type shape struct {
	frames []*snapshot.Location // folded
	owner  string
}

func newBuilder(v *View) *builder {
	return &builder{view: v, located: map[uint64]shape{}, leaves: map[string]*snapshot.Location{}, mapped: map[snapshot.Mapping]bool{},
		faces: map[face]int{}, paths: map[step]int{},
		same: map[*snapshot.Location]*snapshot.Location{}, equal: map[place][]*snapshot.Location{}}
}

func (b *builder) sample(x *site) snapshot.Sample {
	shape := b.shape(x.Stack, x.frames)
	return snapshot.Sample{
		Stack: b.stack(&x.SiteKey, x.Synthetic, shape),
		Labels: snapshot.Labels{
			Kind: x.Kind.String(), API: b.view.trace.API(x.API), Runtime: b.view.trace.API(x.Outer),
			GPU: x.gpu, Owner: shape.owner, Process: b.view.names[x.Proc], PID: int(x.Proc.PID),
		},
		Values: x.values(),
	}
}

func (x *site) values() snapshot.Values {
	return snapshot.Values{
		AllocObjects: x.AllocObjects, AllocBytes: x.AllocBytes, PeakBytes: x.PeakBytes,
		InuseObjects: x.InuseObjects, InuseBytes: x.InuseBytes,
		FailedObjects: x.FailedObjects, FailedBytes: x.FailedBytes,
	}
}

func synthetic(name string) *snapshot.Location {
	return &snapshot.Location{Lines: []snapshot.Line{{Function: name}}}
}

// stack returns the frames of a call site, leaf first, as the user wants them.
// The leaf is the API function itself, which has returned when the stack is
// taken.
func (b *builder) stack(x *ledger.SiteKey, synthetic bool, shape shape) []*snapshot.Location {
	name := b.view.trace.API(x.API)
	if synthetic {
		name = unsited
	}
	return append([]*snapshot.Location{b.leaf(name)}, shape.frames...)
}

// unsited stands for the call sites that found no room.
const unsited = "[no call site: limit reached]"

// leaf returns the frame of a function that has returned.
func (b *builder) leaf(name string) *snapshot.Location {
	if b.leaves[name] == nil {
		b.leaves[name] = synthetic(name)
	}
	return b.leaves[name]
}

// shape returns how a stack is shown.
func (b *builder) shape(id uint64, frames []*record.Place) shape {
	if got, ok := b.located[id]; ok {
		return got
	}
	located := make([]*snapshot.Location, len(frames))
	for i, place := range frames {
		l := b.one(place.Location())
		if m := l.Mapping; m != nil && !b.mapped[m.Key()] {
			b.mapped[m.Key()] = true
			b.mappings = append(b.mappings, m)
		}
		located[i] = l
	}
	out := shape{b.fold(located), stacks.Owner(located)}
	b.located[id] = out
	return out
}

// one returns the location that stands for all that are equal to l: two places may
// be at one address, as where a stack returned to and as where one began.
func (b *builder) one(l *snapshot.Location) *snapshot.Location {
	if same := b.same[l]; same != nil {
		return same
	}
	key := place{address: l.Address, lines: len(l.Lines)}
	if l.Mapping != nil {
		key.mapping = l.Mapping.Key()
	}
	if len(l.Lines) > 0 {
		key.line = l.Lines[0]
	}
	for _, other := range b.equal[key] {
		if slices.Equal(other.Lines, l.Lines) {
			b.same[l] = other
			return other
		}
	}
	b.equal[key], b.same[l] = append(b.equal[key], l), l
	return l
}

// A place is what most locations differ in.
type place struct {
	address uint64
	mapping snapshot.Mapping // by Key
	line    snapshot.Line
	lines   int
}

func (b *builder) fold(frames []*snapshot.Location) []*snapshot.Location {
	return stacks.Fold(b.view.want.Native, frames)
}

// programsFirst returns all mappings, with that of the first process's program
// first: readers of pprof take it for what was profiled.
func (b *builder) programsFirst() []*snapshot.Mapping {
	out := slices.Clone(b.mappings)
	for _, program := range slices.Backward(b.view.programs) {
		i := slices.IndexFunc(out, func(m *snapshot.Mapping) bool { return m.Path == program.Path })
		m := program
		if i >= 0 {
			m = out[i]
			out = slices.Delete(out, i, i+1)
		}
		out = slices.Insert(out, 0, m)
	}
	return out
}
