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
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A layout is a snapshot.Layout before it is shown.
type layout struct {
	pieces  []tensors.Piece // by process: memory that the driver handed out, then tensors, each by address
	steps   []change
	dropped uint64
	frames  map[uint64][]*record.Place // by stack
	gpus    map[device]string          // labels
}

// A device is one of a process, as ordinal in it.
type device struct {
	id    event.Process
	index int32
}

// addLayout copies where memory lies. Memory of a process that is not shown ended with it.
func (c *collector) addLayout() {
	s := c.s
	x := &layout{frames: map[uint64][]*record.Place{}, gpus: map[device]string{}}
	var gone []tensors.Piece
	for p := range s.tensors.Pieces {
		if c.shown(p.Proc) {
			x.pieces = append(x.pieces, p)
		} else {
			gone = append(gone, p)
		}
	}
	order := func(a, b tensors.Piece) int {
		return cmp.Or(a.Proc.Compare(b.Proc), compareBool(a.Site == nil, b.Site == nil), cmp.Compare(a.From, b.From))
	}
	sorting.Stable(x.pieces, order)
	x.steps, x.dropped = s.history.steps(), s.history.dropped
	sorting.Stable(gone, order)
	for _, p := range slices.Backward(gone) { // a tensor before what it lies in
		p.Ended = true
		step := changeOf(&p)
		step.time, step.call = s.now.Time, call{}
		if known := s.processes.known[p.Proc]; known != nil && known.end != 0 {
			step.time = known.end
		}
		x.steps = append(x.steps, step)
	}
	for i := range x.pieces {
		p := &x.pieces[i]
		x.frames[p.Stack] = nil
		x.gpus[device{p.Proc, p.Device}] = ""
	}
	for i := range x.steps {
		x.frames[x.steps[i].stack] = nil
		x.gpus[device{x.steps[i].proc, x.steps[i].device}] = ""
	}
	delete(x.frames, 0)
	c.v.layout = x
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

// addFrames adds the frames of stacks that have come since.
func (x *layout) addFrames(from *stacks.Table) {
	for id, frames := range x.frames {
		if frames == nil {
			x.frames[id] = from.Frames(id)
		}
	}
}

// whole reports whether all stacks had come.
func (x *layout) whole() bool {
	for _, frames := range x.frames {
		if frames == nil {
			return false
		}
	}
	return true
}

func (x *layout) locate(g *gpus) {
	for d := range x.gpus {
		x.gpus[d] = g.deviceLabel(d.id, d.index)
	}
}

// A layoutBuilder makes a snapshot.Layout.
type layoutBuilder struct {
	*builder
	out     *snapshot.Layout
	from    *layout
	places  map[device]int
	only    map[event.Process]int32 // the device of a process that has one
	sources map[sourceKey]int
	samples map[ledger.SiteKey]*site // of tensors
}

// A sourceKey distinguishes snapshot.Sources.
type sourceKey struct {
	id event.Process
	call
	kind event.Kind
	gpu  string
}

// layout shows where memory lies.
func (b *builder) layout() *snapshot.Layout {
	from := b.view.layout
	d := &layoutBuilder{builder: b, from: from, out: &snapshot.Layout{Changes: len(from.steps), Dropped: from.dropped},
		places: map[device]int{}, only: map[event.Process]int32{}, sources: map[sourceKey]int{}, samples: map[ledger.SiteKey]*site{}}
	for i := range b.view.tensors {
		x := &b.view.tensors[i]
		d.samples[ledger.SiteKey{Proc: x.Proc, Stack: x.Stack, Device: x.Device}] = x
	}
	d.numberPlaces()
	for pieces := from.pieces; len(pieces) > 0; {
		n := 1
		for n < len(pieces) && pieces[n].Proc == pieces[0].Proc {
			n++
		}
		d.segments(pieces[:n])
		pieces = pieces[n:]
	}
	sorting.Stable(d.out.Segments, func(a, b snapshot.Segment) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), cmp.Compare(a.Address, b.Address))
	})
	d.out.Change = d.steps()
	return d.out
}

// numberPlaces makes the places, by process and device.
func (d *layoutBuilder) numberPlaces() {
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
	sorting.Stable(all, func(a, b device) int {
		return cmp.Or(a.id.Compare(b.id), cmp.Compare(uint32(a.index), uint32(b.index)))
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
func (d *layoutBuilder) resolved(x device) device {
	if only, ok := d.only[x.id]; ok && x.index == event.NoDevice {
		x.index = only
	}
	return x
}

func (d *layoutBuilder) place(id event.Process, index int32) int {
	return d.places[d.resolved(device{id, index})]
}

// segments adds the segments of a process, with their blocks.
func (d *layoutBuilder) segments(pieces []tensors.Piece) {
	first := len(d.out.Segments)
	n := 0
	for ; n < len(pieces) && pieces[n].Site != nil; n++ {
		c := &pieces[n]
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
	for i := range pieces[n:] {
		c := &pieces[n:][i]
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
				d.addOlder(end, place, snapshot.Block{Address: from, Size: to - from, Source: source})
			case from < in.Address:
				to = min(to, in.Address)
				d.addOlder(end, place, snapshot.Block{Address: from, Size: to - from, Source: source})
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

// addOlder adds a block that lies in memory from before the trace, of which only the
// tensors in it are known. Such segments are at end and after it.
func (d *layoutBuilder) addOlder(end, place int, block snapshot.Block) {
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

// source returns the index of the source of a call.
func (d *layoutBuilder) source(id event.Process, by call, kind event.Kind, index int32) int {
	key := sourceKey{id: id, call: by, kind: kind, gpu: d.out.Places[d.place(id, index)].GPU}
	i, ok := d.sources[key]
	if ok {
		return i
	}
	shape := d.shape(by.stack, kind, d.from.frames[by.stack])
	site := site{Site: ledger.Site{SiteKey: ledger.SiteKey{Proc: id, API: by.api, Outer: by.outer, Kind: kind, Stack: by.stack}}, gpu: key.gpu}
	s := snapshot.Source{Stack: shape.frames, Labels: d.labels(&site, kind, d.view.trace.API(by.api), shape)}
	s.Runtime = d.view.trace.API(by.outer)
	switch {
	case kind == event.KindTensor:
		if x := d.samples[ledger.SiteKey{Proc: id, Stack: by.stack, Device: index}]; x != nil {
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

// steps returns the changes of the layout, and completes the segments among them: whether it is a
// caching allocator's, and on which device, is known when it ends, or at the end of all.
func (d *layoutBuilder) steps() func(int) snapshot.Change {
	type segment struct {
		id   event.Process
		from uint64
	}
	pools := map[segment]*change{}
	for i := range d.from.pieces {
		if c := &d.from.pieces[i]; c.Site != nil {
			x := changeOf(c)
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
		if x.action == snapshot.AllocationFailed {
			out.Address, out.Size, out.Free, out.FreeKnown = 0, x.to, int64(x.from), x.from != noFigure
		}
		return out
	}
}
