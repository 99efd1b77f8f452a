// Package torchsnapshot reads what torch.cuda.memory._dump_snapshot() wrote, a pickle or JSON, and
// reports it as the records of a trace. It needs neither PyTorch nor a GPU, and trusts nothing in a
// file.
//
// A file has PyTorch's segments and blocks at its end, and what the allocator did before, as far back
// as its history goes. That often begins when much was there already. What was there then follows from
// the end by going backward (state.go). The records (records.go) begin with it, all at the time of
// record.Trace.Start, and go on with the history.
package torchsnapshot

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Reasons why a file is not read: it is a pickle or JSON, but no snapshot, or one that makes no sense.
var (
	errOther  = fmt.Errorf("%w, nor a memory snapshot of PyTorch: it lacks segments or device_traces", record.ErrNotRecording)
	ErrFormat = errors.New("the memory snapshot makes no sense")
)

// An action is what the allocator did in a step.
type action uint8

const (
	other action = iota
	alloc
	free // completed: the block may be used again
	segmentAlloc
	segmentFree
	segmentMap
	segmentUnmap
	oom
)

var actions = map[string]action{
	"alloc": alloc, "free_completed": free, "segment_alloc": segmentAlloc, "segment_free": segmentFree,
	"segment_map": segmentMap, "segment_unmap": segmentUnmap, "oom": oom,
}

// A step is one entry of a history. Sizes are in bytes.
type step struct {
	action  action
	address uint64 // of an oom: the bytes that were free on the GPU
	size    uint64 // that was asked for
	block   uint64 // of the block of an alloc or a free: see unwind
	stream  uint64
	time    uint64 // microseconds since 1970, 0 if the file has none
	frames  value
	pool    pool
	own     own
	context uint32 // of torch.compile: its number in texts, plus 1, 0 for none
}

// A remark is the beginning or the end of an annotation.
type remark struct {
	time uint64 // microseconds since 1970
	name string
	ends bool
}

// An own is what a file that gpumemtrace wrote says besides.
type own struct {
	api     uint16 // of event.Event
	outside bool   // no memory of a caching allocator's
}

// A pool is the id of a private pool, zero for none.
type pool struct{ first, second uint64 }

// A segment is a range of addresses that CUDA provided, in which blocks are live.
type segment struct {
	address, size uint64
	small         bool
	expandable    bool
	stream        uint64
	pool          pool
	frames        value
	own           own
}

// A block is memory that the allocator had handed out.
type block struct {
	address, size uint64
	requested     uint64
	stream        uint64
	pool          pool
	frames        value
	freed         int // 1 more than the step that freed it, 0 for one that is live at the end
}

// A device is what a file says of one GPU.
type device struct {
	number   int32
	segments []segment // by address
	blocks   []block   // live at the end
	steps    []step
	remarks  []remark
	oddEnd   int // segments whose blocks are not those that the segment says to have
}

// A file is a snapshot.
type file struct {
	*tree
	devices  []device
	settings string // as PYTORCH_CUDA_ALLOC_CONF
	rules    rules
	lost     bool // its history had more entries than were kept
	apis     []string
	byAPI    map[string]uint16 // of a file that gpumemtrace wrote
	about    value             // of a file that gpumemtrace wrote: what of
}

// ours reports whether gpumemtrace wrote the file.
func (f *file) ours() bool { return f.about.kind == dict }

// lastTime is later than any time of a history, in microseconds: as nanoseconds it has 63 bits.
const lastTime = 9e15

// maxDevice bounds the numbers of GPUs.
const maxDevice = 1 << 10

