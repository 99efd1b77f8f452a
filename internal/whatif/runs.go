// Package whatif says how a recorded run of PyTorch would have gone under other settings
// of its caching allocator, and at another batch size (Fit). It collects what the run asked
// of the allocator, shows that the allocator of package allocator reproduces the run, and
// only then predicts.
package whatif

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
	"github.com/gpumemtrace/gpumemtrace/internal/whatif/allocator"
)

// unit is the size of what allocator.Request counts, in bytes.
const unit = 512

// MaxTensors bounds the tensors of a recording that are followed, each of which is made and
// freed.
const MaxTensors = 100 << 20

// A Run is what one process asked of PyTorch's allocator on one GPU.
type Run struct {
	allocator.Run
	Process event.Process
	Name    string // comm
	Device  int32  // CUDA ordinal inside the process
	// Partial says why nothing can be predicted, "" if the run is whole.
	Partial string
	// Refused are the requests that CUDA refused at first.
	Refused []Refusal
	// Lacked are the requests that PyTorch gave up.
	Lacked []Refusal
	// Sites are the stacks of Stacks.
	Sites []Site
	// GPU is the label of the GPU, "" if not known, and Memory what it has, in bytes, 0 if
	// not known.
	GPU    string
	Memory uint64
	// Beside is what the process held on the GPU beside what PyTorch reserved, in bytes, 0
	// before SetBeside.
	Beside uint64

	// Settings are its own, as PYTORCH_CUDA_ALLOC_CONF, "" if not known.
	Settings string

	// Times are those of Requests, in ticks since the trace began.
	Times []uint32

	live    map[uint64]uint32 // the tensor at an address
	streams []uint64          // that tensors are on, by their numbers in Streams

	poolIDs []pool // that tensors were asked for, the first of which has number 1
	// captured are tensors that other threads made while a graph was captured.
	captured []uint32
}

// tick is the unit of Run.Times in nanoseconds: with it they reach five days.
const tick = 100_000

// ask adds a request, and what PyTorch held after it, in units.
func (x *Run) ask(q allocator.Request, held uint32, time uint64) {
	x.Requests = append(x.Requests, q)
	x.Reserved = append(x.Reserved, held)
	x.Times = append(x.Times, uint32(min(time/tick, math.MaxUint32)))
}

// A Refusal is a request for which there was no memory.
type Refusal struct {
	Request  int    // index into Requests
	Wanted   uint64 // bytes
	Reserved uint64 // what the allocator held then, in bytes
	// Own: a limit of the program's own was in the way, and not the memory of the GPU.
	Own bool
}

// A Site is a call stack at which tensors were made.
type Site struct {
	// Key is equal for one stack in two runs, whatever the numbers of its lines: a hash, for
	// stacks may be long.
	Key  string
	Text string // a line that names it
	// Workspace: cuDNN's, for a convolution.
	Workspace bool
	// SumWorkspace: of one of PyTorch's sums, and SumResult: its result.
	SumWorkspace, SumResult bool
	// CuDNN: cuDNN asked for it, or PyTorch for cuDNN. Recurrent: it is of a recurrent layer. Backward:
	// autograd's engine asked for it.
	CuDNN, Recurrent, Backward bool
}

// A pool is the MempoolId_t of a private pool of PyTorch's, of a graph or of torch.cuda.MemPool.
type pool struct{ first, second uint64 }

// A poolWindow is open while a thread's requests are for a private pool: see package tensors.
type poolWindow struct {
	pool
	device int32
	thread uint32
}

// maxPools bounds the private pools of a run that are told apart.
const maxPools = math.MaxUint8

type runKey struct {
	process event.Process
	device  int32
}

type stackKey struct {
	process event.Process
	id      uint64
}

// A size is how many requests and tensors a run has, but for those that follow from others.
type size struct{ requests, tensors int }

type collector struct {
	pid      int // of the process that is collected, 0 for all
	sizes    map[runKey]size
	begin    uint64 // when the trace began, as events have it
	runs     map[runKey]*Run
	order    []*Run
	names    map[event.Process]string
	settings map[event.Process]string
	gpus     map[runKey]record.Device
	listed   []record.Device                     // by any reading: one, or two for several
	refused  map[event.Process]map[uint32]uint64 // by thread: the size of a call that failed
	windows  map[event.Process][]poolWindow      // by age
	pending  []event.Event                       // not yet in order
	full     int                                 // how many of these there may be
	stacks   map[stackKey]uint32                 // index into sites, of all runs
	sites    []*record.Stack
}

