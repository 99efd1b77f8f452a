// Package allocator is PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp)
// as a pure function: settings and a sequence of requests give the address of each
// tensor and the memory that is reserved.
//
// Under the settings of a recorded run it must choose the addresses that PyTorch chose
// there. Only then may it predict what other settings would have done.
package allocator

import (
	"cmp"
	"slices"

	"github.com/google/btree"
)

// Sizes of CUDACachingAllocator.cpp, in bytes.
const (
	mib          = 1 << 20
	unit         = 512      // kMinBlockSize
	smallRequest = mib      // kSmallSize
	smallSegment = 2 * mib  // kSmallBuffer
	largeSegment = 20 * mib // kLargeBuffer
	minLarge     = 10 * mib // kMinLargeAlloc
	largeRound   = 2 * mib  // kRoundLarge
)

// Unless Settings.Upwards, CUDA places segments from high addresses to low ones, each at a
// multiple of region. Small ones fill what the latest region has left. Seen with driver 580.
const (
	region = 32 * mib
	top    = 1 << 62
)

// A Block is a range of a segment: one tensor, or free. Expandable segments also have
// ranges that are not mapped.
type Block struct {
	Address, Size uint64

	prev, next *Block // beside it in its segment
	segment    *Segment
	pool       *pool
	free       bool
	mapped     bool
	freed      uint64 // pool.searches when it was freed
}

func (b *Block) split() bool { return b.prev != nil || b.next != nil }

// A Segment is memory that CUDA provided: a range of addresses.
type Segment struct {
	Address    uint64
	Size       uint64
	Expandable bool   // a part of it is not mapped
	first      *Block // nil when it was given back
	name       uint64 // see comparison.name
}

// A poolKey says which requests share blocks: those for one stream and one private pool
// that are of one sort.
type poolKey struct {
	private, stream uint8
	small           bool
}

func (k poolKey) compare(o poolKey) int {
	c := cmp.Or(cmp.Compare(k.private, o.private), cmp.Compare(k.stream, o.stream))
	if c == 0 && k.small != o.small {
		c = 1
		if k.small {
			c = -1
		}
	}
	return c
}

type pool struct {
	key      poolKey
	free     *btree.BTreeG[*Block] // by size, then address
	unmapped *btree.BTreeG[*Block] // by address
	searches uint64                // for a free block
}

func bySize(a, b *Block) bool {
	if a.Size != b.Size {
		return a.Size < b.Size
	}
	return a.Address < b.Address
}

func byAddress(a, b *Block) bool { return a.Address < b.Address }

// An Allocator is one process's on one GPU.
type Allocator struct {
	Settings

	// Reserved and Allocated are the bytes of segments, and of tensors in them.
	Reserved, Allocated uint64
	// Segments is how often memory was asked of CUDA, with success.
	Segments int

	// place, if set, gives the address of the next segment.
	place uint64
	// refuse: CUDA refuses the next request for memory.
	refuse bool

	pools  []*pool // by key
	lowest uint64  // no segment lies below it
	room   uint64  // where the latest region has room for small segments
}

// New returns an Allocator that holds nothing.
func New(s Settings) *Allocator {
	return &Allocator{Settings: s, lowest: top, room: top}
}

func (a *Allocator) pool(k poolKey) *pool {
	i, ok := slices.BinarySearchFunc(a.pools, k, func(p *pool, k poolKey) int { return p.key.compare(k) })
	if !ok {
		a.pools = slices.Insert(a.pools, i, &pool{key: k, free: btree.NewG(16, bySize), unmapped: btree.NewG(8, byAddress)})
	}
	return a.pools[i]
}

// Allocate returns a block for a tensor, nil if there is no memory for it.
func (a *Allocator) Allocate(size uint64, stream, private uint8) *Block {
	size = a.round(size)
	if a.NoCaching {
		return a.direct(size)
	}
	p := a.pool(poolKey{private, stream, size <= smallRequest})
	b := a.find(p, size)
	if b == nil {
		if a.Fraction > 0 && a.Threshold > 0 {
			a.collect()
		}
		if b = a.grow(p, size); b == nil && a.releaseLarge(p, size) {
			b = a.grow(p, size)
		}
		if b == nil {
			a.EmptyCache()
			b = a.grow(p, size)
		}
		if b == nil {
			return nil
		}
	}
	a.cut(b, size)
	b.free = false
	a.Allocated += b.Size
	return b
}

// direct is Allocate without caching.
func (a *Allocator) direct(size uint64) *Block {
	if !a.reserve(size) {
		return nil
	}
	a.Allocated += size
	a.lowest -= size
	return &Block{Address: a.lowest, Size: size}
}

