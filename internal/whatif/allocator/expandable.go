package allocator

import "cmp"

// Expandable segments: a range of addresses that is mapped piece by piece. Pieces are
// of smallSegment for small requests and of Settings.LargeSegment for large ones.

// mostMemory is more than any GPU has, in bytes.
const mostMemory = 1 << 40

// span is how many addresses an expandable segment has.
func (s *Settings) span() uint64 {
	memory := cmp.Or(s.Memory, mostMemory)
	return (memory + memory/8) / s.large() * s.large()
}

func (a *Allocator) piece(p *pool) uint64 {
	if p.key.small {
		return smallSegment
	}
	return a.large()
}

// expand makes a block of an expandable segment (try_allocate_expandable_block), nil if it does not fit into one.
func (a *Allocator) expand(p *pool, size uint64) *Block {
	if size > a.span() {
		return nil
	}
	b := p.expandable(size)
	if b == nil {
		b = a.addExpandable(p)
	}
	if !b.mapped && !a.mapBlock(b, size) {
		return nil
	}
	for b.Size < size {
		// A free block is followed by one that is not mapped. What is mapped joins it.
		grown := b.next
		if !a.mapBlock(grown, size-b.Size) {
			return nil
		}
		b = grown
	}
	p.free.Delete(b)
	return b
}

// addExpandable makes an expandable segment of which nothing is mapped.
func (a *Allocator) addExpandable(p *pool) *Block {
	b := a.add(p, a.span(), true)
	p.unmapped.ReplaceOrInsert(b)
	return b
}

// expandable returns the block of the lowest address from which on enough is free or not
// mapped, nil for none (find_expandable_block).
func (p *pool) expandable(size uint64) (found *Block) {
	usable := func(b *Block) bool { return b != nil && (b.free || !b.mapped) }
	p.unmapped.Ascend(func(b *Block) bool {
		if usable(b.prev) {
			b = b.prev
		}
		bytes := uint64(0)
		for c := b; bytes < size && usable(c); c = c.next {
			bytes += c.Size
		}
		if bytes >= size {
			found = b
		}
		return found == nil
	})
	return found
}

// mapBlock maps the beginning of a block that is not mapped, as far as size needs it, and
// makes it free.
func (a *Allocator) mapBlock(b *Block, size uint64) bool {
	p := b.pool
	piece := a.piece(p)
	size = min((min(size, b.Size)+piece-1)/piece*piece, b.Size)
	if !a.reserve(size) {
		return false
	}
	p.unmapped.Delete(b)
	if size < b.Size {
		rest := &Block{Address: b.Address + size, Size: b.Size - size, pool: p, segment: b.segment}
		b.Size = size
		b.link(rest)
		p.unmapped.ReplaceOrInsert(rest)
	}
	b.mapped = true
	a.merge(b)
	a.insert(b)
	return true
}

// whole returns where the whole pieces of a block of an expandable segment begin and end.
func (a *Allocator) whole(b *Block) (from, to uint64) {
	piece, start := a.piece(b.pool), b.segment.Address
	return start + (b.Address-start+piece-1)/piece*piece, start + (b.Address+b.Size-start)/piece*piece
}

// unmap gives the whole pieces of a free block back to CUDA (unmap_block).
func (a *Allocator) unmap(b *Block) {
	p := b.pool
	from, to := a.whole(b)
	if from >= to {
		return
	}
	p.free.Delete(b)
	if from > b.Address {
		before := &Block{Address: b.Address, Size: from - b.Address, pool: p, segment: b.segment, mapped: true, prev: b.prev, next: b}
		if b.prev != nil {
			b.prev.next = before
		} else {
			b.segment.first = before
		}
		b.prev = before
		a.insert(before)
	}
	if end := b.Address + b.Size; to < end {
		after := &Block{Address: to, Size: end - to, pool: p, segment: b.segment, mapped: true}
		b.link(after)
		a.insert(after)
	}
	b.Address, b.Size, b.mapped, b.free = from, to-from, false, false
	a.Reserved -= b.Size
	a.merge(b)
	p.unmapped.ReplaceOrInsert(b)
	if b.prev == nil && b.next == nil {
		p.unmapped.Delete(b) // the whole segment
		b.segment.first = nil
	}
}
