package torchsnapshot

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// Functions of the events, by event.Event.API.
const (
	apiNone = iota
	apiMalloc
	apiFree
	apiCreate
	apiMap
	apiUnmap
	apiRelease
)

var apis = []string{"", "cudaMalloc", "cudaFree", "cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease"}

// allocator is the function that hands tensors out, and asks CUDA for segments. It is the innermost
// frame of each stack.
const allocator = "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc"

// A teller reports a file as records, one after another.
type teller struct {
	*file
	yield  func(record.Record)
	places map[frame]*record.Place
	byDict map[uint64]*record.Place     // of frames
	byList map[stackKey]uint64          // stacks by their frames
	byPath map[string]uint64            // by places
	mapped map[string]*snapshot.Mapping // by path
	of     []*gpu
	time   uint64
	last   uint64 // time of the last Moment
	pieces int    // of expandable segments
}

// mostPieces bounds the pieces of expandable segments that are reported.
const mostPieces = 1 << 22

// A frame is one of a stack.
type frame struct {
	name, file string
	line       int
}

// A gpu is a device while its steps are reported.
type gpu struct {
	*device
	first               before
	allocated, reserved uint64 // bytes
	cuts                []uint64
	handles             map[uint64]uint64 // by the address of the range that shows one
	private             pool              // whose window is open
	next                int               // step
	process             event.Process
	ordinal             int32    // of CUDA
	said                int      // how many remarks are over
	open                []string // annotations, outermost first
}

// between is the time between two Moments, in nanoseconds.
const between = 10_000_000

// records reports the file, whose name is shown to people.
func (f *file) records(name string, yield func(record.Record)) error {
	t := &teller{file: f, yield: yield, places: map[frame]*record.Place{}, byDict: map[uint64]*record.Place{}, byList: map[stackKey]uint64{}, byPath: map[string]uint64{}, mapped: map[string]*snapshot.Mapping{}}
	begin, names := f.get(f.about, "start_us").number()*1000, map[event.Process]string{}
	of := map[int32]value{}
	for _, x := range f.items(f.get(f.about, "devices")) {
		of[int32(f.get(x, "device").number())] = x
	}
	for i := range f.devices {
		d := &f.devices[i]
		// The file of PyTorch does not have the process's number.
		g := &gpu{device: d, handles: map[uint64]uint64{}, process: event.Process{PID: 1, Start: event.StartUnit}, ordinal: d.number}
		if x, ok := of[d.number]; ok {
			g.process.PID, g.ordinal = uint32(f.get(x, "pid").number()), int32(f.get(x, "cuda_ordinal").number())
			names[g.process] = f.string(f.get(x, "process"))
		} else {
			names[g.process] = strings.TrimSuffix(name, filepath.Ext(name))
		}
		for k := range d.steps { // files of PyTorch before 2.2 have no times
			d.steps[k].time = cmp.Or(d.steps[k].time, uint64(k+1)) * 1000
		}
		if len(d.steps) > 0 && (begin == 0 || d.steps[0].time < begin) {
			begin = d.steps[0].time
		}
		g.first = d.unwind(f.rules)
		g.cuts = d.cuts(g.first.segments)
		t.of = append(t.of, g)
	}
	t.time = max(begin, 2) - 1
	yield(&record.Trace{
		Version: f.string(f.get(f.about, "version")), CommandLine: f.string(f.get(f.about, "command_line")), Driver: f.string(f.get(f.about, "driver")),
		Target: cmp.Or(f.string(f.get(f.about, "target")), f.target(name, t.of)), StackMode: cmp.Or(f.string(f.get(f.about, "stack_mode")), snapshot.ByPyTorch),
		Boot: time.Unix(0, 0), Start: time.Unix(0, int64(t.time)), Incidents: 1 << 10, APIs: f.apis,
	})
	for _, p := range sorting.Keys(names, event.Process.Compare) {
		yield(&record.Process{Process: p, Target: true, Name: names[p]})
		if f.settings != "" {
			yield(&record.Allocator{Process: p, Settings: f.settings})
		}
	}
	yield(&record.Tensors{Time: t.time})
	for _, note := range f.notes(t.of) {
		yield(&record.Note{Text: note})
	}
	for _, g := range t.of {
		t.begin(g)
	}
	t.moment()
	for g := t.earliest(); g != nil; g = t.earliest() {
		s := &g.steps[g.next]
		g.next++
		t.time = max(t.time+1, s.time)
		g.annotate(s.time / 1000)
		if t.step(g, s); t.pieces > mostPieces {
			return fmt.Errorf("%w: its expandable segments lie over each other", ErrFormat)
		}
		if t.time >= t.last+between {
			t.moment()
		}
	}
	t.time = max(t.time, begin+f.get(f.about, "duration_us").number()*1000)
	t.moment()
	return nil
}

