package holder

import "iter"

// An Allocator is PyTorch's caching allocator of the memory of one GPU.
type Allocator struct {
	Device int32 `json:"device"` // CUDA ordinal inside the process
	// Blocks are all pieces of its segments, by address.
	Blocks []Block `json:"blocks"`
	// Figures are its own statistics, nil if they were not found.
	Figures *Figures `json:"figures,omitempty"`
}

// A Block is a piece of a segment, which the allocator hands out whole.
type Block struct {
	Address   uint64     `json:"address"`
	Size      uint64     `json:"size"`
	Requested uint64     `json:"requested"` // bytes that the program asked for, 0 if it is not allocated
	Stream    uint64     `json:"stream"`    // handle of the stream that it was allocated on
	State     BlockState `json:"state"`
	First     bool       `json:"first"`      // of its segment
	Small     bool       `json:"small_pool"` // it meets requests of at most 1 MiB, others all larger ones
	// Expandable is whether its segment is a range of mapped pages.
	Expandable bool   `json:"expandable"`
	Private    PoolID `json:"private_pool"` // that it is of
}

// A BlockState says who may use a block.
type BlockState uint8

const (
	Free      BlockState = iota // cached
	Allocated                   // the program uses it
	Waiting                     // freed, and another stream may still use it
	Unmapped                    // addresses without memory, of an expandable segment
	NumBlockStates
)

// Figures are the allocator's statistics: what torch.cuda.memory_stats() returns.
type Figures struct {
	Blocks    Figure `json:"blocks"` // that are allocated
	Segments  Figure `json:"segments"`
	Allocated Figure `json:"allocated_bytes"`
	Reserved  Figure `json:"reserved_bytes"`
	Active    Figure `json:"active_bytes"` // allocated or waiting
	Requested Figure `json:"requested_bytes"`
}

// A Figure is one of the statistics, before the blocks were read and after.
type Figure struct {
	Before uint64 `json:"before"`
	Now    uint64 `json:"now"`
	Peak   uint64 `json:"peak"`
}

// A Sum is what the blocks of an allocator are together.
type Sum struct {
	Blocks    int    `json:"blocks"` // that are allocated
	Free      int    `json:"free_blocks"`
	Segments  int    `json:"segments"`
	Reserved  uint64 `json:"reserved_bytes"`
	Allocated uint64 `json:"allocated_bytes"`
	Active    uint64 `json:"active_bytes"` // allocated or waiting
	Requested uint64 `json:"requested_bytes"`
}

// Add adds what other has to s.
func (s *Sum) Add(other Sum) {
	s.Blocks += other.Blocks
	s.Free += other.Free
	s.Segments += other.Segments
	s.Reserved += other.Reserved
	s.Allocated += other.Allocated
	s.Active += other.Active
	s.Requested += other.Requested
}

// Sum adds up the blocks.
func (a *Allocator) Sum() (s Sum) {
	for i := range a.Blocks {
		b := &a.Blocks[i]
		if b.State == Unmapped {
			continue
		}
		if b.First {
			s.Segments++
		}
		s.Reserved += b.Size
		switch b.State {
		case Allocated:
			s.Blocks++
			s.Allocated += b.Size
			s.Active += b.Size
			s.Requested += b.Requested
		case Waiting:
			s.Active += b.Size
		case Free:
			s.Free++
		}
	}
	return s
}

// Segments yields the blocks of each segment, by address. Of an expandable one these are the mapped blocks that
// lie side by side.
func (a *Allocator) Segments() iter.Seq[[]Block] {
	return func(yield func([]Block) bool) {
		for from := 0; from < len(a.Blocks); {
			if a.Blocks[from].State == Unmapped {
				from++
				continue
			}
			to := from + 1
			for ; to < len(a.Blocks); to++ {
				last, b := &a.Blocks[to-1], &a.Blocks[to]
				if b.First || b.State == Unmapped || last.Address+last.Size != b.Address {
					break
				}
			}
			if !yield(a.Blocks[from:to]) {
				return
			}
			from = to
		}
	}
}

// Off returns by how many bytes the blocks are not what the statistics say, before or after.
func (a *Allocator) Off() (off uint64) {
	if a.Figures == nil {
		return 1 << 60
	}
	s := a.Sum()
	for _, x := range []struct {
		f Figure
		n uint64
	}{{a.Figures.Allocated, s.Allocated}, {a.Figures.Reserved, s.Reserved}, {a.Figures.Requested, s.Requested}} {
		least, most := min(x.f.Before, x.f.Now), max(x.f.Before, x.f.Now)
		off += max(least, x.n) - x.n + max(x.n, most) - most
	}
	return off
}