// parse reads a file, which begins with begin.
func parse(r io.Reader, begin byte) (*file, error) {
	read := unpickle
	if begin == '{' {
		read = readJSON
	}
	t, root, err := read(r)
	if err != nil {
		return nil, err
	}
	segments, traces := t.get(root, "segments"), t.get(root, "device_traces")
	if segments.kind != list || traces.kind != list {
		return nil, errOther
	}
	f := &file{tree: t, about: t.get(root, "gpumemtrace"), apis: slices.Clone(apis), byAPI: map[string]uint16{}}
	f.readSettings(t.get(root, "allocator_settings"))
	// Each list and dictionary is read once, so that references cannot make a small file large.
	seen := once{make([]bool, len(t.dicts)), make([]bool, len(t.lists))}
	if len(t.items(traces)) > maxDevice {
		return nil, fmt.Errorf("%w: it has %d GPUs", ErrFormat, len(t.items(traces)))
	}
	for i, trace := range t.items(traces) {
		d := device{number: int32(i)}
		if err := f.readSteps(&d, trace, &seen); err != nil {
			return nil, err
		}
		f.devices = append(f.devices, d)
	}
	for _, s := range t.items(segments) {
		if err := f.readSegment(s, &seen); err != nil {
			return nil, err
		}
	}
	for _, x := range t.items(t.get(root, "external_annotations")) {
		if err := seen.read(x); err != nil {
			return nil, err
		}
		f.readRemark(x)
	}
	return f, nil
}

// readRemark reads an annotation's beginning or end. Names that count, such as ProfilerStep#12, are one.
func (f *file) readRemark(v value) {
	number, stage := f.get(v, "device").number(), f.string(f.get(v, "stage"))
	if number >= uint64(len(f.devices)) || stage != "START" && stage != "END" {
		return
	}
	name, _, _ := strings.Cut(f.string(f.get(v, "name")), "#")
	d := &f.devices[number]
	d.remarks = append(d.remarks, remark{f.get(v, "time_us").number(), name, stage == "END"})
}

// once remembers which dictionaries and lists were read.
type once struct{ dicts, lists []bool }

func (o *once) read(v value) error {
	var all []bool
	switch v.kind {
	case dict:
		all = o.dicts
	case list:
		all = o.lists
	default:
		return fmt.Errorf("%w: it has %s where an entry is due", ErrFormat, kindNames[v.kind])
	}
	if all[v.n] {
		return fmt.Errorf("%w: it has an entry twice", ErrFormat)
	}
	all[v.n] = true
	return nil
}

func (f *file) readSteps(d *device, trace value, seen *once) error {
	if err := seen.read(trace); err != nil {
		return err
	}
	d.steps = make([]step, 0, len(f.items(trace)))
	for _, e := range f.items(trace) {
		if err := seen.read(e); err != nil {
			return err
		}
		s := step{
			action: actions[f.string(f.get(e, "action"))], address: f.get(e, "addr").number(), size: f.get(e, "size").number(),
			stream: f.get(e, "stream").number(), time: min(f.get(e, "time_us").number(), lastTime), frames: f.get(e, "frames"), pool: f.pool(e, "pool_id"),
		}
		if s.own = f.own(e, s.stream); f.ours() {
			s.stream = 0
		}
		if c := f.get(e, "compile_context"); c.kind == text && f.string(c) != "" && f.string(c) != "N/A" {
			s.context = uint32(c.n) + 1
		}
		switch {
		case s.action == other, s.action <= free && f.notTensor(e):
			continue
		case s.action == oom:
			s.address = f.get(e, "device_free").number()
		case s.size > 1<<48 || s.address > 1<<63:
			return fmt.Errorf("%w: it has %d bytes at %#x", ErrFormat, s.size, s.address)
		}
		d.steps = append(d.steps, s)
	}
	return nil
}

// notTensor reports whether an entry is of a block that gpumemtrace wrote for memory in which it saw no
// tensors.
func (f *file) notTensor(v value) bool {
	return f.ours() && f.string(f.get(f.get(v, "user_metadata"), "kind")) != event.KindTensor.String()
}

// maxAPIs bounds the functions of CUDA that a file names.
const maxAPIs = 1 << 10

// streamOutside is the number that package memoryviz gives memory of no caching allocator.
const streamOutside = 1

