package state

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

// A layout is a snapshot.Layout before it is shown.
type layout struct {
	held    []tensors.Piece // what is there, by process: what the driver handed out, then tensors, each by address
	steps   []past
	dropped uint64
	opaque  bool
	frames  map[uint64][]*record.Place // by stack
	gpus    map[device]string          // labels
}

// A device is one of a process, as ordinal in it.
type device struct {
	id    event.Process
	index int32
}

func compareProcess(a, b event.Process) int {
	return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Start, b.Start))
}

// layout copies where memory lies. What a process held that is not shown ended with it.
func (s *State) layout(v *View, shown func(event.Process) bool) {
	x := &layout{opaque: s.tensors.Partial(), frames: map[uint64][]*record.Place{}, gpus: map[device]string{}}
	var gone []tensors.Piece
	for c := range s.tensors.Held {
		if shown(c.Proc) {
			x.held = append(x.held, c)
		} else {
			gone = append(gone, c)
		}
	}
	order := func(a, b tensors.Piece) int {
		return cmp.Or(compareProcess(a.Proc, b.Proc), compareBool(a.Site == nil, b.Site == nil), cmp.Compare(a.From, b.From))
	}
	slices.SortFunc(x.held, order)
	x.steps, x.dropped = s.history.steps(), s.history.dropped
	slices.SortFunc(gone, order)
	for _, c := range slices.Backward(gone) { // a tensor before what it lies in
		c.Ended = true
		step := pastOf(&c)
		step.time, step.call = s.now.Time, call{}
		if known := s.procs.known[c.Proc]; known != nil && known.end != 0 {
			step.time = known.end
		}
		x.steps = append(x.steps, step)
	}
	for i := range x.held {
		c := &x.held[i]
		x.frames[c.Stack] = nil
		x.gpus[device{c.Proc, c.Device}] = ""
	}
	for i := range x.steps {
		x.frames[x.steps[i].stack] = nil
		x.gpus[device{x.steps[i].proc, x.steps[i].device}] = ""
	}
	delete(x.frames, 0)
	v.layout = x
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// told adds the frames of stacks that were told since.
func (x *layout) told(s *State) {
	for id, frames := range x.frames {
		if frames == nil {
			x.frames[id] = s.stacks.Frames(id)
		}
	}
}

// whole tells whether all stacks had been told.
func (x *layout) whole() bool {
	for _, frames := range x.frames {
		if frames == nil {
			return false
		}
	}
	return true
}

func (x *layout) locate(s *State) {
	for d := range x.gpus {
		x.gpus[d] = s.label(&ledger.SiteKey{Proc: d.id, Kind: event.KindDevice, Device: d.index})
	}
}

// A drawer makes a snapshot.Layout.
type drawer struct {
	*builder
	out     *snapshot.Layout
	from    *layout
	places  map[device]int
	only    map[event.Process]int32 // the device of a process that has one
	sources map[asked]int
	samples map[ledger.SiteKey]*site // of tensors
}

// asked is what tells a snapshot.Source from others.
type asked struct {
	id event.Process
	call
	kind event.Kind
	gpu  string
}

// layout shows where memory lies.
func (b *builder) layout() *snapshot.Layout {
	from := b.view.layout
	d := &drawer{builder: b, from: from, out: &snapshot.Layout{Changes: len(from.steps), Dropped: from.dropped, Opaque: from.opaque},
		places: map[device]int{}, only: map[event.Process]int32{}, sources: map[asked]int{}, samples: map[ledger.SiteKey]*site{}}
	for i := range b.view.tensors {
		x := &b.view.tensors[i]
		d.samples[ledger.SiteKey{Proc: x.Proc, Stack: x.Stack, Device: x.Device}] = x
	}
	d.number()
	for held := from.held; len(held) > 0; {
		n := 1
		for n < len(held) && held[n].Proc == held[0].Proc {
			n++
		}
		d.segments(held[:n])
		held = held[n:]
	}
	slices.SortStableFunc(d.out.Segments, func(a, b snapshot.Segment) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), cmp.Compare(a.Address, b.Address))
	})
	d.out.Change = d.steps()
	return d.out
}

// number makes the places, by process and device.
func (d *drawer) number() {
	var all []device
	for x := range d.from.gpus {
		all = append(all, x)
		if x.index == event.NoDevice {
			continue
		}
		if _, several := d.only[x.id]; several {
			d.only[x.id] = event.NoDevice
		} else {
			d.only[x.id] = x.index
		}
	}
	slices.SortFunc(all, func(a, b device) int {
		return cmp.Or(compareProcess(a.id, b.id), cmp.Compare(uint32(a.index), uint32(b.index)))
	})
	for _, x := range all {
		one := d.resolved(x)
		if _, ok := d.places[one]; ok {
			continue
		}
		d.places[one] = len(d.out.Places)
		d.out.Places = append(d.out.Places, snapshot.Place{PID: int(x.id.PID), Process: d.view.names[x.id], Device: int(one.index), GPU: d.from.gpus[one]})
	}
}

// resolved returns where x is: a process that has one device is on it.
func (d *drawer) resolved(x device) device {
	if only, ok := d.only[x.id]; ok && x.index == event.NoDevice {
		x.index = only
	}
	return x
}

func (d *drawer) place(id event.Process, index int32) int {
	return d.places[d.resolved(device{id, index})]
}