// earliest returns the GPU whose next step comes next, nil at the end.
func (t *teller) earliest() (first *gpu) {
	for _, g := range t.of {
		if g.next < len(g.steps) && (first == nil || g.steps[g.next].time < first.steps[first.next].time) {
			first = g
		}
	}
	return first
}

func (t *teller) moment() {
	t.last = t.time
	t.yield(&record.Moment{Time: t.time, Drained: true})
}

// target says what the records are of, and how much of it has no stack.
func (f *file) target(name string, of []*gpu) string {
	var all, without uint64
	for _, g := range of {
		a, w := g.peak(f.tree)
		all, without = all+a, without+w
	}
	percent := math.Round(100 * float64(without) / float64(max(all, 1)))
	if percent == 0 {
		return "the snapshot " + name
	}
	return fmt.Sprintf("the snapshot %s (%.0f%% of its tensors' bytes have no stack)", name, percent)
}

// peak returns the most that tensors had at one moment, and how much of that has no stack, in bytes.
func (g *gpu) peak(t *tree) (most, without uint64) {
	bare := map[uint64]uint64{} // sizes of live blocks without a stack, by address
	var now, nowBare uint64
	for _, b := range g.first.blocks {
		if now += b.size; len(t.items(b.frames)) == 0 {
			bare[b.address] = b.size
			nowBare += b.size
		}
	}
	most, without = now, nowBare
	for i := range g.steps {
		switch s := &g.steps[i]; s.action {
		case alloc:
			if now += s.block; now > most {
				most, without = now, nowBare
			}
		case free:
			now -= min(now, s.block)
			nowBare -= bare[s.address]
			delete(bare, s.address)
		}
	}
	return most, without
}

// notes are what a reader of the records must know.
func (f *file) notes(of []*gpu) []string {
	var out []string
	if !f.ours() {
		out = append(out, "A snapshot has the memory of PyTorch's allocator alone: no CUDA context, no library's memory, and no figure of nvidia-smi.")
	}
	odd, steps, live := 0, 0, uint64(0)
	for _, g := range of {
		odd += g.first.odd
		steps += len(g.steps)
		for _, b := range g.first.blocks {
			live += b.size
		}
	}
	if live >= 1<<20 {
		bytes := fmt.Sprintf("%d MiB", live>>20)
		if live >= 1<<30 {
			bytes = fmt.Sprintf("%.1f GiB", float64(live)/(1<<30))
		}
		out = append(out, fmt.Sprintf("When its history begins, tensors already hold %s. Memory without a stack is from that time.", bytes))
	}
	if f.lost {
		out = append(out, "PyTorch kept the last entries of its history alone (max_entries of _record_memory_history).")
	}
	if odd > 0 {
		out = append(out, fmt.Sprintf("%d of %d steps of this snapshot do not fit its segments and blocks: its figures may be wrong.", odd, steps))
	}
	return out
}

// begin reports the segments and tensors from before the history of a GPU.
func (t *teller) begin(g *gpu) {
	for _, s := range g.first.segments {
		if t.segment(g, s); s.pool != (pool{}) {
			t.event(g, event.Event{Op: event.OpPrivatePoolMemory, Addr: s.address, Size: s.size, Handle: s.pool.first, Part: s.pool.second})
		}
	}
	for _, b := range g.first.blocks {
		t.alloc(g, b.address, b.size, b.requested, b.stream, cmp.Or(t.stack(g, nil, b.frames, apiNone), t.before(g)), b.pool)
	}
}