func (f *file) own(v value, stream uint64) (out own) {
	api := f.string(f.get(f.get(v, "user_metadata"), "api"))
	if !f.ours() || api == "" {
		return out
	}
	if _, ok := f.byAPI[api]; !ok && len(f.apis) < maxAPIs {
		f.byAPI[api] = uint16(len(f.apis))
		f.apis = append(f.apis, api)
	}
	return own{f.byAPI[api], stream == streamOutside}
}

func (f *file) pool(v value, key string) pool {
	if pair := f.items(f.get(v, key)); len(pair) == 2 {
		return pool{pair[0].number(), pair[1].number()}
	}
	return pool{}
}

func (f *file) readSegment(v value, seen *once) error {
	if err := seen.read(v); err != nil {
		return err
	}
	number := f.get(v, "device").number()
	if number >= maxDevice {
		return fmt.Errorf("%w: it has a GPU %d", ErrFormat, number)
	}
	for uint64(len(f.devices)) <= number {
		f.devices = append(f.devices, device{number: int32(len(f.devices))})
	}
	d := &f.devices[number]
	s := segment{
		address: f.get(v, "address").number(), size: f.get(v, "total_size").number(), small: f.string(f.get(v, "segment_type")) == "small",
		expandable: f.get(v, "is_expandable").is(), stream: f.get(v, "stream").number(), pool: f.pool(v, "segment_pool_id"), frames: f.get(v, "frames"),
	}
	if s.size > 1<<48 || s.address > 1<<63 {
		return fmt.Errorf("%w: it has a segment of %d bytes at %#x", ErrFormat, s.size, s.address)
	}
	if s.own = f.own(v, s.stream); f.ours() {
		s.stream, s.pool = 0, pool{}
	}
	at, live := s.address, uint64(0)
	for _, b := range f.items(f.get(v, "blocks")) {
		if err := seen.read(b); err != nil {
			return err
		}
		size := f.get(b, "size").number()
		if a := f.get(b, "address"); a.kind == integer {
			at = a.number()
		}
		if size > s.size || at < s.address || at-s.address > s.size-size {
			d.oddEnd++
			continue
		}
		if f.string(f.get(b, "state")) != "inactive" {
			live += size
		}
		if f.string(f.get(b, "state")) != "inactive" && !f.notTensor(b) {
			x := block{address: at, size: size, requested: f.get(b, "requested_size").number(), stream: s.stream, frames: f.get(b, "frames")}
			if h := f.items(f.get(b, "history")); len(h) > 0 { // before PyTorch 2.1
				x.requested, x.frames = f.get(h[0], "real_size").number(), f.get(h[0], "frames")
			}
			d.blocks = append(d.blocks, x)
		}
		at += size
	}
	if active := f.get(v, "active_size"); active.kind == integer && active.number() != live {
		d.oddEnd++
	}
	d.segments = append(d.segments, s)
	return nil
}

// readSettings reads the settings of the allocator, as far as they decide where blocks lie.
func (f *file) readSettings(v value) {
	f.rules = rules{expandable: f.get(v, "expandable_segments").is()}
	if n := f.get(v, "max_split_size"); n.kind == integer {
		f.rules.maxSplit = n.number() // -1 for no limit
	}
	for _, e := range f.entries(f.get(v, "roundup_power2_divisions")) {
		if mib, err := strconv.ParseUint(f.texts[e.key], 10, 16); err == nil && mib > 0 {
			f.rules.divisions[bits.Len64(mib)-1] = value{e.n, e.kind}.number()
		}
	}
	f.lost = f.get(v, "trace_alloc_overflowed").is()
	f.settings = f.string(f.get(v, "PYTORCH_CUDA_ALLOC_CONF"))
	if f.settings != "" {
		return
	}
	var all []string
	if f.rules.expandable {
		all = append(all, "expandable_segments:True")
	}
	if f.rules.maxSplit > 0 {
		all = append(all, fmt.Sprintf("max_split_size_mb:%d", f.rules.maxSplit>>20))
	}
	f.settings = strings.Join(all, ",")
}

func (t *tree) entries(v value) []entry {
	if v.kind != dict {
		return nil
	}
	return t.dicts[v.n]
}
