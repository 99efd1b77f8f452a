package allocator

import "slices"

// A Request is one thing that the program asked of the allocator, or that happened to it.
type Request struct {
	// Tensor is the tensor's number, by the order in which tensors were made.
	Tensor uint32
	// Units is the size of the block that PyTorch chose, in units of 512 bytes: see Run.Exact.
	Units uint32
	Op    Op
	// Private is the private pool that the tensor is for, 0 for none, and Stream tells streams
	// apart, as far as Run.Check found them.
	Private, Stream uint8
	Flags           Flags
}

// Flags say what became of a request.
type Flags uint8

const (
	// Refused: CUDA refused memory for it at first.
	Refused Flags = 1 << iota
	// Lacked: PyTorch gave up.
	Lacked
	// OfEnded: what was emptied are private pools that ended, too, and with OfEndedAlone they
	// alone.
	OfEnded
	OfEndedAlone
)

// Is reports whether the request has a flag.
func (q *Request) Is(f Flags) bool { return q.Flags&f != 0 }

// Op is what a Request asks.
type Op uint8

const (
	Make  Op = iota // memory for a tensor
	Free            // the end of a tensor
	Empty           // torch.cuda.empty_cache
)

// A Run is what one process asked of its allocator on one GPU, in order, and what PyTorch
// did.
type Run struct {
	Requests []Request
	// Held is what was there before the first request.
	Held []Held
	held []Held // with the streams and private pools that Check found
	// Exact: Request.Units is what the program asked for, and Streams has the stream of each tensor, by
	// number, but some private pools may be missing. Otherwise Units is the size of the block. Run.Check finds
	// the rest.
	Exact   bool
	Streams []uint8
	// Stacks are the numbers of the stacks that asked for each tensor, by its number.
	Stacks []uint32
	// Addresses are where PyTorch placed each tensor, by number.
	Addresses []uint64
	// Spare is by how many units the request for each tensor may be smaller than Request.Units, as far
	// as Run.Check found it: a block that was not cut may exceed the request by up to 1 MiB. Above is by
	// how many it may be larger, where Request.Units is no longer the size of the block.
	Spare, Above []uint16
	// Pools are the private pools for which tensors were asked, by number, 0 for none. Without
	// any it is empty. What lies in a pool's segment is of that pool, whatever it says.
	Pools []uint8
	// Reserved is what PyTorch held after each request, in units of 512 bytes.
	Reserved []uint32
}

// pool returns the private pool for which a tensor was asked.
func (r *Run) pool(tensor uint32) uint8 {
	if int(tensor) < len(r.Pools) {
		return r.Pools[tensor]
	}
	return 0
}

// units returns how many a request for a tensor has.
func (r *Run) units(q *Request, s Sizes) uint32 {
	switch {
	case s == Least && int(q.Tensor) < len(r.Spare):
		return q.Units - uint32(r.Spare[q.Tensor])
	case s == Most && int(q.Tensor) < len(r.Above):
		return q.Units + uint32(r.Above[q.Tensor])
	}
	return q.Units
}

// A Result is how a run goes under some settings. Sizes are in bytes.
type Result struct {
	// Peak is the most that was reserved, and Allocated the most that was in tensors while
	// so much was.
	Peak, Allocated uint64
	// ReachedAt is the request with which Peak was first reserved, and PeakAt the one after
	// which Allocated was in tensors.
	ReachedAt, PeakAt int
	// Segments is how often memory was asked of CUDA.
	Segments int
	// Failed is the first request for which there was no memory, -1 for none.
	Failed int
}

// note adds what an allocator holds after a request.
func (x *Result) note(request int, a *Allocator) {
	if a.Reserved > x.Peak {
		x.Peak, x.Allocated, x.ReachedAt, x.PeakAt = a.Reserved, a.Allocated, request, request
	} else if a.Reserved == x.Peak && a.Allocated > x.Allocated {
		x.Allocated, x.PeakAt = a.Allocated, request
	}
}

// Play returns how the run would have gone under settings, and with the cache emptied
// before one of its requests (-1 for none).
func (r *Run) Play(s Settings, emptied int) Result {
	return r.Follow(s, emptied, func(int, *Allocator) {})
}

// Follow does what Play does, and calls after with each request and the allocator after it.
func (r *Run) Follow(s Settings, emptied int, after func(request int, a *Allocator)) Result {
	a := New(s)
	blocks := make([]*Block, len(r.Addresses))
	held := r.held
	if held == nil {
		held = r.Held
	}
	a.hold(held, blocks)
	out := Result{Failed: -1}
	for i := range r.Requests {
		q := &r.Requests[i]
		if i == emptied {
			a.EmptyCache()
		}
		switch q.Op {
		case Empty:
			a.empty(q.Flags)
		case Free:
			if b := blocks[q.Tensor]; b != nil {
				a.Free(b)
				blocks[q.Tensor] = nil
			}
		case Make:
			b := a.Allocate(uint64(r.units(q, s.Sizes))*unit, q.Stream, q.Private)
			if b == nil {
				if out.Failed < 0 {
					out.Failed = i
				}
				break
			}
			blocks[q.Tensor] = b
			out.note(i, a)
		}
		after(i, a)
	}
	out.Segments = a.Segments
	return out
}

// Spread returns between which peaks the run may go under settings for which Play returned a peak:
// it depends on where CUDA places segments, and on how much smaller requests are than their blocks.
// Without caching none lies outside.
func (r *Run) Spread(s Settings, peak uint64) (low, high uint64) {
	low, high = peak, peak
	sizes, some := []Sizes{Likely}, func(n uint16) bool { return n > 0 }
	if slices.ContainsFunc(r.Spare, some) {
		sizes = append(sizes, Least)
	}
	if slices.ContainsFunc(r.Above, some) {
		sizes = append(sizes, Most)
	}
	for _, s.Sizes = range sizes {
		for _, s.Upwards = range []bool{false, true} {
			if s.Sizes == Likely && !s.Upwards || s.Upwards && (s.NoCaching || s.Expandable && !s.PlainPrivate) {
				continue // as in Play, or of no effect
			}
			p := r.Play(s, -1).Peak
			low, high = min(low, p), max(high, p)
		}
	}
	return low, high
}
