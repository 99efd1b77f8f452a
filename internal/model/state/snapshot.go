package state

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// Sites yields the call sites of a Snapshot's samples, in the order of the samples. The last
// samples (lines of tensors without events, and the driver's own memory) have none.
func (v *View) Sites(yield func(ledger.SiteKey) bool) {
	for _, sites := range [][]site{v.sites, v.tensors} {
		for i := range sites {
			if !yield(sites[i].SiteKey) {
				return
			}
		}
	}
	v.divided.sites(v, yield)
}

// Snapshot makes a snapshot of the view, with the names that its places have now. Live
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
	out.Live = v.liveRows()
	out.Freed, out.Steps, out.Windowed = b.freed(), b.steps(), b.windowed()
	if v.layout != nil {
		out.Layout = b.layout()
	}
	if v.want.Driver {
		b.addDriverMemory(&out)
	}
	v.hold(&out)
	out.Mappings = b.programsFirst()
	if n := shorten(out.Samples); n > 0 {
		out.Loss = append(slices.Clone(out.Loss), lossShortened.Counter(n))
	}
	return &out
}

// liveRows returns the live allocations by time. Allocations of the same time have a
// fixed order too, so that the same records give the same rows.
func (v *View) liveRows() []snapshot.Allocation {
	if len(v.live) == 0 {
		return nil
	}
	out := make([]snapshot.Allocation, 0, len(v.live))
	for _, i := range byTime(v.live) {
		r := &v.live[i]
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
	samples  map[sampleKey]int         // of samples of the kernel driver's memory
	paths    map[pathStep]int          // of their frames, from 1 on
}

// shapes returns the Shapes of the Want, or new Shapes, prepared for v.
func (v *View) shapes() *Shapes {
	shapes := v.want.Shapes
	if shapes == nil {
		shapes = NewShapes()
	}
	shapes.prepare(v.want.Native)
	return shapes
}

func newBuilder(v *View, shapes *Shapes) *builder {
	return &builder{Shapes: shapes, view: v, mapped: map[snapshot.Mapping]bool{},
		samples: map[sampleKey]int{}, paths: map[pathStep]int{}}
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
		s.Category = cmp.Or(b.view.categories[tensorStack{x.Proc, x.Stack}], b.category(x, shape))
		s.ModulePath = b.view.modulePath(x.Proc, x.modules)
	}
	s.InuseBytes -= x.handed.inuse
	s.PeakBytes -= x.handed.peak
	if x.HasTensors { // its allocations are counted as tensors
		s.AllocObjects, s.AllocBytes = 0, 0
	}
	if x.pool { // its bytes are handed out as tensors: the rest is cached
		s.Kind = event.KindCached.String()
		s.Stack = append([]*snapshot.Location{b.leaf(LineCached)}, s.Stack...)
	}
	return s
}

// labels returns the labels of a call site for memory of a kind. api names the call.
func (b *builder) labels(x *site, kind event.Kind, api string, shape *shape) snapshot.Labels {
	return snapshot.Labels{
		Kind: kind.String(), API: api, GPU: x.gpu, Owner: ownerOf(kind, shape.owner), Operator: shape.operator, Module: shape.module,
		Process: b.view.names[x.Proc], PID: int(x.Proc.PID), Who: b.view.whos[x.Proc],
	}
}

// Categories are what tensors are for, by the stack that made them.
type Categories map[tensorStack]string

type tensorStack struct {
	proc  event.Process
	stack uint64
}

// tensors returns a sample of a process's tensors that a stack made, without figures.
func (b *builder) tensors(id event.Process, gpu string, stack uint64, frames []*record.Place) snapshot.Sample {
	x, shape := site{gpu: gpu}, b.shape(stack, event.KindTensor, frames)
	x.Proc = id
	return snapshot.Sample{Stack: shape.frames, Labels: b.labels(&x, event.KindTensor, "", shape)}
}

// tensorCategories returns what tensors are for. The view at the end of a recording knows best: how
// a tensor was freed is evidence.
func (v *View) tensorCategories() Categories {
	b, out := newBuilder(v, NewShapes()), Categories{}
	for i := range v.tensors {
		if x := &v.tensors[i]; x.Kind == event.KindTensor {
			out[tensorStack{x.Proc, x.Stack}] = b.category(x, b.shape(x.Stack, x.Kind, x.frames))
		}
	}
	return out
}

// category returns the category of the tensors of a call site.
func (b *builder) category(x *site, shape *shape) string {
	fate := stacks.Fate{Live: x.live, Crossed: x.fate.Crossed, Stayed: x.fate.Stayed}
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
// captured. Tensors have none: their function only reports that PyTorch made them.
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

// unsited is the frame of call sites for which there was no room.
const unsited = "[no call site: limit reached]"

// programsFirst returns all mappings, with that of the first process's program
// first: readers of pprof show it as the profiled program.
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