// before returns the stack that stands for all memory from before the history.
func (t *teller) before(g *gpu) uint64 {
	return t.named(g, []*record.Place{t.place(frame{name: allocator}), t.place(frame{name: snapshot.BeforeHistory})})
}

// maxOpen bounds the annotations that are one inside of another.
const maxOpen = 16

// annotate opens and closes the annotations up to a time.
func (g *gpu) annotate(now uint64) {
	for ; g.said < len(g.remarks) && g.remarks[g.said].time <= now; g.said++ {
		r := &g.remarks[g.said]
		if !r.ends && len(g.open) < maxOpen {
			g.open = append(g.open, r.name)
		} else if i := last(g.open, r.name); r.ends && i >= 0 {
			g.open = slices.Delete(g.open, i, i+1)
		}
	}
}

// last returns the last place of a name, negative for none.
func last(names []string, name string) int {
	for i, n := range slices.Backward(names) {
		if n == name {
			return i
		}
	}
	return -1
}

// around returns the frames of what the program said of the time of a step, innermost first.
func (t *teller) around(g *gpu, s *step) (out []*record.Place) {
	if s == nil {
		return nil
	}
	if s.context > 0 {
		out = append(out, t.place(frame{name: snapshot.Compiled + t.texts[s.context-1]}))
	}
	for _, name := range slices.Backward(g.open) {
		out = append(out, t.place(frame{name: snapshot.Annotation + name}))
	}
	return out
}

// step reports one step of a history.
func (t *teller) step(g *gpu, s *step) {
	switch s.action {
	case alloc:
		t.alloc(g, s.address, s.block, s.size, s.stream, t.stack(g, s, s.frames, apiNone), s.pool)
	case free:
		g.allocated -= min(g.allocated, s.block)
		t.event(g, event.Event{Op: event.OpTensorFree, Kind: event.KindTensor, Addr: s.address, Size: s.block, Stream: s.stream, Stack: t.stack(g, s, s.frames, apiNone)})
	case segmentAlloc, segmentMap:
		t.segment(g, &segment{address: s.address, size: s.size, stream: s.stream, expandable: s.action == segmentMap, frames: s.frames, own: s.own})
	case segmentFree:
		if !s.own.outside {
			g.reserved -= min(g.reserved, s.size)
		}
		t.event(g, event.Event{Op: event.OpFree, Kind: event.KindDevice, API: apiFree, Addr: s.address})
	case segmentUnmap:
		g.reserved -= min(g.reserved, s.size)
		t.event(g, event.Event{Op: event.OpUnmap, API: apiUnmap, Addr: s.address, Size: s.size})
		for _, at := range t.cut(g, s.address, s.size) {
			if h, ok := g.handles[at[0]]; ok {
				delete(g.handles, at[0])
				t.event(g, event.Event{Op: event.OpHandleRelease, API: apiRelease, Handle: h})
			}
		}
	case oom:
		stack := t.stack(g, s, s.frames, apiNone)
		if s.address < s.size { // and not a limit of the program's own
			t.event(g, event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: apiMalloc, Size: s.size, Result: event.OutOfMemory, Stack: stack})
			t.time++
		}
		t.event(g, event.Event{Op: event.OpOutOfMemory, Size: s.size, Stack: stack})
	}
}

// event reports an event of a GPU at the present time.
func (t *teller) event(g *gpu, e event.Event) {
	e.Time, e.Proc, e.TID, e.Device = t.time, g.process, g.process.PID, g.ordinal
	if e.Op.Tensor() && e.Op <= event.OpTensorFree || e.Op == event.OpOutOfMemory {
		if e.Handle, e.Part = g.allocated, g.reserved; g.reserved == 0 { // a trace that did not see tensors
			e.Handle, e.Part = event.NoTotal, event.NoTotal
		}
	}
	t.yield(&e)
}

