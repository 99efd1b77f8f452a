// Package viewertest does with a memory snapshot what PyTorch's memory viewer does, and
// says where that would throw or show something that was not so.
package viewertest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/pickletest"
)

// A Snapshot has all keys that may be in a file.
type Snapshot struct {
	Segments            []Segment         `json:"segments"`
	DeviceTraces        [][]Entry         `json:"device_traces"`
	AllocatorSettings   map[string]any    `json:"allocator_settings"`
	ExternalAnnotations []json.RawMessage `json:"external_annotations"`
	About               About             `json:"gpumemtrace"`
}

// An About says where a file comes from.
type About struct {
	Version     string `json:"version"`
	CommandLine string `json:"command_line"`
	Target      string `json:"target"`
	Driver      string `json:"driver"`
	StackMode   string `json:"stack_mode"`
	Start       int64  `json:"start_us"`
	Duration    int64  `json:"duration_us"`
	Devices     []struct {
		Device  int    `json:"device"`
		PID     int    `json:"pid"`
		Process string `json:"process"`
		Ordinal int    `json:"cuda_ordinal"`
		GPU     string `json:"gpu"`
	} `json:"devices"`
	Notes []string         `json:"notes"`
	Loss  map[string]int64 `json:"loss"`
}

// A Segment is one of Snapshot.Segments.
type Segment struct {
	Device     int               `json:"device"`
	Address    int64             `json:"address"`
	Total      int64             `json:"total_size"`
	Allocated  int64             `json:"allocated_size"`
	Active     int64             `json:"active_size"`
	Requested  int64             `json:"requested_size"`
	Stream     int64             `json:"stream"`
	Type       string            `json:"segment_type"`
	Pool       []int64           `json:"segment_pool_id"`
	Expandable bool              `json:"is_expandable"`
	Frames     []Frame           `json:"frames"`
	Metadata   map[string]string `json:"user_metadata"`
	Blocks     []Block           `json:"blocks"`
}

// A Block is one of a Segment.
type Block struct {
	Address   int64             `json:"address"`
	Size      int64             `json:"size"`
	Requested int64             `json:"requested_size"`
	State     string            `json:"state"`
	Frames    []Frame           `json:"frames"`
	Metadata  map[string]string `json:"user_metadata"`
}

// A Frame is one of a stack.
type Frame struct {
	Name string `json:"name"`
	File string `json:"filename"`
	Line int    `json:"line"`
}

// An Entry is one of a device's trace.
type Entry struct {
	Action   string            `json:"action"`
	Addr     *int64            `json:"addr"`
	Free     *int64            `json:"device_free"`
	Size     int64             `json:"size"`
	Stream   int64             `json:"stream"`
	Time     int64             `json:"time_us"`
	Frames   []Frame           `json:"frames"`
	Context  string            `json:"compile_context"`
	Metadata map[string]string `json:"user_metadata"`
}

// ReadPickle reads a pickle by the opcodes that the viewer knows.
func ReadPickle(b []byte) (*Snapshot, error) {
	v, err := pickletest.Decode(b)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(pickletest.Plain(v))
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var s Snapshot
	if err := d.Decode(&s); err != nil {
		return nil, err
	}
	return &s, nil
}

// safe is up to where JavaScript's numbers are exact.
const safe = 1 << 53