// address returns where a new segment lies.
func (a *Allocator) address(size uint64) (at uint64) {
	if at, a.place = a.place, 0; at != 0 {
		return at
	}
	switch {
	case a.Upwards:
		at = a.lowest
		a.lowest += size
	case size > smallSegment || a.room%region == 0:
		a.lowest -= (size + region - 1) / region * region
		at, a.room = a.lowest, a.lowest+size
	default:
		at = a.room
		a.room += size
	}
	return at
}

// reserve takes bytes from CUDA, if it has as many.
func (a *Allocator) reserve(size uint64) bool {
	if a.refuse {
		a.refuse = false
		return false
	}
	if a.Limit > 0 && a.Reserved+size > a.Limit {
		return false
	}
	a.Reserved += size
	a.Segments++
	return true
}

// find takes the smallest free block that fits from a pool (get_free_block).
func (a *Allocator) find(p *pool, size uint64) (found *Block) {
	p.searches++
	reach := func(b *Block) uint64 {
		if b.next != nil && !b.next.mapped {
			return b.Size + b.next.Size
		}
		return b.Size
	}
	p.free.AscendGreaterOrEqual(&Block{Size: size}, func(b *Block) bool {
		// Of blocks that can be expanded, the one that can grow least is taken.
		if found != nil && !(found.segment.Expandable && reach(b) < reach(found)) {
			return false
		}
		found = b
		return b.segment.Expandable
	})
	switch {
	case found == nil,
		a.MaxSplit > 0 && size < a.MaxSplit && found.Size >= a.MaxSplit,
		a.MaxSplit > 0 && size >= a.MaxSplit && found.Size >= size+cmp.Or(a.MaxRounding, a.large()):
		return nil
	}
	p.free.Delete(found)
	return found
}

// grow makes a block of new memory (alloc_block). It is in no set of free blocks.
func (a *Allocator) grow(p *pool, size uint64) *Block {
	n := a.segment(size)
	if a.Fraction > 0 && a.Reserved+n > a.Fraction {
		return nil // though an expandable segment may need less
	}
	if a.expands(p) {
		return a.expand(p, size)
	}
	if !a.reserve(n) {
		return nil
	}
	return a.add(p, n, false)
}

// add makes a segment of one block, which is mapped unless it is expandable.
func (a *Allocator) add(p *pool, size uint64, expandable bool) *Block {
	at := a.address(size)
	b := &Block{Address: at, Size: size, pool: p, mapped: !expandable}
	b.segment = &Segment{Address: at, Size: size, Expandable: expandable, first: b}
	return b
}

// cut gives what a block has beyond a request back to its pool, where PyTorch does.
func (a *Allocator) cut(b *Block, size uint64) {
	rest := b.Size - size
	switch {
	case b.pool.key.small || a.Expandable:
		if rest < unit {
			return
		}
	case a.MaxSplit > 0 && size >= a.MaxSplit, rest <= smallRequest:
		return
	}
	r := &Block{Address: b.Address + size, Size: rest, pool: b.pool, segment: b.segment, mapped: true}
	b.Size = size
	b.link(r)
	a.insert(r)
}

// link puts r after b.
func (b *Block) link(r *Block) {
	r.prev, r.next = b, b.next
	if b.next != nil {
		b.next.prev = r
	}
	b.next = r
}

// insert puts a block into its pool's free ones.
func (a *Allocator) insert(b *Block) {
	b.free, b.freed = true, b.pool.searches
	b.pool.free.ReplaceOrInsert(b)
}

// Free ends a tensor.
func (a *Allocator) Free(b *Block) {
	a.Allocated -= b.Size
	if b.pool == nil { // without caching
		a.Reserved -= b.Size
		return
	}
	a.merge(b)
	a.insert(b)
}

// merge makes one block of b and the free ones beside it that are mapped as b is
// (try_merge_blocks).
func (a *Allocator) merge(b *Block) {
	if o := b.prev; o != nil && o.joins(b) {
		o.remove()
		b.Address = o.Address
		b.Size += o.Size
		if b.prev = o.prev; b.prev != nil {
			b.prev.next = b
		} else {
			b.segment.first = b
		}
	}
	if o := b.next; o != nil && o.joins(b) {
		o.remove()
		b.Size += o.Size
		if b.next = o.next; b.next != nil {
			b.next.prev = b
		}
	}
}

// joins reports whether b, which lies beside other, can become a part of it.
func (b *Block) joins(other *Block) bool { return b.mapped == other.mapped && (b.free || !b.mapped) }

// remove takes the block out of its pool's sets.
func (b *Block) remove() {
	if b.mapped {
		b.pool.free.Delete(b)
	} else {
		b.pool.unmapped.Delete(b)
	}
}
