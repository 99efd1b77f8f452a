package state

import (
	"iter"
	"path"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
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
	LineUnderWay    = "[calls under way]"
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

// An accountPart is memory of one kind that a process holds on one GPU.
type accountPart struct {
	id   event.Process
	gpu  string
	kind event.Kind
}

// kindUnderWay is the kind in parts of accounts of what calls took that have not returned.
const kindUnderWay = event.NumKinds

type amount struct{ inuse, peak int64 }

func (a *amount) add(b amount) { a.inuse, a.peak = a.inuse+b.inuse, a.peak+b.peak }

func (a *amount) subtract(b amount) { a.inuse, a.peak = a.inuse-b.inuse, a.peak-b.peak }

// addDriverMemory adds the memory that the kernel driver handed out: a sample of each call
// site whose memory is for the driver itself, one of the memory around allocations, and an
// account of each process on each GPU.
func (b *builder) addDriverMemory(out *snapshot.Snapshot) {
	kinds := make([]event.Kind, len(b.view.physical))
	for i := range b.view.physical {
		x := &b.view.physical[i]
		s, kind := b.physicalSample(x)
		kinds[i] = kind
		if hasOwnSample(kind) {
			out.Samples = b.merge(out.Samples, x.Proc, s)
		} else if x.underWay != 0 {
			s.Kind, s.Owner, s.Values = event.KindDriver.String(), ownerDriver, snapshot.Values{InuseBytes: x.underWay}
			s.Stack[0] = b.leaf(LineUnderWay)
			out.Samples = b.merge(out.Samples, x.Proc, s)
		}
	}
	for s := range b.view.processAccounts(func(i int) event.Kind { return kinds[i] }) {
		a := &s.account
		labels := snapshot.Labels{Kind: event.KindDriver.String(), GPU: a.GPU, Process: a.Process, PID: a.PID, Who: b.view.whos[s.id]}
		for _, r := range s.rest {
			if r.amount != (amount{}) {
				labels.Owner = ownerDriver
				if r.name == LineOldTensors || r.name == LineOldCached {
					labels.Owner = ownerAllocator
				}
				out.Samples = append(out.Samples, snapshot.Sample{Stack: []*snapshot.Location{synthetic(r.name)}, Labels: labels,
					Values: snapshot.Values{InuseBytes: r.inuse, PeakBytes: r.peak}})
			}
		}
		if s.shown {
			out.Accounts = append(out.Accounts, *a)
		}
	}
}

// ownerDriver is the owner of memory without a call site, but for that of PyTorch's allocator.
const (
	ownerDriver    = "cuda"
	ownerAllocator = "pytorch"
)

// ownerOf returns whose memory of a kind is that a stack asked for: a context is CUDA's, whoever makes
// CUDA need it.
func ownerOf(kind event.Kind, byStack string) string {
	if kind == event.KindContext {
		return ownerDriver
	}
	return byStack
}

// hasOwnSample reports whether memory of a kind that the kernel driver handed out has a
// sample. Memory that allocations lie in has none: the rest around them has.
func hasOwnSample(kind event.Kind) bool { return kind != event.KindBacking && kind != event.KindPool }

// A processAccount is the account of a process on a GPU.
type processAccount struct {
	id      event.Process
	account snapshot.Account
	shown   bool // account shows something
	rest    []remainder
}

// processAccounts yields those of the view, in order. kind returns the kind of memory of
// one of v.physical.
func (v *View) processAccounts(kind func(i int) event.Kind) iter.Seq[processAccount] {
	parts := map[accountPart]*amount{}
	amountOf := func(id event.Process, gpu string, kind event.Kind) *amount {
		return keyed.At(parts, accountPart{id, gpu, kind})
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
		amountOf(x.Proc, x.gpu, kind).add(amount{x.InuseBytes, x.PeakBytes})
		if x.pool {
			amountOf(x.Proc, x.gpu, event.KindTensor).add(x.handed)
			amountOf(x.Proc, x.gpu, event.KindCached).add(amount{x.InuseBytes - x.handed.inuse, x.PeakBytes - x.handed.peak})
		}
	}
	for i := range v.strays {
		x := &v.strays[i]
		amountOf(x.id, x.gpu, event.KindNone).add(x.amount)
	}
	for i := range v.physical {
		x := &v.physical[i]
		amountOf(x.Proc, x.gpu, kind(i)).add(amount{x.InuseBytes - x.underWay, x.PeakBytes})
		amountOf(x.Proc, x.gpu, kindUnderWay).add(amount{inuse: x.underWay})
	}
	return func(yield func(processAccount) bool) {
		for i := range v.presences {
			h := &v.presences[i]
			a := snapshot.Account{PID: int(h.id.PID), Process: v.names[h.id], GPU: h.gpu,
				Driver: h.figure.Total, DriverKnown: h.figure.Known, Difference: h.figure.Difference, Compared: h.figure.Compared, Inferred: h.figure.Inferred && (h.late || !h.seen)}
			b := &accountBuilder{Account: &a, view: v, at: h, amountOf: func(kind event.Kind) amount { return *amountOf(h.id, h.gpu, kind) }}
			b.fill()
			if !yield(processAccount{h.id, a, h.account, b.rest}) {
				return
			}
		}
	}
}

// A sampleKey distinguishes samples of the kernel driver's memory. Objects that one call of
// the program allocated differ only in libcuda's own frames.
type sampleKey struct {
	id     event.Process
	labels snapshot.Labels
	path   int
}

// A pathStep is one more frame of a stack.
type pathStep struct {
	before int // of the frames before it
	frame  *snapshot.Location
}

// merge adds a sample of a process to all, or to the one of all that shows the same.
func (b *builder) merge(all []snapshot.Sample, id event.Process, s snapshot.Sample) []snapshot.Sample {
	key := sampleKey{id: id, labels: s.Labels}
	for _, frame := range s.Stack {
		next := pathStep{key.path, frame}
		if b.paths[next] == 0 {
			b.paths[next] = len(b.paths) + 1
		}
		key.path = b.paths[next]
	}
	if i, ok := b.samples[key]; ok {
		all[i].Values.Add(&s.Values)
		return all
	}
	b.samples[key] = len(all)
	return append(all, s)
}

// A remainder is a part of an account without a call site.
type remainder struct {
	name string
	amount
}

// An accountBuilder fills in the total and the lines of an account.
type accountBuilder struct {
	*snapshot.Account
	view *View
	at   *presence
	// amountOf returns how much the process holds of a kind on the GPU.
	amountOf func(event.Kind) amount

	pools, within int64 // bytes: of allocators' segments, and of tensors in memory that was not seen allocated
	rest          []remainder
}

// fill makes the lines. Those without a call site are in rest, too.
func (b *accountBuilder) fill() {
	b.allocations()
	switch figure := &b.at.figure; {
	case b.at.seen:
		b.driver()
	case !figure.Known:
	case b.at.late:
		b.Known = true
		b.before(LineBefore, figure.Before, "includes the CUDA context, whose size is not known")
	default:
		b.Known = true
		b.before(LineRemainder, figure.Before, "the kernel driver's calls of this process are not seen: what is not tracked cannot be split")
	}
}

func (b *accountBuilder) line(name string, bytes int64, note string) {
	if bytes != 0 || name == LineAllocations {
		b.Lines = append(b.Lines, snapshot.AccountLine{Name: name, Bytes: bytes, Note: note})
	}
	b.Total += bytes
}

// allocations makes the lines of memory that was seen allocated.
func (b *accountBuilder) allocations() {
	handed, cached := b.amountOf(event.KindTensor).inuse, b.amountOf(event.KindCached).inuse
	b.line(LineTensors, handed, "")
	b.line(LineCached, cached, "")
	b.pools, b.within = handed+cached, b.amountOf(event.KindNone).inuse
	b.line(LineAllocations, b.amountOf(event.KindDevice).inuse+b.amountOf(event.KindAsync).inuse-b.pools, "")
}

// before makes the lines of memory that was not seen allocated. Tensors may have been made
// in it since. What is there of it now counts at the peak, too: it is older than the trace, or
// nothing shows when it came.
func (b *accountBuilder) before(name string, bytes int64, note string) {
	bytes -= b.within
	b.line(LineTensorsInOld, b.within, "")
	for i := range b.view.allocators {
		if x := &b.view.allocators[i]; x.id == b.at.id && x.gpu == b.at.gpu {
			old, unused := x.old(bytes, b.pools, b.within)
			b.line(LineOldTensors, old, "")
			b.line(LineOldCached, unused, "")
			b.rest = append(b.rest, remainder{LineOldTensors, amount{old, old}}, remainder{LineOldCached, amount{unused, unused}})
			bytes -= old + unused
		}
	}
	if bytes < 0 {
		// Allocations whose end was not seen, or memory that the driver does not count.
		b.Difference, b.Compared = bytes, true
		bytes = 0
	}
	b.line(name, bytes, note)
	b.rest = append(b.rest, remainder{name, amount{bytes, bytes}})
}

// driver makes the lines of memory that the kernel driver handed out beyond allocations.
func (b *accountBuilder) driver() {
	rounding, unused := b.amountOf(event.KindBacking), b.amountOf(event.KindPool)
	rounding.subtract(b.amountOf(event.KindDevice))
	unused.subtract(b.amountOf(event.KindAsync))
	var left int64 // from before
	late, figure := b.at.late, &b.at.figure
	b.Known = !late || figure.Known
	if late {
		// Allocations may lie in memory from before the trace.
		if figure.Known {
			left = figure.Before + min(rounding.inuse, 0) + min(unused.inuse, 0)
		}
		rounding, unused = amount{max(rounding.inuse, 0), max(rounding.peak, 0)}, amount{max(unused.inuse, 0), max(unused.peak, 0)}
	}
	b.line(LineRounding, rounding.inuse, "")
	b.line(LineUnderWay, b.amountOf(kindUnderWay).inuse, "")
	b.rest = append(b.rest, remainder{LineRounding, rounding})
	for _, l := range driverLines {
		switch l.kind {
		case event.KindSystem: // on no GPU
		case event.KindPool:
			b.line(l.name, unused.inuse, "")
			b.rest = append(b.rest, remainder{l.name, unused})
		default:
			b.line(l.name, b.amountOf(l.kind).inuse, "")
		}
	}
	if late {
		b.before(LineBefore, left, "includes the CUDA context as it was at attach")
		return
	}
	b.line(LineTensorsElsewhere, b.within, "")
	b.line(LineElsewhere, -b.within, "")
	elsewhere := b.amountOf(event.KindNone)
	b.rest = append(b.rest, remainder{LineElsewhere, amount{-elsewhere.inuse, -elsewhere.peak}})
}

// physicalSample returns the sample of a call site of the physical layer, and the kind of
// its memory. Where no probed function shows the kind, libcuda's function that the program
// called does.
func (b *builder) physicalSample(x *site) (snapshot.Sample, event.Kind) {
	shape := b.shape(x.Stack, x.Kind, x.frames)
	kind, api, frames := x.Kind, b.view.trace.API(x.API), shape.frames
	if inner, function := driverFrames(x.frames); function != "" {
		if api == "" {
			api = function
		}
		if kind == event.KindDriver {
			kind = physical.Cause(function)
		}
		outer := make([]*snapshot.Location, 0, len(x.frames))
		for _, place := range x.frames[inner:] {
			outer = append(outer, b.unique(place.Location()))
		}
		frames = stacks.Fold(b.view.want.Native, outer)
	}
	stack := []*snapshot.Location{b.leaf(driverLine(kind))}
	if x.Synthetic {
		stack = append(stack, b.leaf(unsited))
	}
	if api != "" && (len(frames) == 0 || calledFunction(frames[0]) != api) {
		stack = append(stack, b.leaf(api))
	}
	s := snapshot.Sample{
		Stack:  append(stack, frames...),
		Labels: b.labels(x, kind, api, shape),
		Values: x.values(),
	}
	return s, kind
}

// driverFrames returns how many frames of a stack, which begins where a library calls the
// kernel driver, are that library's own, and the function of it that was called from
// elsewhere, "" if a name is still to come. Where that has no name, because another library of NVIDIA's driver called
// it by an address, it is that library's name; else the name of the caller, if any.
func driverFrames(frames []*record.Place) (n int, function string) {
	for i, place := range frames {
		l := place.Location()
		file := library(place)
		switch {
		case !l.Named():
			return n, ""
		case file != "" && file == library(frames[0]):
			n, function = i+1, calledFunction(l)
			if function == "" && vendor(file) {
				function = file
			}
		case vendor(file) && (function == "" || vendor(function)):
			n, function = i+1, file
		case i > 0 && function == "":
			return n, calledFunction(l)
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

// vendor reports whether a library is one of NVIDIA's driver besides libcuda.
func vendor(library string) bool {
	return strings.HasPrefix(library, "libnv") || strings.HasSuffix(library, "_nvidia")
}

// calledFunction returns the function that was called where l is, "" if it has no name. An
// inlined function was not called.
func calledFunction(l *snapshot.Location) string {
	if last := len(l.Lines) - 1; last >= 0 && l.Lines[last].Reason == "" {
		return l.Lines[last].Function
	}
	return ""
}