// Check returns what the viewer would throw at, and, if what the file shows was all seen
// in order, what it would show wrongly.
func (s *Snapshot) Check(honest bool) error {
	var all []error
	problem := func(format string, args ...any) {
		if len(all) < 20 {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	if s.Segments == nil || s.DeviceTraces == nil || s.ExternalAnnotations == nil {
		problem("a list is missing")
	}
	if len(s.Segments) == 0 && !slices.ContainsFunc(s.DeviceTraces, func(of []Entry) bool { return len(of) > 0 }) {
		problem("no device can be selected")
	}
	for i := range s.Segments {
		g := &s.Segments[i]
		if g.Device < 0 || g.Device >= len(s.DeviceTraces) {
			problem("segment %d is on device %d of %d", i, g.Device, len(s.DeviceTraces))
			continue
		}
		at, active := g.Address, int64(0)
		for _, b := range g.Blocks {
			if b.Address != at || b.Size <= 0 || b.Frames == nil {
				problem("segment %d: block %+v, want it at %#x", i, b, at)
			}
			at += b.Size
			switch b.State {
			case "active_allocated":
				active += b.Size
			case "inactive":
			default:
				problem("segment %d: state %q", i, b.State)
			}
		}
		if at != g.Address+g.Total || at > safe || g.Address < 0 || g.Total <= 0 || active != g.Allocated || active != g.Active || len(g.Pool) != 2 || g.Frames == nil {
			problem("segment %d is %+v, its blocks end at %#x, %d of it are active", i, g, at, active)
		}
	}
	for device, entries := range s.DeviceTraces {
		s.back(device, entries, honest, problem)
	}
	return errors.Join(all...)
}

// A viewer shows a device at one moment.
type viewer struct {
	segments []extent // by address
	blocks   map[int64]int64
	honest   bool
	problem  func(string, ...any)
	when     string
}

type extent struct{ addr, size, stream int64 }

// back goes through a trace backwards, as the viewer's simulate_memory does.
func (s *Snapshot) back(device int, entries []Entry, honest bool, problem func(string, ...any)) {
	v := &viewer{blocks: map[int64]int64{}, honest: honest, problem: problem}
	for i := range s.Segments {
		g := &s.Segments[i]
		if g.Device != device {
			continue
		}
		v.segments = append(v.segments, extent{g.Address, g.Total, g.Stream})
		for _, b := range g.Blocks {
			if b.State == "active_allocated" {
				v.blocks[b.Address] = b.Size
			}
		}
	}
	slices.SortFunc(v.segments, func(a, b extent) int { return int(a.addr - b.addr) })
	for i := 1; i < len(v.segments); i++ {
		if a, b := v.segments[i-1], v.segments[i]; a.addr+a.size > b.addr {
			problem("device %d: segments %+v and %+v overlap", device, a, b)
		}
	}
	for i := len(entries) - 1; i >= 0; i-- {
		e := &entries[i]
		v.when = fmt.Sprintf("device %d, entry %d, %s", device, i, e.Action)
		if (e.Action == "oom") != (e.Free != nil) || (e.Action == "oom") == (e.Addr != nil) || e.Frames == nil || e.Size < 0 || e.Size > safe {
			problem("%s: %+v", v.when, e)
			continue
		}
		if e.Action != "oom" {
			v.undo(e, i > 0 && e.Action == "free_completed" && (entries[i-1].Action != "free_requested" || *entries[i-1].Addr != *e.Addr))
		}
		if len(entries) < 2000 || i%(len(entries)/100) == 0 {
			v.draw()
		}
	}
	v.draw()
}

// draw finds the segment of each block.
func (v *viewer) draw() {
	for addr := range v.blocks {
		if !v.inside(addr) {
			v.problem("before %s: block %#x is in no segment", v.when, addr)
		}
	}
}

// inside is the viewer's find_segment.
func (v *viewer) inside(addr int64) bool {
	left, right := 0, len(v.segments)-1
	for left <= right {
		mid := (left + right) / 2
		switch x := v.segments[mid]; {
		case addr < x.addr:
			right = mid - 1
		case addr >= x.addr+x.size:
			left = mid + 1
		default:
			return true
		}
	}
	return false
}

// undo takes back an entry. alone: a block's end was not asked for just before.
func (v *viewer) undo(e *Entry, alone bool) {
	addr, end := *e.Addr, *e.Addr+e.Size
	_, live := v.blocks[addr]
	switch e.Action {
	case "free_completed":
		if live && v.honest || alone {
			v.problem("%s: block %#x is there: %v; nobody asked for its end: %v", v.when, addr, live, alone)
		}
		v.blocks[addr] = e.Size
	case "free_requested":
		if !live {
			v.problem("%s: block %#x is not there", v.when, addr)
		}
	case "alloc":
		if !live && v.honest {
			v.problem("%s: block %#x is not there", v.when, addr)
		}
		delete(v.blocks, addr)
	case "segment_free", "segment_unmap":
		i := slices.IndexFunc(v.segments, func(x extent) bool { return x.addr > addr })
		if i < 0 {
			i = len(v.segments)
		}
		if v.honest && (v.inside(addr) || i < len(v.segments) && v.segments[i].addr < end) {
			v.problem("%s: [%#x, %#x) lies over others", v.when, addr, end)
		}
		v.segments = slices.Insert(v.segments, i, extent{addr, e.Size, e.Stream})
		if e.Action == "segment_unmap" {
			v.merge(i)
			v.merge(i - 1)
		}
	case "segment_alloc":
		i := slices.Index(v.segments, extent{addr, e.Size, e.Stream})
		if i < 0 {
			v.problem("%s: [%#x, %#x) is not there", v.when, addr, end)
			return
		}
		v.segments = slices.Delete(v.segments, i, i+1)
	case "segment_map":
		i := slices.IndexFunc(v.segments, func(x extent) bool { return x.addr <= addr && end <= x.addr+x.size })
		if i < 0 {
			v.problem("%s: [%#x, %#x) is not there", v.when, addr, end)
			return
		}
		x := v.segments[i]
		v.segments = slices.Delete(v.segments, i, i+1)
		if end < x.addr+x.size {
			v.segments = slices.Insert(v.segments, i, extent{end, x.addr + x.size - end, x.stream})
		}
		if x.addr < addr {
			v.segments = slices.Insert(v.segments, i, extent{x.addr, addr - x.addr, x.stream})
		}
	case "snapshot":
	default:
		v.problem("%s", v.when)
	}
}

// merge makes one segment of the one at i and the next, if they lie side by side.
func (v *viewer) merge(i int) {
	if i < 0 || i+1 >= len(v.segments) {
		return
	}
	if a, b := v.segments[i], v.segments[i+1]; a.addr+a.size == b.addr && a.stream == b.stream {
		v.segments[i].size += b.size
		v.segments = slices.Delete(v.segments, i+1, i+2)
	}
}
