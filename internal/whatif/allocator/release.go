package allocator

// EmptyCache gives back what lies in no tensor's segment, as torch.cuda.empty_cache does
// and as PyTorch does before it gives up (release_cached_blocks). Private pools keep
// theirs.
func (a *Allocator) EmptyCache() { a.empty(0) }

// empty is EmptyCache of the pools that the flags name: see OfEnded and OfEndedAlone.
func (a *Allocator) empty(of Flags) {
	a.unused(of, func(b *Block, _ uint64) {
		if b.segment.Expandable {
			a.unmap(b)
		} else {
			a.release(b)
		}
	})
}

// Unused returns the bytes that EmptyCache would give back.
func (a *Allocator) Unused() (bytes uint64) {
	a.unused(0, func(_ *Block, n uint64) { bytes += n })
	return bytes
}

// unused calls f with each block that empty gives back, and the bytes.
func (a *Allocator) unused(of Flags, f func(b *Block, bytes uint64)) {
	for _, p := range a.pools {
		if p.key.private == 0 && of&OfEndedAlone != 0 || p.key.private != 0 && of == 0 {
			continue
		}
		for _, b := range p.all() {
			if !b.segment.Expandable && !b.split() {
				f(b, b.Size)
			} else if b.segment.Expandable {
				from, to := a.whole(b)
				f(b, max(from, to)-from)
			}
		}
	}
}

// all returns the free blocks of a pool, by size.
func (p *pool) all() []*Block {
	all := make([]*Block, 0, p.free.Len())
	p.free.Ascend(func(b *Block) bool {
		all = append(all, b)
		return true
	})
	return all
}

// release gives a segment that is one free block back to CUDA.
func (a *Allocator) release(b *Block) {
	b.pool.free.Delete(b)
	b.free = false
	b.segment.first = nil
	a.Reserved -= b.Size
}

// collect gives back segments that were not used for long, where more is reserved than
// Threshold (garbage_collect_cached_blocks).
func (a *Allocator) collect() {
	threshold := uint64(a.Threshold * float64(a.Fraction))
	if a.Reserved <= threshold {
		return
	}
	target, reclaimed := a.Reserved-threshold, uint64(0)
	var blocks []*Block
	age := uint64(0)
	for _, p := range a.pools {
		if p.key.small || p.key.private != 0 {
			continue
		}
		for _, b := range p.all() {
			if !b.split() && !b.segment.Expandable {
				blocks = append(blocks, b)
				age += p.searches - b.freed
			}
		}
	}
	for freed := true; freed && reclaimed < target && len(blocks) > 0; {
		freed = false
		limit := float64(age) / float64(len(blocks))
		rest := blocks[:0:0]
		for _, b := range blocks {
			old := b.pool.searches - b.freed
			if float64(old) < limit {
				rest = append(rest, b)
				continue
			}
			freed = true
			reclaimed += b.Size
			age -= old
			a.release(b)
		}
		blocks = rest
	}
}

// releaseLarge gives back blocks that MaxSplit keeps from being split, so that a request
// may fit (release_available_cached_blocks). It returns whether that is worth a try.
func (a *Allocator) releaseLarge(p *pool, size uint64) bool {
	if a.MaxSplit == 0 {
		return false
	}
	want := max(size, a.MaxSplit)
	var one *Block
	p.free.AscendGreaterOrEqual(&Block{Size: want}, func(b *Block) bool {
		one = b
		return false
	})
	if one != nil && !one.segment.Expandable {
		if !one.split() {
			a.release(one)
		}
		return true
	}
	var released uint64
	var largest []*Block
	p.free.Descend(func(b *Block) bool {
		if released >= want || b.Size < a.MaxSplit {
			return false
		}
		if !b.segment.Expandable && !b.split() {
			largest = append(largest, b)
			released += b.Size
		}
		return true
	})
	for _, b := range largest {
		a.release(b)
	}
	return released >= want
}
