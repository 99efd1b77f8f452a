package state

import (
	"iter"
	"path"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// Names of the parts of an account. Those in brackets are synthetic frames in
// profiles, and rows in tables.
const (
	LineAllocations = "allocations"
	LineRounding    = "[driver rounding]"
	LineBefore      = "[allocated before attach]"
	LineRemainder   = "[cuda context and driver]"
	LineUnknown     = "[cause not known]"
)

// driverLines are the names of memory that the kernel driver handed out, in the
// order of an account.
var driverLines = []struct {
	kind event.Kind
	name string
}{
	{event.KindPool, "[pool]"},
	{event.KindContext, "[context]"},
	{event.KindCode, "[code]"},
	{event.KindLocal, "[local memory]"},
	{event.KindStream, "[stream]"},
	{event.KindEvent, "[event]"},
	{event.KindGraphExec, "[graph]"},
	{event.KindShared, "[shared, its owner gone]"},
	{event.KindVideo, "[video]"},
	{event.KindGraphics, "[graphics]"},
	{event.KindOpenCL, "[opencl]"},
	{event.KindOther, "[other]"},
	{event.KindDriver, LineUnknown},
	{event.KindSystem, "[driver's system memory]"},
}

// driverLine returns the name of memory of a kind that the kernel driver handed out.
func driverLine(kind event.Kind) string {
	for _, l := range driverLines {
		if l.kind == kind {
			return l.name
		}
	}
	return kind.String() // backing, which has no line of its own
}

// A part is memory of one kind that a process holds on one GPU.
type part struct {
	id   event.Process
	gpu  string
	kind event.Kind
}

type amount struct{ inuse, peak int64 }

func (a *amount) plus(b amount) {
	a.inuse += b.inuse
	a.peak += b.peak
}

// driver adds to out what the kernel driver handed out: a sample for each call site
// whose memory is for the driver itself, one for what is left of the memory that
// allocations lie in, and an account of each process on each GPU.
func (b *builder) driver(out *snapshot.Snapshot) {
	kinds := make([]event.Kind, len(b.view.physical))
	for i := range b.view.physical {
		x := &b.view.physical[i]
		s, kind := b.taken(x)
		kinds[i] = kind
		if apart(kind) {
			out.Samples = b.merge(out.Samples, x.Proc, s)
		}
	}
	for s := range b.view.settlements(b.splits, func(i int) event.Kind { return kinds[i] }) {
		a := &s.account
		labels := snapshot.Labels{Kind: event.KindDriver.String(), GPU: a.GPU, Owner: ownerDriver, Process: a.Process, PID: a.PID}
		for _, r := range s.rest {
			if r.amount != (amount{}) {
				out.Samples = append(out.Samples, snapshot.Sample{Stack: []*snapshot.Location{synthetic(r.name)}, Labels: labels,
					Values: snapshot.Values{InuseBytes: r.inuse, PeakBytes: r.peak}})
			}
		}
		if s.holds {
			out.Accounts = append(out.Accounts, *a)
		}
	}
}

// ownerDriver is the owner of what no call site has.
const ownerDriver = "cuda"

// apart tells whether what the kernel driver handed out for a kind of memory is shown
// for itself: of what allocations lie in, what is left beside them is.
func apart(kind event.Kind) bool { return kind != event.KindBacking && kind != event.KindPool }

// A settlement is what a process holds on a GPU.
type settlement struct {
	id      event.Process
	account snapshot.Account
	holds   bool // account shows something
	rest    []remainder
}

// settlements yields those of the view, in order. kind tells what the memory of one of
// v.physical is for.
func (v *View) settlements(splits []*split, kind func(i int) event.Kind) iter.Seq[settlement] {
	parts := map[part]*amount{}
	of := func(id event.Process, gpu string, kind event.Kind) *amount {
		key := part{id, gpu, kind}
		if parts[key] == nil {
			parts[key] = &amount{}
		}
		return parts[key]
	}
	for i := range v.sites {
		x := &v.sites[i]
		kind := event.KindDevice
		if x.Kind == event.KindAsync {
			kind = event.KindAsync
		}
		if x.Kind.Class() != event.ClassDevice {
			continue
		}
		of(x.Proc, x.gpu, kind).plus(amount{x.InuseBytes, x.PeakBytes})
		if x.pool && !v.partial {
			of(x.Proc, x.gpu, event.KindTensor).plus(x.handed)
			of(x.Proc, x.gpu, event.KindCached).plus(amount{x.InuseBytes - x.handed.inuse, x.PeakBytes - x.handed.peak})
		}
	}
	for i := range v.outside {
		x := &v.outside[i]
		of(x.id, x.gpu, event.KindNone).plus(x.amount)
	}
	for i := range v.physical {
		x := &v.physical[i]
		of(x.Proc, x.gpu, kind(i)).plus(amount{x.InuseBytes, x.PeakBytes})
	}
	return func(yield func(settlement) bool) {
		for i := range v.presences {
			h := &v.presences[i]
			a := snapshot.Account{PID: int(h.id.PID), Process: v.names[h.id], GPU: h.gpu,
				Driver: h.figure.Total, DriverKnown: h.figure.Known, Difference: h.figure.Differs, Compared: h.figure.Compared, Inferred: h.figure.Inferred && (h.late || !h.seen)}
			rest := v.balance(splits, h, &a, func(kind event.Kind) amount { return *of(h.id, h.gpu, kind) })
			if !yield(settlement{h.id, a, h.account, rest}) {
				return
			}
		}
	}
}

// A face is what tells a sample of the kernel driver's memory from others. Objects
// that one call of the program brought differ only in libcuda's own frames.
type face struct {
	id     event.Process
	labels snapshot.Labels
	path   int
}

// A step is one frame more of a stack.
type step struct {
	path  int // of the frames before it
	frame *snapshot.Location
}

// merge adds a sample of a process to all, or to the one of all that shows the same.
func (b *builder) merge(all []snapshot.Sample, id event.Process, s snapshot.Sample) []snapshot.Sample {
	key := face{id: id, labels: s.Labels}
	for _, frame := range s.Stack {
		next := step{key.path, frame}
		if b.paths[next] == 0 {
			b.paths[next] = len(b.paths) + 1
		}
		key.path = b.paths[next]
	}
	if i, ok := b.faces[key]; ok {
		all[i].Values.Add(&s.Values)
		return all
	}
	b.faces[key] = len(all)
	return append(all, s)
}

// A remainder is a part of an account without a call site.
type remainder struct {
	name string
	amount
}

// balance fills in the total and the lines of an account, and returns those that no
// call site has. of returns what the process holds of a kind on the GPU.
func (v *View) balance(splits []*split, h *presence, a *snapshot.Account, of func(event.Kind) amount) (rest []remainder) {
	plain, async := of(event.KindDevice), of(event.KindAsync)
	tracked := plain.inuse + async.inuse
	line := func(name string, bytes int64, note string) {
		if bytes != 0 || name == LineAllocations {
			a.Lines = append(a.Lines, snapshot.AccountLine{Name: name, Bytes: bytes, Note: note})
		}
		a.Total += bytes
	}
	handed, cached, within := of(event.KindTensor).inuse, of(event.KindCached).inuse, of(event.KindNone).inuse
	line(LineTensors, handed, "")
	line(LineCached, cached, "")
	var older int64 // memory from before the trace in lines so far
	if s := splitOf(splits, owned{h.id, h.gpu}); s != nil {
		line(LineTensors, s.told.InuseBytes, "")
		for _, l := range s.lines {
			line(l.name, l.InuseBytes, "")
		}
		handed, older = s.pools.inuse, s.older.inuse
	}
	line(LineAllocations, tracked-handed-cached, "")
	before := func(name string, bytes int64, note string) {
		bytes -= older
		// Tensors have been made in memory from before the trace.
		bytes -= within
		line(LineTensorsInOld, within, "")
		for i := range v.allocators {
			if x := &v.allocators[i]; x.id == h.id && x.gpu == h.gpu {
				old, unused := x.old(bytes, handed+cached, within)
				line(LineOldTensors, old, "")
				line(LineOldCached, unused, "")
				rest = append(rest, remainder{LineOldTensors, amount{inuse: old}}, remainder{LineOldCached, amount{inuse: unused}})
				bytes -= old + unused
			}
		}
		if bytes < 0 {
			// Allocations whose end was not seen, or memory that the driver does not count.
			a.Difference, a.Compared = bytes, true
			bytes = 0
		}
		line(name, bytes, note)
		rest = append(rest, remainder{name, amount{inuse: bytes}})
	}
	if !h.seen {
		if a.Known = h.figure.Known; a.Known {
			name, note := LineRemainder, "the kernel driver's calls of this process are not seen: what is not tracked cannot be split"
			if h.late {
				name, note = LineBefore, "includes the CUDA context, whose size is not known"
			}
			before(name, h.figure.Before, note)
		}
		return rest
	}
	backing, pool := of(event.KindBacking), of(event.KindPool)
	rounding := amount{backing.inuse - plain.inuse, backing.peak - plain.peak}
	unused := amount{pool.inuse - async.inuse, pool.peak - async.peak}
	var left int64 // from before
	a.Known = !h.late || h.figure.Known
	if h.late {
		// Allocations may lie in memory from before the trace.
		if h.figure.Known {
			left = h.figure.Before + min(rounding.inuse, 0) + min(unused.inuse, 0)
		}
		rounding, unused = amount{max(rounding.inuse, 0), max(rounding.peak, 0)}, amount{max(unused.inuse, 0), max(unused.peak, 0)}
	}
	line(LineRounding, rounding.inuse, "")
	rest = append(rest, remainder{LineRounding, rounding})
	for _, l := range driverLines {
		switch l.kind {
		case event.KindSystem: // of no GPU
		case event.KindPool:
			line(l.name, unused.inuse, "")
			rest = append(rest, remainder{l.name, unused})
		default:
			line(l.name, of(l.kind).inuse, "")
		}
	}
	if h.late {
		before(LineBefore, left, "includes the CUDA context as it was at attach")
		return rest
	}
	line(LineTensorsElsewhere, within, "")
	line(LineElsewhere, -within, "")
	elsewhere := of(event.KindNone)
	rest = append(rest, remainder{LineElsewhere, amount{-elsewhere.inuse, -elsewhere.peak}})
	return rest
}

// taken returns the sample of a call site of the physical layer, and what its memory
// is for. Where no probed function tells that, the stack does: libcuda's function
// that the program called.
func (b *builder) taken(x *site) (snapshot.Sample, event.Kind) {
	shape := b.shape(x.Stack, x.Kind, x.frames)
	kind, api, frames := x.Kind, b.view.trace.API(x.API), shape.frames
	if inner, function := below(x.frames); function != "" {
		if api == "" {
			api = function
		}
		if kind == event.KindDriver {
			kind = physical.Cause(function)
		}
		outer := make([]*snapshot.Location, 0, len(x.frames))
		for _, place := range x.frames[inner:] {
			outer = append(outer, b.one(place.Location()))
		}
		frames = stacks.Fold(b.view.want.Native, outer)
	}
	stack := []*snapshot.Location{b.leaf(driverLine(kind))}
	if x.Synthetic {
		stack = append(stack, b.leaf(unsited))
	}
	if api != "" && (len(frames) == 0 || called(frames[0]) != api) {
		stack = append(stack, b.leaf(api))
	}
	s := snapshot.Sample{
		Stack:  append(stack, frames...),
		Labels: b.labels(x, kind, api, shape),
		Values: x.values(),
	}
	return s, kind
}

// below returns how many frames of a stack, which begins where a library calls the
// kernel driver, are that library's own, and the function of it that was called from
// elsewhere. Where that has no name, because another library of NVIDIA's driver called
// it by an address, it is that library's name; else the name of the caller, if any.
func below(frames []*record.Place) (n int, function string) {
	for i, place := range frames {
		l := place.Location()
		file := library(place)
		switch {
		case file != "" && file == library(frames[0]):
			n, function = i+1, called(l)
			if function == "" && vendor(file) {
				function = file
			}
		case vendor(file) && (function == "" || vendor(function)):
			n, function = i+1, file
		case i > 0 && function == "":
			return n, called(l)
		default:
			return n, function
		}
	}
	return n, function
}

// library returns the name of the library that a place is in, such as libcuda, "" for
// none.
func library(place *record.Place) string {
	m := place.Location().Mapping
	if m == nil {
		return ""
	}
	name, _, _ := strings.Cut(path.Base(m.Path), ".so")
	return name
}

// vendor tells whether a library is one of NVIDIA's driver besides libcuda.
func vendor(library string) bool {
	return strings.HasPrefix(library, "libnv") || strings.HasSuffix(library, "_nvidia")
}

// called returns the function that was called where l is, "" if it has no name. What
// is inlined there was not.
func called(l *snapshot.Location) string {
	if last := len(l.Lines) - 1; last >= 0 && l.Lines[last].Reason == "" {
		return l.Lines[last].Function
	}
	return ""
}
