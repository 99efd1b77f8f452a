package allocator

// A Held is a segment that was there before the first request, and what was in it.
type Held struct {
	Address, Size   uint64
	Private, Stream uint8
	Blocks          []HeldBlock // by address
}

// A HeldBlock is the block of a tensor from before the first request.
type HeldBlock struct {
	Address, Size uint64
	Tensor        uint32
}

// hold begins with what was there, and returns the segments. blocks gets those of tensors.
func (a *Allocator) hold(all []Held, blocks []*Block) (out []*Segment) {
	for i := range all {
		h := &all[i]
		s := &Segment{Address: h.Address, Size: h.Size}
		out = append(out, s)
		a.lowest = min(a.lowest, h.Address/region*region)
		p := a.pool(poolKey{h.Private, h.Stream, h.Size <= smallSegment})
		var last *Block
		at := h.Address
		add := func(to uint64, free bool) *Block {
			if at == to {
				return last
			}
			b := &Block{Address: at, Size: to - at, pool: p, segment: s, mapped: true}
			if last == nil {
				s.first = b
			} else {
				last.link(b)
			}
			if free && !a.NoCaching {
				a.insert(b)
			}
			last, at = b, to
			return b
		}
		for _, x := range h.Blocks {
			add(x.Address, true)
			b := add(x.Address+x.Size, false)
			a.Allocated += x.Size
			if blocks[x.Tensor] = b; a.NoCaching {
				b.pool = nil
				a.Reserved += x.Size
			}
		}
		add(h.Address+h.Size, true)
		if !a.NoCaching {
			a.Reserved += h.Size
		}
	}
	return out
}
