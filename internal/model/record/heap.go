package record

import (
	"math"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
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

// Blocks are what PyTorch's allocator has of one GPU, or a part of that. They follow the Heap of the same
// reading: all parts but the last of a reading have More.
type Blocks struct {
	Process event.Process
	Begin   uint64 // of the reading
	Index   int    // of the part, from 0
	Device  int32
	Blocks  []holder.Block
	More    bool
}

// Record marks Blocks as a Record.
func (*Blocks) Record() {}

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
		bytes, entries = 0, 0
		out = append(out, &Heap{Process: process, Reading: part, More: true})
	}
	var c Fields
	// room makes room for one entry, which has been written to c.
	room := func() {
		if bytes+len(c.buf) > heapPart || entries == MaxHeapEntries {
			begin()
		}
		bytes, entries = bytes+len(c.buf), entries+1
		c.buf = c.buf[:0]
	}
	begin()
	for _, x := range r.Loss {
		x.Name, x.Help = shorten(x.Name), shorten(x.Help)
		c.counter(&x)
		room()
		part.Loss = append(part.Loss, x)
	}
	all := make([]holder.Storage, len(r.Storages))
	for i, s := range r.Storages {
		trim(&s)
		c.storage(&s)
		if room(); part.Storages == nil {
			part.Storages = all[i:i]
		}
		part.Storages = append(part.Storages, s)
	}
	for _, x := range r.Modules {
		x.Path = shorten(x.Path)
		c.module(&x)
		room()
		part.Modules = append(part.Modules, x)
	}
	for _, x := range r.Retainers {
		x.Holder, x.Class, x.Items, x.Storages = shorten(x.Holder), shorten(x.Class), max(x.Items, 0), max(x.Storages, 0)
		c.retainer(&x)
		room()
		part.Retainers = append(part.Retainers, x)
	}
	out[len(out)-1].More = false
	return out
}

// BlocksOf returns the blocks of a reading as records that fit in blocks of a file.
func BlocksOf(process event.Process, r *holder.Reading) (out []*Blocks) {
	for i := range r.Allocators {
		a := &r.Allocators[i]
		for part := range slices.Chunk(a.Blocks, MaxHeapEntries) {
			out = append(out, &Blocks{Process: process, Begin: r.Begin, Index: len(out), Device: a.Device, Blocks: part, More: true})
		}
	}
	if len(out) > 0 {
		out[len(out)-1].More = false
	}
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

func visitHeap(c *Fields, h *Heap) { c.heap(h, c.module) }

// visitOldHeap visits what version 13 has of a heap.
func visitOldHeap(c *Fields, h *Heap) { c.heap(h, c.oldModule) }

func (c *Fields) heap(h *Heap, module func(*holder.Module)) {
	if c.reading {
		h.Reading = &holder.Reading{}
	} else if h.Reading == nil {
		c.fail()
		return
	}
	r, left := h.Reading, MaxHeapEntries
	c.Process(&h.Process)
	c.Bool(&h.More)
	c.Text(&r.Runtime, &r.Framework, &r.Refused)
	c.moment(&r.Begin)
	c.Uint(&r.End, &r.Objects)
	List(c, &r.Storages, 14, left, c.storage)
	left -= len(r.Storages)
	List(c, &r.Retainers, 6, left, c.retainer)
	left -= len(r.Retainers)
	List(c, &r.Loss, 3, left, c.counter)
	left -= len(r.Loss)
	List(c, &r.Modules, 2, left, module)
}

func visitBlocks(c *Fields, r *Blocks) {
	c.blocks(r, 9, func(b *holder.Block) {
		c.oldBlock(b)
		c.Bool(&b.Small, &b.Expandable)
		c.Uint(&b.Private.First, &b.Private.Second)
	})
}

// visitOldBlocks visits what version 13 has of blocks.
func visitOldBlocks(c *Fields, r *Blocks) { c.blocks(r, 5, c.oldBlock) }

func (c *Fields) blocks(r *Blocks, least int, block func(*holder.Block)) {
	c.Process(&r.Process)
	c.moment(&r.Begin)
	UpTo(c, &r.Index, math.MaxInt32)
	Signed(c, &r.Device)
	c.Bool(&r.More)
	var last uint64
	List(c, &r.Blocks, least, MaxHeapEntries, func(b *holder.Block) {
		c.Near(&b.Address, &last)
		block(b)
	})
}

// oldBlock visits what version 13 has of a block behind its address. It does not say which pool that is of.
func (c *Fields) oldBlock(b *holder.Block) {
	c.Uint(&b.Size, &b.Requested, &b.Stream)
	UpTo(c, &b.State, uint64(holder.NumBlockStates)-1)
	c.Bool(&b.First)
	if c.reading {
		b.Private = holder.UnknownPool
	}
}

func (c *Fields) storage(s *holder.Storage) {
	c.Uint(&s.Address, &s.Bytes)
	Signed(c, &s.Device)
	UpTo(c, &s.Role, uint64(holder.NumRoles)-1)
	c.Bool(&s.RequiresGrad, &s.Cycle)
	c.Text(&s.Holder)
	List(c, &s.More, 1, maxHolders, func(text *string) { c.Text(text) })
	UpTo(c, &s.Holders, math.MaxInt)
	UpTo(c, &s.Tensors, math.MaxInt)
	List(c, &s.Shape, 1, maxDimensions, func(n *int64) { Signed(c, n) })
	c.Text(&s.DType, &s.Class, &s.Node, &s.Module)
}

func (c *Fields) retainer(x *holder.Retainer) {
	c.Text(&x.Holder, &x.Class)
	UpTo(c, &x.Items, math.MaxInt)
	c.Uint(&x.Retained, &x.Graph)
	UpTo(c, &x.Storages, math.MaxInt)
}

// oldModule visits what version 13 has of a module. It does not say that one is in eval mode, so that
// nothing follows from it.
func (c *Fields) oldModule(x *holder.Module) {
	c.Uint(&x.Address)
	c.Text(&x.Path)
	x.Training = x.Training || c.reading
}

func (c *Fields) module(x *holder.Module) {
	c.oldModule(x)
	c.Bool(&x.Training, &x.Checkpoints)
}