// segments adds those of a process with what is in them.
func (d *drawer) segments(held []tensors.Piece) {
	first := len(d.out.Segments)
	n := 0
	for ; n < len(held) && held[n].Site != nil; n++ {
		c := &held[n]
		place := d.place(c.Proc, c.Device)
		if last := len(d.out.Segments) - 1; last >= first && c.Expandable() {
			s := &d.out.Segments[last]
			if s.Expandable && s.Place == place && s.Small == c.Small() && s.Address+s.Size == c.From {
				s.Size += c.To - c.From
				continue
			}
		}
		s := snapshot.Segment{Place: place, Address: c.From, Size: c.To - c.From, Pool: c.Pool, Expandable: c.Expandable(), Small: c.Small(),
			Source: d.source(c.Proc, call{c.Stack, c.Site.API, c.Site.Outer}, c.Site.Kind, c.Device)}
		if !s.Pool {
			s.Blocks = []snapshot.Block{{Address: s.Address, Size: s.Size, Source: s.Source}}
		}
		d.out.Segments = append(d.out.Segments, s)
	}
	next, end := first, len(d.out.Segments) // those that were seen to come
	covered := uint64(0)                    // below it all is in tensors
	for i := range held[n:] {
		c := &held[n:][i]
		from := max(c.From, covered)
		covered = max(covered, c.To)
		source, place := d.source(c.Proc, call{stack: c.Stack}, event.KindTensor, c.Device), d.place(c.Proc, c.Device)
		for from < c.To {
			for next < end && d.out.Segments[next].Address+d.out.Segments[next].Size <= from {
				next++
			}
			to, in := c.To, (*snapshot.Segment)(nil)
			if next < end {
				in = &d.out.Segments[next]
			}
			switch {
			case in == nil:
				d.older(end, place, snapshot.Block{Address: from, Size: to - from, Source: source})
			case from < in.Address:
				to = min(to, in.Address)
				d.older(end, place, snapshot.Block{Address: from, Size: to - from, Source: source})
			default:
				to = min(to, in.Address+in.Size)
				if in.Pool {
					in.Blocks = append(in.Blocks, snapshot.Block{Address: from, Size: to - from, Source: source})
				}
			}
			from = to
		}
	}
}

// older adds a block that lies in memory from before the trace, of which nothing is
// known but what tensors lie in it. Such segments are at end and after it.
func (d *drawer) older(end, place int, block snapshot.Block) {
	if last := len(d.out.Segments) - 1; last >= end {
		if s := &d.out.Segments[last]; s.Place == place && s.Address+s.Size == block.Address {
			s.Size += block.Size
			s.Blocks = append(s.Blocks, block)
			return
		}
	}
	d.out.Segments = append(d.out.Segments, snapshot.Segment{Place: place, Address: block.Address, Size: block.Size, Source: -1,
		Pool: true, Blocks: []snapshot.Block{block}})
}

// source returns the index of who made a call.
func (d *drawer) source(id event.Process, of call, kind event.Kind, index int32) int {
	key := asked{id: id, call: of, kind: kind, gpu: d.out.Places[d.place(id, index)].GPU}
	i, ok := d.sources[key]
	if ok {
		return i
	}
	shape := d.shape(of.stack, kind, d.from.frames[of.stack])
	site := site{Site: ledger.Site{SiteKey: ledger.SiteKey{Proc: id, API: of.api, Outer: of.outer, Kind: kind, Stack: of.stack}}, gpu: key.gpu}
	s := snapshot.Source{Stack: shape.frames, Labels: d.labels(&site, kind, d.view.trace.API(of.api), shape)}
	s.Runtime = d.view.trace.API(of.outer)
	switch {
	case kind == event.KindTensor:
		if x := d.samples[ledger.SiteKey{Proc: id, Stack: of.stack, Device: index}]; x != nil {
			s.Category = d.category(x, shape)
		}
	case s.API != "":
		s.Stack = append([]*snapshot.Location{d.leaf(s.API)}, s.Stack...)
	}
	i = len(d.out.Sources)
	d.out.Sources = append(d.out.Sources, s)
	d.sources[key] = i
	return i
}

// steps returns those of the layout, and completes what each segment is: whether it is a
// caching allocator's, and on which device, is known when it ends, or at the end of all.
func (d *drawer) steps() func(int) snapshot.Change {
	type segment struct {
		id   event.Process
		from uint64
	}
	pools := map[segment]*past{}
	for i := range d.from.held {
		if c := &d.from.held[i]; c.Site != nil {
			x := pastOf(c)
			pools[segment{c.Proc, c.From}] = &x
		}
	}
	steps := d.from.steps
	sources := make([]int32, len(steps))
	for i := len(steps) - 1; i >= 0; i-- {
		x := &steps[i]
		at := segment{x.proc, x.from}
		switch x.action {
		case snapshot.SegmentEnded:
			pools[at] = x
		case snapshot.SegmentCame:
			if later := pools[at]; later != nil {
				x.pool, x.expandable, x.device = later.pool, later.expandable, later.device
			}
			delete(pools, at)
		}
		sources[i] = -1
		if came := x.action != snapshot.BlockEnded && x.action != snapshot.SegmentEnded; came || x.call != (call{}) {
			sources[i] = int32(d.source(x.proc, x.call, x.kind, x.device))
		}
	}
	return func(i int) snapshot.Change {
		x := &steps[i]
		out := snapshot.Change{Action: x.action, Place: d.place(x.proc, x.device), Time: d.view.trace.Boot.Add(time.Duration(x.time)),
			Address: x.from, Size: x.to - x.from, Source: int(sources[i]), Pool: x.pool, Expandable: x.expandable}
		if x.action == snapshot.MemoryLacked {
			out.Address, out.Size, out.Free, out.FreeKnown = 0, x.to, int64(x.from), x.from != noFigure
		}
		return out
	}
}
