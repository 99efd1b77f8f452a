// Package memoryviz writes snapshots as PyTorch's torch.cuda.memory._snapshot returns
// them: its memory viewer (https://pytorch.org/memory_viz) and torch/cuda/_memory_viz.py
// read them.
//
//	segments              what the driver handed out, with blocks that tile each
//	device_traces         what came and went until then, by device
//	allocator_settings    what is known of them
//	external_annotations  none
//	gpumemtrace           where it comes from: version, target, devices, notes, loss
//
// Memory that is no caching allocator's is a segment of one block. Its segment_pool_id
// is another for each owner, and PyTorch's is (0, 0). On which stream a segment is used
// is not known: stream says which kind of segment it is.
package memoryviz

import (
	"fmt"
	"io"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pickle"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// maxNumber is up to where the viewer's numbers are exact.
const maxNumber = 1 << 53

// maxOrdinal bounds the numbers of devices that stand for themselves.
const maxOrdinal = 64

// Numbers for stream. The viewer joins pages with neighbouring segments of the same number,
// and then finds neither.
const (
	streamPool    = iota // a caching allocator's
	streamOutside        // memory that is no caching allocator's
	streamOlder          // memory from before the trace
	streamPages          // pages, where other segments are a caching allocator's too
)

// Pickle writes s as a pickle.
func Pickle(w io.Writer, s *snapshot.Snapshot) error {
	d := &document{Writer: pickle.New(w), snapshot: s, layout: s.Layout, pools: render.Index[string]{}, frames: render.Index[*snapshot.Location]{}}
	if d.layout == nil {
		d.layout = &snapshot.Layout{}
	}
	d.number()
	d.dropHigh()
	d.Dict(nil, func() {
		d.key("segments", func() { d.List(nil, d.segments) })
		d.key("device_traces", func() { d.List(nil, d.deviceTraces) })
		d.key("allocator_settings", func() {
			d.Dict(nil, func() {
				d.key("trace_alloc_overflowed", func() { d.Bool(d.layout.Dropped > 0) })
				if d.layout.Dropped > 0 {
					d.int("trace_alloc_max_entries", int64(d.layout.Changes))
				}
			})
		})
		d.key("external_annotations", func() { d.List(nil, func() {}) })
		d.key("gpumemtrace", func() { d.Dict(nil, d.about) })
	})
	if err := d.Close(); err != nil {
		return fmt.Errorf("write memory snapshot: %w", err)
	}
	return nil
}

// A document is a snapshot on its way out.
type document struct {
	*pickle.Writer
	snapshot *snapshot.Snapshot
	layout   *snapshot.Layout
	device   []int // by place
	devices  int
	pools    render.Index[string] // by owner
	frames   render.Index[*snapshot.Location]
	mixed    []bool // by device: caching allocators have segments of both kinds there
	high     uint64 // bytes that lie beyond maxNumber
}

func (d *document) key(name string, value func()) {
	d.Writer.String(name)
	value()
}

// String writes text that a traced program may have chosen.
func (d *document) String(s string) { d.Writer.String(render.Clean(s)) }

func (d *document) text(key, s string)      { d.key(key, func() { d.String(s) }) }
func (d *document) int(key string, v int64) { d.key(key, func() { d.Int(v) }) }

// number gives each place the number of a device: its own, if there is one process.
func (d *document) number() {
	own := true
	places := d.layout.Places
	for i := range places {
		own = own && places[i].PID == places[0].PID && places[i].Process == places[0].Process && places[i].Device >= 0 && places[i].Device < maxOrdinal
	}
	d.device = make([]int, len(places))
	for i := range places {
		if d.device[i] = i; own {
			d.device[i] = places[i].Device
		}
		d.devices = max(d.devices, d.device[i]+1)
	}
	kinds := make([]struct{ pages, other bool }, d.devices)
	see := func(place int, pool, pages bool) {
		k := &kinds[d.device[place]]
		k.pages, k.other = k.pages || pages, k.other || pool && !pages
	}
	for i := range d.layout.Segments {
		s := &d.layout.Segments[i]
		see(s.Place, s.Pool && s.Source >= 0, s.Expandable)
	}
	for i := range d.layout.Changes {
		s := d.layout.Change(i)
		see(s.Place, s.Pool, s.Expandable)
	}
	d.mixed = make([]bool, d.devices)
	for i, k := range kinds {
		d.mixed[i] = k.pages && k.other
	}
}

// dropHigh drops segments at addresses that the viewer cannot count to.
func (d *document) dropHigh() {
	layout := *d.layout
	layout.Segments = nil
	for _, s := range d.layout.Segments {
		if s.Address >= maxNumber || s.Size > maxNumber-s.Address {
			d.high += s.Size
			continue
		}
		layout.Segments = append(layout.Segments, s)
	}
	d.layout = &layout
}

func (d *document) segments() {
	for i := range d.layout.Segments {
		s := &d.layout.Segments[i]
		d.Dict(nil, func() { d.segment(s) })
	}
}

func (d *document) segment(s *snapshot.Segment) {
	var used uint64
	for i := range s.Blocks {
		used += s.Blocks[i].Size
	}
	d.int("device", int64(d.device[s.Place]))
	d.int("address", int64(s.Address))
	d.int("total_size", int64(s.Size))
	for _, key := range []string{"allocated_size", "active_size", "requested_size"} {
		d.int(key, int64(used))
	}
	of := d.stream(s.Place, s.Pool, s.Expandable)
	if s.Source < 0 {
		of = streamOlder
	}
	d.int("stream", of)
	kind := "large"
	if s.Small {
		kind = "small"
	}
	d.text("segment_type", kind)
	d.key("segment_pool_id", func() { d.Pair(0, d.pool(s.Source, s.Pool)) })
	d.key("is_expandable", func() { d.Bool(s.Expandable) })
	d.key("frames", func() { d.stack(s.Source) })
	d.key("user_metadata", func() { d.metadata(s.Source) })
	d.key("blocks", func() { d.List(nil, func() { d.blocks(s) }) })
}

// stream returns the number of a kind of segment.
func (d *document) stream(place int, pool, pages bool) int64 {
	switch {
	case !pool:
		return streamOutside
	case pages && d.mixed[d.device[place]]:
		return streamPages
	}
	return streamPool
}

// pool returns the second part of the id of the pool that memory is in.
func (d *document) pool(source int, pool bool) int64 {
	if pool || source < 0 {
		return 0
	}
	owner := d.layout.Sources[source].Owner
	if owner == "pytorch" {
		return 0
	}
	n, _ := d.pools.Number(owner)
	return int64(n) + 1
}

// blocks writes those of a segment, and what is free between them.
func (d *document) blocks(s *snapshot.Segment) {
	at := s.Address
	free := func(to uint64) {
		if at < to {
			d.block(at, to-at, "inactive", -1)
		}
	}
	for _, b := range s.Blocks {
		free(b.Address)
		d.block(b.Address, b.Size, "active_allocated", b.Source)
		at = b.Address + b.Size
	}
	free(s.Address + s.Size)
}

func (d *document) block(address, size uint64, state string, source int) {
	requested := size
	if source < 0 {
		requested = 0
	}
	d.Dict(nil, func() {
		d.int("address", int64(address))
		d.int("size", int64(size))
		d.int("requested_size", int64(requested))
		d.text("state", state)
		d.key("frames", func() { d.stack(source) })
		if source >= 0 {
			d.key("user_metadata", func() { d.metadata(source) })
		}
	})
}

// What is shared is known by these.
type (
	stackKey int
	frameKey struct{ location, line int }
	labelKey int
)

// stack writes the frames of a source, leaf first.
func (d *document) stack(source int) {
	if source < 0 {
		d.List(stackKey(-1), func() {})
		return
	}
	d.List(stackKey(source), func() {
		for _, l := range d.layout.Sources[source].Stack {
			n, _ := d.frames.Number(l)
			for i := range l.Lines {
				d.Dict(frameKey{n, i}, func() { d.frame(l, &l.Lines[i]) })
			}
		}
	})
}

func (d *document) frame(l *snapshot.Location, line *snapshot.Line) {
	file := line.File
	if file == "" && l.Mapping != nil {
		file = l.Mapping.Path
	}
	d.text("name", line.Function)
	d.text("filename", file)
	d.int("line", int64(line.Line))
}

// metadata writes the labels of a source.
func (d *document) metadata(source int) {
	if source < 0 {
		d.Dict(labelKey(-1), func() {})
		return
	}
	d.Dict(labelKey(source), func() { d.labels(source) })
}

func (d *document) labels(source int) {
	labels := &d.layout.Sources[source].Labels
	for i := range snapshot.AllLabels {
		l := &snapshot.AllLabels[i]
		if text := l.Get(labels); text != "" && !l.Numeric() && !l.OfProcess() {
			d.text(l.Name, text)
		}
	}
}

func (d *document) deviceTraces() {
	traces := d.traces()
	empty := len(d.layout.Segments) == 0 && !slices.ContainsFunc(traces, func(t trace) bool { return len(t.steps) > 0 })
	if empty {
		traces = make([]trace, max(len(traces), 1))
	}
	for device, t := range traces {
		d.List(nil, func() {
			if empty && device == 0 {
				// The viewer throws where no device has anything; PyTorch has this
				// entry where it made a snapshot.
				d.entry("snapshot", &snapshot.Change{Time: d.snapshot.Meta.Start.Add(d.snapshot.Meta.Duration)}, streamPool, -1)
			}
			for _, i := range t.steps {
				step := d.layout.Change(int(i))
				if r := t.repairs[i]; r != nil {
					d.repaired(&step, r)
				} else {
					d.step(&step)
				}
			}
		})
	}
}

// entry writes one of a trace.
func (d *document) entry(action string, step *snapshot.Change, stream int64, source int) {
	d.Dict(nil, func() {
		d.text("action", action)
		if step.Action == snapshot.AllocationFailed {
			d.int("device_free", step.Free)
		} else {
			d.int("addr", int64(step.Address))
		}
		d.int("size", int64(min(step.Size, maxNumber)))
		d.int("stream", stream)
		d.int("time_us", step.Time.UnixMicro())
		d.key("frames", func() { d.stack(source) })
		d.text("compile_context", "N/A")
		d.key("user_metadata", func() {
			if step.Action == snapshot.AllocationFailed {
				d.Dict(nil, func() { d.lacked(step) })
			} else {
				d.metadata(source)
			}
		})
	})
}

// lacked writes the metadata of a failure for want of memory.
func (d *document) lacked(s *snapshot.Change) {
	d.labels(s.Source)
	if s.FreeKnown {
		d.text("device_free", "as the driver said last")
	} else {
		d.text("device_free", "not known")
	}
}

func (d *document) step(s *snapshot.Change) {
	of := d.stream(s.Place, s.Pool, s.Expandable)
	came, ended := "segment_alloc", "segment_free"
	if s.Expandable {
		came, ended = "segment_map", "segment_unmap"
	}
	switch s.Action {
	case snapshot.BlockCame:
		d.entry("alloc", s, streamPool, s.Source)
	case snapshot.BlockEnded:
		d.freed(s, streamPool)
	case snapshot.SegmentCame:
		d.entry(came, s, of, s.Source)
		if !s.Pool {
			d.entry("alloc", s, of, s.Source)
		}
	case snapshot.SegmentEnded:
		if !s.Pool {
			d.freed(s, of)
		}
		d.entry(ended, s, of, s.Source)
	case snapshot.AllocationFailed:
		d.entry("oom", s, streamPool, s.Source)
	}
}

func (d *document) freed(s *snapshot.Change, stream int64) {
	d.entry("free_requested", s, stream, s.Source)
	d.entry("free_completed", s, stream, s.Source)
}

// repaired writes a step with its repairs.
func (d *document) repaired(s *snapshot.Change, r *repairs) {
	block := func(b span) *snapshot.Change {
		return &snapshot.Change{Time: s.Time, Address: b.from, Size: b.to - b.from, Source: -1}
	}
	for _, b := range r.moved {
		d.freed(block(b), streamPool)
	}
	for _, x := range r.before {
		d.repair(s, x)
	}
	d.step(s)
	for _, x := range r.after {
		d.repair(s, x)
	}
	for _, b := range r.moved {
		d.entry("alloc", block(b), streamPool, -1)
	}
}

// repair writes a segment that nobody saw come or end, at the time of a step.
func (d *document) repair(at *snapshot.Change, r repair) {
	s := snapshot.Change{Time: at.Time, Address: r.from, Size: r.to - r.from}
	action, of := "segment_alloc", int64(streamOlder)
	switch {
	case r.pages:
		action, of = "segment_unmap", d.stream(at.Place, true, true)
	case r.ended:
		action = "segment_free"
	}
	d.entry(action, &s, of, -1)
}

// about writes where the snapshot comes from, and its notes and losses.
func (d *document) about() {
	m := &d.snapshot.Meta
	for _, x := range [...]struct{ key, text string }{
		{"version", m.Version}, {"command_line", m.CommandLine}, {"target", m.Target}, {"driver", m.Driver}, {"stack_mode", m.StackMode},
	} {
		d.text(x.key, x.text)
	}
	d.int("start_us", m.Start.UnixMicro())
	d.int("duration_us", m.Duration.Microseconds())
	d.key("devices", func() {
		d.List(nil, func() {
			for i := range d.layout.Places {
				p := &d.layout.Places[i]
				d.Dict(nil, func() {
					d.int("device", int64(d.device[i]))
					d.int("pid", int64(p.PID))
					d.text("process", p.Process)
					d.int("cuda_ordinal", int64(p.Device))
					d.text("gpu", p.GPU)
				})
			}
		})
	})
	d.key("notes", func() {
		d.List(nil, func() {
			for _, text := range d.notes() {
				d.String(text)
			}
		})
	})
	d.key("loss", func() {
		d.Dict(nil, func() {
			for _, c := range loss.Shown(d.snapshot.Loss) {
				if c.Value != 0 {
					d.int(c.Name, int64(min(c.Value, maxNumber)))
				}
			}
		})
	})
}