// alloc reports that a tensor was made, and enters or leaves its private pool first.
func (t *teller) alloc(g *gpu, address, size, asked, stream, stack uint64, in pool) {
	if in != g.private {
		if g.private != (pool{}) {
			t.event(g, event.Event{Op: event.OpPrivatePoolEnd, Handle: g.private.first, Part: g.private.second})
		}
		if in != (pool{}) {
			t.event(g, event.Event{Op: event.OpPrivatePoolBegin, Handle: in.first, Part: in.second})
		}
		g.private = in
	}
	if t.ours() { // it says how large the block is
		asked = 0
	}
	g.allocated += size
	t.event(g, event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Addr: address, Size: size, Asked: asked, Stream: stream, Stack: stack})
}

// segment reports that CUDA provided the memory of a segment, or of a part of an expandable one.
func (t *teller) segment(g *gpu, s *segment) {
	if !s.own.outside {
		g.reserved += s.size
	}
	api := cmp.Or(s.own.api, apiMalloc)
	stack := cmp.Or(t.stack(g, nil, s.frames, api), t.before(g))
	if !s.expandable {
		t.event(g, event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: api, Addr: s.address, Size: s.size, Stream: s.stream, Stack: stack})
		return
	}
	for _, at := range t.cut(g, s.address, s.size) {
		t.pieces++
		handle := uint64(t.pieces) // is new
		g.handles[at[0]] = handle
		t.event(g, event.Event{Op: event.OpHandleCreate, Kind: event.KindVMM, API: apiCreate, Handle: handle, Size: at[1] - at[0], Stack: stack})
		t.event(g, event.Event{Op: event.OpMap, Kind: event.KindVMM, API: apiMap, Handle: handle, Addr: at[0], Size: at[1] - at[0]})
	}
}

// cut cuts a range where any range of the history begins or ends, so that each piece comes and goes
// whole.
func (t *teller) cut(g *gpu, from, size uint64) (out [][2]uint64) {
	to := from + size
	i, _ := slices.BinarySearch(g.cuts, from+1)
	for ; from < to && t.pieces <= mostPieces; i++ {
		t.pieces++
		end := to
		if i < len(g.cuts) {
			end = min(end, g.cuts[i])
		}
		out = append(out, [2]uint64{from, end})
		from = end
	}
	return out
}

// stack returns the number of a list of frames, innermost first, 0 for none. api is the function of
// CUDA that was called, apiNone for a tensor.
func (t *teller) stack(g *gpu, s *step, frames value, api uint16) uint64 {
	all := t.items(frames)
	around := t.around(g, s)
	if len(all)+len(around) == 0 {
		return 0
	}
	key := stackKey{process: g.process, list: frames}
	for _, p := range around {
		key.around += "," + strconv.FormatUint(p.ID, 36)
	}
	if id, ok := t.byList[key]; ok {
		return id
	}
	// The state takes the first native frame of a tensor for that of the allocator, and CUDA's caller is
	// the allocator, whether the stack has native frames or not.
	var places []*record.Place
	if !t.ours() || api == apiNone {
		places = append(places, t.place(frame{name: allocator}))
	}
	for i, x := range all[:min(len(all), maxFrames)] {
		p := t.frame(x)
		name := p.Location().Lines[0].Function
		if t.ours() && i == 0 && name == t.apis[api] || !t.ours() && len(places) == 1 && ofRecorder(name) {
			continue
		}
		places = append(places, p)
	}
	if !slices.ContainsFunc(places[min(1, len(places)):], func(p *record.Place) bool { return p.Address != 0 }) {
		// Without a native frame that is shown, the memory would count as the program's own.
		places = slices.Insert(places, 0, t.place(frame{name: allocator}))
	}
	id := t.named(g, append(places, around...))
	t.byList[key] = id
	return id
}

// A stackKey is a list of frames in a process.
type stackKey struct {
	process event.Process
	list    value
	around  string
}

