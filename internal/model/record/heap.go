package record

import (
	"encoding/binary"
	"math"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// A Heap is a reading of a process's heap, or a part of one. The parts of a reading come
// one after the other, each with what they have in common: all but the last have More.
type Heap struct {
	Process event.Process
	Reading *holder.Reading
	More    bool
}

// Record marks a Heap as a Record.
func (*Heap) Record() {}

// Limits of a Heap.
const (
	// MaxHeapEntries bounds the storages, the modules, the retainers and the losses of one Heap,
	// together.
	MaxHeapEntries = 1 << 11
	// heapPart is how many bytes a part may have that Heaps makes.
	heapPart = 128 << 10
	// Of one storage.
	maxHolders    = 4
	maxHolder     = 4 << 10 // bytes of a path, a class, a type
	maxDimensions = 64
)

// Heaps returns a reading as records that fit in blocks. Paths that are too long are cut.
func Heaps(process event.Process, r *holder.Reading) (out []*Heap) {
	bytes, entries := 0, 0
	var part *holder.Reading
	begin := func() {
		part = &holder.Reading{Runtime: shorten(r.Runtime), Framework: shorten(r.Framework), Refused: shorten(r.Refused), Begin: r.Begin, End: r.End, Objects: r.Objects}
		bytes, entries = headBound(part), 0
		out = append(out, &Heap{Process: process, Reading: part, More: true})
	}
	room := func(n int) {
		if bytes+n > heapPart || entries == MaxHeapEntries {
			begin()
		}
		bytes, entries = bytes+n, entries+1
	}
	begin()
	for _, c := range r.Loss {
		c.Name, c.Help = shorten(c.Name), shorten(c.Help)
		room(number + textBound(c.Name, c.Help))
		part.Loss = append(part.Loss, c)
	}
	for _, s := range r.Storages {
		trim(&s)
		room(storageBound(&s))
		part.Storages = append(part.Storages, s)
	}
	for _, x := range r.Modules {
		x.Path = shorten(x.Path)
		room(number + textBound(x.Path))
		part.Modules = append(part.Modules, x)
	}
	for _, x := range r.Retainers {
		x.Holder, x.Class, x.Items, x.Storages = shorten(x.Holder), shorten(x.Class), max(x.Items, 0), max(x.Storages, 0)
		room(retainerBound(&x))
		part.Retainers = append(part.Retainers, x)
	}
	out[len(out)-1].More = false
	return out
}

// trim brings a storage within the limits.
func trim(s *holder.Storage) {
	s.Holder, s.Module, s.DType, s.Class, s.Node = shorten(s.Holder), shorten(s.Module), shorten(s.DType), shorten(s.Class), shorten(s.Node)
	s.Holders, s.Tensors = max(s.Holders, 0), max(s.Tensors, 0)
	s.Shape = s.Shape[:min(len(s.Shape), maxDimensions)]
	if s.Role >= holder.NumRoles {
		s.Role = holder.NoRole
	}
	more := s.More
	s.More = nil
	for _, m := range more[:min(len(more), maxHolders)] {
		s.More = append(s.More, shorten(m))
	}
}

func shorten(s string) string { return s[:min(len(s), maxHolder)] }

// number is how many bytes a number has at most.
const number = binary.MaxVarintLen64

func textBound(list ...string) (n int) {
	for _, s := range list {
		n += 2*number + min(len(s), maxString)
	}
	return n
}

func headBound(r *holder.Reading) int {
	return 13*number + textBound(r.Runtime, r.Framework, r.Refused)
}

func storageBound(s *holder.Storage) int {
	return (8+len(s.Shape))*number + textBound(s.Holder, s.Module, s.DType, s.Class, s.Node) + textBound(s.More...)
}

func retainerBound(x *holder.Retainer) int { return 4*number + textBound(x.Holder, x.Class) }

// heapBound returns at most how many bytes a Heap's entry has. It is false for one that
// no reader would take.
func heapBound(h *Heap) (n int, ok bool) {
	r := h.Reading
	if r == nil || len(r.Storages)+len(r.Modules)+len(r.Retainers)+len(r.Loss) > MaxHeapEntries {
		return 0, false
	}
	n, ok = headBound(r), true
	for i := range r.Storages {
		s := &r.Storages[i]
		n += storageBound(s)
		ok = ok && s.Role < holder.NumRoles && len(s.Shape) <= maxDimensions && len(s.More) <= maxHolders && s.Holders >= 0 && s.Tensors >= 0
	}
	for i := range r.Modules {
		n += number + textBound(r.Modules[i].Path)
	}
	for i := range r.Retainers {
		x := &r.Retainers[i]
		n += retainerBound(x)
		ok = ok && x.Items >= 0 && x.Storages >= 0
	}
	for _, c := range r.Loss {
		n += number + textBound(c.Name, c.Help)
	}
	return n, ok
}

func (e *encoder) heap(h *Heap) {
	r := h.Reading
	e.process(h.Process)
	e.bool(h.More)
	e.string(r.Runtime)
	e.string(r.Framework)
	e.string(r.Refused)
	e.moment(r.Begin)
	e.uint(r.End - r.Begin)
	e.uint(r.Objects)
	e.uint(uint64(len(r.Storages)))
	var address uint64
	for i := range r.Storages {
		s := &r.Storages[i]
		e.int(int64(s.Address - address))
		address = s.Address
		e.uint(s.Bytes)
		e.int(int64(s.Device))
		flags := uint64(s.Role) << 2
		if s.RequiresGrad {
			flags |= 1
		}
		if s.Cycle {
			flags |= 2
		}
		e.uint(flags)
		e.string(s.Holder)
		codec{e: e}.texts(&s.More)
		e.uint(uint64(s.Holders))
		e.uint(uint64(s.Tensors))
		e.uint(uint64(len(s.Shape)))
		for _, n := range s.Shape {
			e.int(n)
		}
		e.string(s.DType)
		e.string(s.Class)
		e.string(s.Node)
		e.string(s.Module)
	}
	e.uint(uint64(len(r.Retainers)))
	for i := range r.Retainers {
		x := &r.Retainers[i]
		e.string(x.Holder)
		e.string(x.Class)
		e.uint(uint64(x.Items))
		e.uint(x.Retained)
		e.uint(x.Graph)
		e.uint(uint64(x.Storages))
	}
	e.uint(uint64(len(r.Loss)))
	for _, c := range r.Loss {
		e.string(c.Name)
		e.string(c.Help)
		e.uint(c.Value)
	}
	e.uint(uint64(len(r.Modules)))
	address = 0
	for i := range r.Modules {
		e.int(int64(r.Modules[i].Address - address))
		address = r.Modules[i].Address
		e.string(r.Modules[i].Path)
	}
}

func (d *decoder) heap() *Heap {
	h := &Heap{Process: d.process(), More: d.bool()}
	r := &holder.Reading{Runtime: d.string(), Framework: d.string(), Refused: d.string(), Begin: d.moment()}
	h.Reading = r
	r.End = r.Begin + d.uint()
	r.Objects = d.uint()
	left := MaxHeapEntries
	// entries reads how many there are of something, each of at least size bytes.
	entries := func(size int) int {
		n := min(d.count(size), left+1)
		if n > left {
			d.fail()
			return 0
		}
		left -= n
		return n
	}
	size := func() int { return int(d.upTo(math.MaxInt)) }
	if n := entries(12); n > 0 {
		r.Storages = make([]holder.Storage, n)
	}
	var address uint64
	for i := range r.Storages {
		s := &r.Storages[i]
		address += uint64(d.int())
		s.Address, s.Bytes, s.Device = address, d.uint(), d.device()
		flags := d.upTo(uint64(holder.NumRoles)<<2 - 1)
		s.Role, s.RequiresGrad, s.Cycle = holder.Role(flags>>2), flags&1 != 0, flags&2 != 0
		s.Holder = d.string()
		if n := d.upTo(maxHolders); n > 0 {
			s.More = make([]string, n)
		}
		for i := range s.More {
			s.More[i] = d.string()
		}
		s.Holders, s.Tensors = size(), size()
		if n := d.upTo(maxDimensions); n > 0 {
			s.Shape = make([]int64, n)
		}
		for i := range s.Shape {
			s.Shape[i] = d.int()
		}
		s.DType, s.Class, s.Node = d.string(), d.string(), d.string()
		s.Module = d.string()
	}
	if n := entries(6); n > 0 {
		r.Retainers = make([]holder.Retainer, n)
	}
	for i := range r.Retainers {
		r.Retainers[i] = holder.Retainer{Holder: d.string(), Class: d.string(), Items: size(), Retained: d.uint(), Graph: d.uint(), Storages: size()}
	}
	if n := entries(3); n > 0 {
		r.Loss = make([]loss.Counter, n)
	}
	for i := range r.Loss {
		r.Loss[i] = loss.Counter{Name: d.string(), Help: d.string(), Value: d.uint()}
	}
	if n := entries(2); n > 0 {
		r.Modules = make([]holder.Module, n)
	}
	address = 0
	for i := range r.Modules {
		address += uint64(d.int())
		r.Modules[i] = holder.Module{Address: address, Path: d.string()}
	}
	return h
}

// device reads the number of a device.
func (d *decoder) device() (n int32) {
	signed(codec{d: d}, &n)
	return n
}
