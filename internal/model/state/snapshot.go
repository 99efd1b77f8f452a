package state

import (
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// Sites are the call sites of a Snapshot's samples, in their order. Lines of tensors
// that are not told, and what the driver holds for itself, at the end of the samples,
// have none.
func (v *View) Sites(yield func(ledger.SiteKey) bool) {
	for _, sites := range [][]site{v.sites, v.tensors} {
		for i := range sites {
			if !yield(sites[i].SiteKey) {
				return
			}
		}
	}
}

// Snapshot shows the view under the names that its places have by then. Live
// allocations are in the order of their times.
func (v *View) Snapshot() *snapshot.Snapshot { return v.build(v.shapes()) }

func (v *View) build(shapes *Shapes) *snapshot.Snapshot {
	b := newBuilder(v, shapes)
	out := v.snapshot
	out.Samples = make([]snapshot.Sample, 0, len(v.sites)+len(v.tensors)+len(v.physical))
	for i := range v.sites {
		out.Samples = append(out.Samples, b.sample(&v.sites[i]))
	}
	for i := range v.tensors {
		out.Samples = append(out.Samples, b.sample(&v.tensors[i]))
	}
	for i := range v.caches {
		c := &v.caches[i]
		out.Allocators = append(out.Allocators, c.allocator(v.names[c.id]))
	}
	out.Samples = append(out.Samples, b.splitSamples()...)
	out.Live = v.rows()
	out.Freed, out.Steps = b.freed(), b.steps()
	if v.layout != nil {
		out.Layout = b.layout()
	}
	if v.want.Driver {
		b.driver(&out)
	}
	out.Mappings = b.programsFirst()
	if n := shorten(out.Samples); n > 0 {
		out.Loss = append(slices.Clone(out.Loss), shortened.Counter(n))
	}
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
	*Shapes
	view     *View
	mappings []*snapshot.Mapping
	mapped   map[snapshot.Mapping]bool // by Key
	splits   []*split
	faces    map[face]int // of samples of the kernel driver's memory
	paths    map[step]int // of their frames, from 1 on
}

// shapes returns those that were asked for, ready for what v shows.
func (v *View) shapes() *Shapes {
	shapes := v.want.Shapes
	if shapes == nil {
		shapes = NewShapes()
	}
	shapes.begin(v.want.Native)
	return shapes
}

func newBuilder(v *View, shapes *Shapes) *builder {
	return &builder{Shapes: shapes, view: v, splits: v.splits(), mapped: map[snapshot.Mapping]bool{},
		faces: map[face]int{}, paths: map[step]int{}}
}

func (b *builder) sample(x *site) snapshot.Sample {
	shape := b.shape(x.Stack, x.Kind, x.frames)
	s := snapshot.Sample{
		Stack:  b.stack(&x.SiteKey, x.Synthetic, shape),
		Labels: b.labels(x, x.Kind, b.view.trace.API(x.API), shape),
		Values: x.values(),
	}
	s.Runtime = b.view.trace.API(x.Outer)
	if x.Kind == event.KindTensor {
		s.Category = b.category(x, shape)
	}
	s.InuseBytes -= x.handed.inuse
	s.PeakBytes -= x.handed.peak
	if x.Handed { // what was allocated is counted where it was handed out
		s.AllocObjects, s.AllocBytes = 0, 0
	}
	switch {
	case x.pool && b.view.partial: // its lines are of the whole device (split)
		s.InuseObjects = 0
	case x.pool:
		// Its bytes are handed out as tensors: what is left is cached.
		s.Kind = event.KindCached.String()
		s.Stack = append([]*snapshot.Location{b.leaf(LineCached)}, s.Stack...)
	}
	return s
}

// labels are those of a call site, for memory of a kind by a call api.
func (b *builder) labels(x *site, kind event.Kind, api string, shape *shape) snapshot.Labels {
	return snapshot.Labels{
		Kind: kind.String(), API: api, GPU: x.gpu, Owner: shape.owner, Operator: shape.operator, Module: shape.module,
		Process: b.view.names[x.Proc], PID: int(x.Proc.PID),
	}
}

// category is what the tensors of a call site are for.
func (b *builder) category(x *site, shape *shape) string {
	fate := stacks.Fate{Live: x.held, Crossed: x.fate.Crossed, Stayed: x.fate.Stayed}
	if x.fate.After != 0 {
		after := b.shape(x.fate.After, x.Kind, x.after)
		fate.After = &after.use
	}
	return shape.use.Category(fate)
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
// taken. Tensors have none: PyTorch only reports by it what it made.
func (b *builder) stack(x *ledger.SiteKey, synthetic bool, shape *shape) []*snapshot.Location {
	name := b.view.trace.API(x.API)
	switch {
	case synthetic:
		name = unsited
	case x.Kind == event.KindTensor:
		return shape.frames
	}
	return shape.under(b.leaf(name))
}

// unsited stands for the call sites that found no room.
const unsited = "[no call site: limit reached]"

// programsFirst returns all mappings, with that of the first process's program
// first: readers of pprof take it for what was profiled.
func (b *builder) programsFirst() []*snapshot.Mapping {
	out := slices.Clone(b.mappings)
	for _, program := range slices.Backward(b.view.programs) {
		i := slices.IndexFunc(out, func(m *snapshot.Mapping) bool { return m.Path == program.Path })
		m := program.Mapping
		if i >= 0 {
			m = out[i]
			out = slices.Delete(out, i, i+1)
		}
		out = slices.Insert(out, 0, m)
	}
	return out
}