// Collect reads the runs of a recording.
func Collect(file string) ([]*Run, error) { return collect(file, 0, 2*MaxTensors) }

// collect reads the runs of a process, or of all for 0, which may have so many requests in all.
// It reads the recording twice, so that what it stores of a long one has its size from the
// beginning.
func collect(file string, pid, most int) ([]*Run, error) {
	sizes, requests := map[runKey]size{}, 0
	err := read(file, func(rec record.Record) error {
		if e, ok := rec.(*event.Event); ok && (e.Op == event.OpTensorAlloc || e.Op == event.OpTensorFree) && (pid == 0 || int(e.Proc.PID) == pid) {
			if requests++; requests > most {
				return fmt.Errorf("%w: more than %d tensors made and freed", ErrTooLong, most)
			}
			n := sizes[runKey{e.Proc, e.Device}]
			n.requests++
			if e.Op == event.OpTensorAlloc {
				n.tensors++
			}
			sizes[runKey{e.Proc, e.Device}] = n
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	c := &collector{pid: pid, sizes: sizes, runs: map[runKey]*Run{}, names: map[event.Process]string{}, settings: map[event.Process]string{}, gpus: map[runKey]record.Device{}, refused: map[event.Process]map[uint32]uint64{}, windows: map[event.Process][]poolWindow{}, stacks: map[stackKey]uint32{}, sites: []*record.Stack{nil}}
	if err := read(file, c.add); err != nil {
		return nil, err
	}
	c.flush(math.MaxUint64)
	sites := c.name()
	for _, x := range c.order {
		x.live, x.Sites = nil, sites
		for _, t := range x.captured {
			if !sites[x.Stacks[t]].Backward {
				x.Pools[t] = 0
			}
		}
		x.Exact = len(x.Streams) == len(x.Addresses)
		d, ok := c.gpus[runKey{x.Process, x.Device}]
		if !ok && len(c.listed) == 1 {
			d = c.listed[0]
		}
		x.GPU, x.Memory = d.Label, uint64(max(d.Total, 0))
	}
	return c.order, nil
}

// read calls f with each record of a file.
func read(file string, f func(record.Record) error) (err error) {
	r, err := record.Open(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f(rec)
		}
		if t, ok := rec.(*record.Tensors); ok && t.Window.Length > 0 {
			err = ErrWindows
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
	}
}

// ErrTooLong says that a recording has more than may be repeated.
var ErrTooLong = errors.New("the run is too long to repeat")

// ErrWindows says that most tensors of a run were not seen.
var ErrWindows = errors.New("it lacks the tensors between windows (--tensors-window), so the run cannot be repeated: record with --tensors")

// window is by how many nanoseconds events may be out of order.
const window = 50_000_000

func (c *collector) add(rec record.Record) error {
	switch r := rec.(type) {
	case *record.Trace:
		c.begin = uint64(max(r.Start.Sub(r.Boot), 0))
	case *event.Event:
		if c.pid != 0 && int(r.Proc.PID) != c.pid {
			break
		}
		c.pending = append(c.pending, *r)
		if len(c.pending) >= max(c.full, 1<<14) {
			c.flush(r.Time - min(r.Time, window))
			c.full = 2 * len(c.pending) // so that each event is sorted a few times only
		}
	case *record.Process:
		if r.Name != "" {
			c.names[r.Process] = r.Name
		}
	case *record.Allocator:
		c.settings[r.Process] = r.Settings
	case *record.Stack:
		c.sites[c.site(r.Process, r.ID)] = r
	case *record.Name:
		r.Apply()
	case *record.Reading:
		c.reading(r)
	case *record.Cut:
		for _, x := range c.order {
			x.Partial = "the recording lost a part of the run"
		}
	}
	return nil
}

// site returns the index of a stack, which may come later than its first event.
func (c *collector) site(process event.Process, id uint64) uint32 {
	if id == 0 {
		return 0
	}
	k := stackKey{process, id}
	n, ok := c.stacks[k]
	if !ok {
		n = uint32(len(c.sites))
		c.stacks[k] = n
		c.sites = append(c.sites, nil)
	}
	return n
}

// convolution begins the names of PyTorch's functions that have cuDNN do a convolution into tensors
// that are there already. What they ask for is its workspace.
const convolution = "at::native::raw_cudnn_convolution_"

// native begins the names of PyTorch's own functions. recurrent are those of layers such as an LSTM, and
// recurrentFile has their modules.
const native, recurrentFile = "at::native::", "torch/nn/modules/rnn.py"

var recurrent = []string{"_thnn_fused_", "lstm", "gru", "rnn_"}

// name returns the sites when all names are known.
func (c *collector) name() []Site {
	out := make([]Site, len(c.sites))
	for i, st := range c.sites {
		if st == nil {
			out[i] = Site{Key: "?", Text: "[no stack]"}
			continue
		}
		key := sha256.New()
		var is Site
		stack := make([]*snapshot.Location, len(st.Frames))
		for j, f := range st.Frames {
			stack[j] = f.Location()
			for k := range stack[j].Lines {
				l := &stack[j].Lines[k]
				key.Write([]byte(l.Function + " " + path.Base(l.File) + "\n"))
				is.Workspace = is.Workspace || strings.HasPrefix(l.Function, convolution)
				is.SumWorkspace = is.SumWorkspace || strings.HasPrefix(l.Function, reduction)
				is.SumResult = is.SumResult || strings.HasPrefix(l.Function, resized)
				is.CuDNN = is.CuDNN || strings.HasPrefix(l.Function, native) && strings.Contains(l.Function, "cudnn")
				is.Recurrent = is.Recurrent || strings.HasSuffix(l.File, recurrentFile) || slices.ContainsFunc(recurrent, func(f string) bool { return strings.HasPrefix(l.Function, native+f) })
			}
		}
		if len(stack) > 1 && stack[0].Lines[0].Reason != "" {
			stack = stack[1:] // PyTorch's reporting function, where it has no name
		}
		is.Key, is.Text = string(key.Sum(nil)), render.Brief(stack, 3)
		is.Backward = stacks.Backward(stack)
		out[i] = is
	}
	return out
}

// reading learns which GPU each process uses, and what it has.
func (c *collector) reading(r *record.Reading) {
	for _, d := range r.Devices {
		d.Processes = nil
		i := slices.IndexFunc(c.listed, func(o record.Device) bool { return o.UUID == d.UUID })
		switch {
		case i >= 0 && d.MemoryKnown:
			c.listed[i] = d
		case i < 0 && len(c.listed) < 2:
			c.listed = append(c.listed, d)
		}
	}
	for _, o := range r.Ordinals {
		k := runKey{o.Process, o.Ordinal}
		if _, ok := c.sizes[k]; ok && o.Device < len(r.Devices) && (r.Devices[o.Device].MemoryKnown || c.gpus[k].Label == "") {
			d := r.Devices[o.Device]
			d.Processes = nil
			c.gpus[k] = d
		}
	}
}

// SetBeside learns what the process holds beside what PyTorch reserved, from a snapshot of
// the recording: what it holds in all on the run's GPU, without the segments.
func (x *Run) SetBeside(s *snapshot.Snapshot) {
	var of []*snapshot.Account
	for i := range s.Accounts {
		if a := &s.Accounts[i]; a.PID == int(x.Process.PID) && a.Known && (x.GPU == "" || a.GPU == x.GPU) {
			of = append(of, a)
		}
	}
	if len(of) != 1 {
		return
	}
	beside := of[0].Total
	for i := range s.Allocators {
		if a := &s.Allocators[i]; a.PID == of[0].PID && a.GPU == of[0].GPU {
			beside -= a.Total().Reserved
		}
	}
	x.Beside = uint64(max(beside, 0))
}

// title says what ran on which GPU, as the other pages do.
func (x *Run) title(process string) string {
	if x.GPU == "" {
		return fmt.Sprintf("%s on CUDA device %d", process, x.Device)
	}
	return process + " on GPU " + x.GPU
}

// flush applies the events up to a time, in order.
func (c *collector) flush(to uint64) {
	sorting.Stable(c.pending, func(a, b event.Event) int { return cmp.Compare(a.Time, b.Time) })
	n := 0
	for n < len(c.pending) && c.pending[n].Time <= to {
		c.apply(&c.pending[n])
		n++
	}
	c.pending = slices.Delete(c.pending, 0, n)
}

func (c *collector) run(e *event.Event) *Run {
	k := runKey{e.Proc, e.Device}
	x := c.runs[k]
	if x == nil {
		n := c.sizes[k]
		n.requests, n.tensors = min(n.requests+n.requests/64, 2*MaxTensors), min(n.tensors+n.tensors/64, MaxTensors)
		x = &Run{Process: e.Proc, Name: c.names[e.Proc], Settings: c.settings[e.Proc], Device: e.Device, live: map[uint64]uint32{}, Times: make([]uint32, 0, n.requests)}
		x.Stacks = make([]uint32, 0, n.tensors)
		x.Requests, x.Reserved, x.Addresses = make([]allocator.Request, 0, n.requests), make([]uint32, 0, n.requests), make([]uint64, 0, n.tensors)
		c.runs[k] = x
		c.order = append(c.order, x)
	}
	return x
}

func (c *collector) apply(e *event.Event) {
	if e.Time == c.begin && c.begin > 0 {
		c.held(e)
		return
	}
	switch e.Op {
	case event.OpTensorAlloc, event.OpTensorFree:
		c.tensor(e)
	case event.OpPrivatePoolBegin, event.OpPrivatePoolEnd:
		c.window(e)
	case event.OpOutOfMemory:
		c.lacked(e)
	case event.OpAlloc, event.OpHandleCreate:
		if e.Result == event.OutOfMemory {
			keyed.Map(c.refused, e.Proc)[e.TID] = e.Size
		}
	}
}

// held adds what was there before the trace, and is known exactly: see record.Trace.Start.
func (c *collector) held(e *event.Event) {
	switch e.Op {
	case event.OpPrivatePoolBegin, event.OpPrivatePoolEnd:
		c.window(e)
	case event.OpHandleCreate:
		c.run(e).Partial = "it had expandable segments before the recording began, whose addresses are not known"
	case event.OpAlloc:
		if e.Kind == event.KindDevice {
			x := c.run(e)
			x.Held = append(x.Held, allocator.Held{Address: e.Addr, Size: e.Size, Stream: x.stream(e.Stream)})
		}
	case event.OpPrivatePoolMemory: // which the last segment is
		if x := c.run(e); len(x.Held) > 0 {
			x.Held[len(x.Held)-1].Private = x.privatePool(pool{e.Handle, e.Part})
		}
	case event.OpTensorAlloc:
		x := c.run(e)
		n := x.tensor(c, e)
		i, found := slices.BinarySearchFunc(x.Held, e.Addr, func(h allocator.Held, at uint64) int { return cmp.Compare(h.Address, at) })
		if !found {
			i--
		}
		if i < 0 || e.Addr-x.Held[i].Address >= x.Held[i].Size || e.Size > x.Held[i].Size-(e.Addr-x.Held[i].Address) {
			x.Partial = "there were tensors outside of its segments before the recording began"
			return
		}
		h := &x.Held[i]
		if k := len(h.Blocks); k > 0 && h.Blocks[k-1].Address+h.Blocks[k-1].Size > e.Addr {
			x.Partial = "tensors lay over each other before the recording began"
			return
		}
		h.Blocks = append(h.Blocks, allocator.HeldBlock{Address: e.Addr, Size: e.Size, Tensor: n})
	}
}

// tensor gives a tensor the next number.
func (x *Run) tensor(c *collector, e *event.Event) uint32 {
	n := uint32(len(x.Addresses))
	x.Addresses = append(x.Addresses, e.Addr)
	x.Stacks = append(x.Stacks, c.site(e.Proc, e.Stack))
	if e.Asked > 0 {
		x.Streams = append(x.Streams, x.stream(e.Stream))
	}
	c.private(x, n, e.TID)
	x.live[e.Addr] = n
	return n
}

// maxStreams bounds the streams of a run that are told apart.
const maxStreams = math.MaxUint8

// stream returns the number of a stream, 0 if there are too many.
func (x *Run) stream(id uint64) uint8 {
	return uint8(max(numberOf(x, &x.streams, id, maxStreams, "streams"), 0))
}

// numberOf returns the index of an id, which it adds if it is new, or -1 if there are too many.
func numberOf[T comparable](x *Run, all *[]T, id T, most int, what string) int {
	i := slices.Index(*all, id)
	if i >= 0 {
		return i
	}
	if i = len(*all); i == most {
		x.Partial = fmt.Sprintf("it has more than %d %s", most, what)
		return -1
	}
	*all = append(*all, id)
	return i
}

// window follows when requests are for a private pool.
func (c *collector) window(e *event.Event) {
	is := pool{e.Handle, e.Part}
	all := slices.DeleteFunc(c.windows[e.Proc], func(w poolWindow) bool { return w.pool == is && w.device == e.Device })
	if e.Op == event.OpPrivatePoolBegin && len(all) < maxPools {
		all = append(all, poolWindow{is, e.Device, e.TID})
	}
	c.windows[e.Proc] = all
}

// private notes the private pool that a thread's request for a tensor is for. What autograd's own thread asks
// for while a graph is captured is captured, too.
func (c *collector) private(x *Run, tensor, thread uint32) {
	var of pool
	own := false
	for _, w := range slices.Backward(c.windows[x.Process]) {
		if own = w.device == x.Device && w.thread == thread; own || w.device == x.Device && w.first > 0 { // a graph's
			of = w.pool
		}
		if own {
			break
		}
	}
	if of != (pool{}) {
		x.Pools = append(x.Pools, make([]uint8, int(tensor)+1-len(x.Pools))...)
		x.Pools[tensor] = x.privatePool(of)
		if !own {
			x.captured = append(x.captured, tensor)
		}
	}
}

// privatePool returns the number of a private pool, 0 if there are too many.
func (x *Run) privatePool(id pool) uint8 {
	return uint8(numberOf(x, &x.poolIDs, id, maxPools, "private pools") + 1)
}

// lacked adds a request that PyTorch gave up, as a tensor that is freed at once.
func (c *collector) lacked(e *event.Event) {
	_, refused := c.refused[e.Proc][e.TID]
	delete(c.refused[e.Proc], e.TID)
	x := c.runs[runKey{e.Proc, e.Device}]
	if x == nil {
		return
	}
	held := uint32(0)
	if n := len(x.Reserved); n > 0 {
		held = x.Reserved[n-1]
	}
	if e.Part != event.NoTotal {
		held = uint32(e.Part / unit)
	}
	x.Lacked = append(x.Lacked, Refusal{Request: len(x.Requests), Wanted: e.Size, Reserved: uint64(held) * unit, Own: !refused})
	one := *e
	one.Asked = one.Size
	n := x.tensor(c, &one)
	delete(x.live, 0)
	units := uint32((e.Size + unit - 1) / unit)
	time := e.Time - min(e.Time, c.begin)
	x.ask(allocator.Request{Op: allocator.Make, Tensor: n, Units: units, Flags: allocator.Lacked}, held, time)
	x.ask(allocator.Request{Op: allocator.Free, Tensor: n}, held, time)
}

func (c *collector) tensor(e *event.Event) {
	x, time, held := c.run(e), e.Time-min(e.Time, c.begin), uint32(0)
	if e.Part != event.NoTotal {
		held = uint32(e.Part / unit)
	}
	before := uint64(0)
	if n := len(x.Reserved); n > 0 {
		before = uint64(x.Reserved[n-1]) * unit
	}
	size, failed := uint64(0), false
	if e.Op == event.OpTensorAlloc {
		if size, failed = c.refused[e.Proc][e.TID]; failed {
			delete(c.refused[e.Proc], e.TID)
		}
	}
	if !failed && e.Part != event.NoTotal && e.Part < before {
		x.ask(allocator.Request{Op: allocator.Empty}, held, time)
	}
	if e.Op == event.OpTensorAlloc {
		if len(x.Addresses) == 0 && e.Handle != e.Size {
			x.Partial = "there were tensors before the recording began"
		}
		n := x.tensor(c, e)
		q := allocator.Request{Op: allocator.Make, Tensor: n, Units: uint32((cmp.Or(e.Asked, e.Size) + unit - 1) / unit)}
		if failed {
			q.Flags = allocator.Refused
		}
		x.ask(q, held, time)
		if failed {
			x.Refused = append(x.Refused, Refusal{Request: len(x.Requests) - 1, Wanted: size, Reserved: before})
		}
	} else {
		n, ok := x.live[e.Addr]
		if !ok {
			x.Partial = "tensors were made that were not seen"
			return
		}
		delete(x.live, e.Addr)
		x.ask(allocator.Request{Op: allocator.Free, Tensor: n}, held, time)
	}
}