// maxFrames bounds those of a stack.
const maxFrames = 1 << 10

// named returns the number of a stack, which it reports if it is new.
func (t *teller) named(g *gpu, places []*record.Place) uint64 {
	key := binary.AppendUvarint(nil, uint64(g.process.PID))
	for _, p := range places {
		key = binary.AppendUvarint(key, p.ID)
	}
	id, ok := t.byPath[string(key)]
	if !ok {
		id = uint64(len(t.byPath) + 1)
		t.byPath[string(key)] = id
		t.yield(&record.Stack{ID: id, Process: g.process, Frames: places})
	}
	return id
}

// ofRecorder reports whether a frame is of what PyTorch does to take a stack.
func ofRecorder(name string) bool {
	return slices.ContainsFunc([]string{"torch::unwind::", "torch::CapturedTraceback::", "torch::cuda::(anonymous namespace)::gather", "c10::cuda::CUDACachingAllocator::"}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

func (t *teller) frame(v value) *record.Place {
	if p, ok := t.byDict[v.n]; ok && v.kind == dict {
		return p
	}
	x := frame{t.string(t.get(v, "name")), t.string(t.get(v, "filename")), int(min(t.get(v, "line").number(), 1<<31-1))}
	if !python(x.file) {
		x.name = plain(x.name)
	}
	p := t.place(x)
	if v.kind == dict {
		t.byDict[v.n] = p
	}
	return p
}

// place returns the place of a frame. Frames of Python have a file and no address.
func (t *teller) place(f frame) *record.Place {
	if p, ok := t.places[f]; ok {
		return p
	}
	id := uint64(len(t.places) + 1)
	l := &snapshot.Location{Lines: []snapshot.Line{{Function: cmp.Or(f.name, "?"), File: f.file, Line: f.line}}}
	switch {
	case strings.HasPrefix(f.name, snapshot.Annotation), strings.HasPrefix(f.name, snapshot.Compiled):
		l.Lines[0].File = "" // which makes it none of Python's
	case f.name == snapshot.BeforeHistory:
		l.Address, l.Mapping = id, t.mapping("libtorch.so")
	case !python(f.file):
		l.Address = id
		if f.file == "??" {
			l.Lines[0].File = ""
		} else if strings.Contains(f.file, ".so") {
			l.Lines[0].File, l.Mapping = "", t.mapping(f.file)
			break
		}
		for _, prefix := range []string{"c10::", "at::", "torch::", "THP", "caffe2::"} {
			if strings.HasPrefix(f.name, prefix) {
				l.Mapping = t.mapping("libtorch.so")
			}
		}
	}
	p := record.NewPlace(id, l.Address, l, nil)
	t.places[f] = p
	return p
}

// mapping returns the mapping of a library. Its addresses are made up: a snapshot has none.
func (t *teller) mapping(path string) *snapshot.Mapping {
	m := t.mapped[path]
	if m == nil {
		m = &snapshot.Mapping{Start: 1, Limit: 1 << 62, Path: path}
		t.mapped[path] = m
	}
	return m
}

// python reports whether a file is of Python's code.
func python(file string) bool {
	return strings.HasSuffix(file, ".py") || strings.HasPrefix(file, "<")
}

// plain returns the name of a C++ function without what it returns and takes, as the names of a trace
// are: PyTorch's recorder writes "T ns::f<int>(int)".
func plain(name string) string {
	const anonymous = "(anonymous namespace)"
	depth, from := 0, 0
	for i := 0; i < len(name); i++ {
		switch name[i] {
		case '<':
			depth++
		case '>':
			depth = max(depth-1, 0)
		case ' ':
			if depth == 0 {
				from = i + 1
			}
		case '(':
			if strings.HasPrefix(name[i:], anonymous) {
				i += len(anonymous) - 1
			} else if depth == 0 && i > from {
				return name[from:i]
			}
		}
		if strings.HasPrefix(name[i:], "operator") { // it may have any of these in its name
			return name
		}
	}
	return name
}
