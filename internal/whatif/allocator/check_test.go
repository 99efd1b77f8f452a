package allocator

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// program makes a run of an allocator, with streams, private pools and an emptied cache now and
// then. Each private pool has ended once: it gave back what it could, as when a graph is destroyed.
func program(s Settings, seed uint64) *Run {
	r := rand.New(rand.NewPCG(seed, 7))
	a := New(s)
	run := &Run{}
	add := func(q Request) {
		run.Requests = append(run.Requests, q)
		run.Reserved = append(run.Reserved, uint32(a.Reserved/unit))
	}
	type tensor struct {
		*Block
		number  uint32
		private uint8
	}
	var live []tensor
	free := func(i int) {
		a.Free(live[i].Block)
		add(Request{Op: Free, Tensor: live[i].number})
		live = append(live[:i], live[i+1:]...)
	}
	request := func() {
		size := r.Uint64N(3000) + 1
		if r.IntN(3) > 0 {
			size = r.Uint64N(30*mib) + 1
		}
		private := uint8(max(r.IntN(6)-3, 0))
		b := a.Allocate(size, 0, private)
		live = append(live, tensor{b, uint32(len(run.Addresses)), private})
		run.Addresses, run.Pools = append(run.Addresses, b.Address), append(run.Pools, private)
		add(Request{Op: Make, Tensor: live[len(live)-1].number, Units: uint32(b.Size / unit)})
	}
	// emptied is seen with the request that follows.
	emptied := func(of Flags) {
		a.empty(of)
		at := len(run.Requests)
		add(Request{Op: Empty})
		request()
		run.Reserved[at] = run.Reserved[at+1]
	}
	for n := range 3000 {
		switch {
		case n == 1500: // a graph ends
			for i, x := range slices.Backward(live) {
				if x.private > 0 {
					free(i)
				}
			}
			emptied(OfEnded)
		case n == 2000: // a torch.cuda.MemPool ends
			for i, x := range slices.Backward(live) {
				if x.private > 0 {
					free(i)
				}
			}
			emptied(OfEnded | OfEndedAlone)
		case n%500 == 499:
			emptied(0)
		case len(live) == 0 || len(live) < 200 && r.IntN(2) == 0:
			request()
		default:
			free(r.IntN(len(live)))
		}
	}
	return run
}

// A run with private pools is repeated under its own settings alone: up to PyTorch 2.4
// (alloc_block of c10/cuda/CUDACachingAllocator.cpp) its private pools have plain segments, though
// expandable_segments is set, and in later ones expandable segments.
func TestPrivatePools(t *testing.T) {
	for _, own := range []Settings{{}, {Expandable: true, Memory: 1 << 30}, {Expandable: true, PlainPrivate: true, Memory: 1 << 30}} {
		for seed := range uint64(2) {
			run := program(own, seed)
			for _, other := range []Settings{{}, {Expandable: true, Memory: 1 << 30}, {Expandable: true, PlainPrivate: true, Memory: 1 << 30}} {
				c := run.Check(other)
				if whole := c.Same == c.Made; whole != (own == other) {
					t.Errorf("%+v under %+v: %d of %d tensors at their address", own, other, c.Same, c.Made)
				}
				if own == other && (c.Streams != 1 || c.Reserved < len(run.Requests)-8) { // the recording says of what follows an Empty what was reserved then
					t.Errorf("%+v: %d streams, as much reserved after %d of %d requests", own, c.Streams, c.Reserved, len(run.Requests))
				}
			}
		}
	}
}

// NVML says that a GPU has more than CUDA provides, by which expandable segments would reach into the next ones.
// Their addresses show how far they reach.
func TestMemoryByAddresses(t *testing.T) {
	const memory = 8 << 30
	for seed := range uint64(2) {
		run := program(Settings{Expandable: true, Memory: memory, Upwards: true}, seed)
		for _, told := range []uint64{0, memory, memory + memory/100} {
			if c := run.Check(Settings{Expandable: true, Memory: told}); c.Same != c.Made || c.Streams != 1 {
				t.Errorf("told of %d bytes: %d of %d tensors at their address, %d streams", told, c.Same, c.Made, c.Streams)
			}
		}
	}
}

// What PyTorch did with tensors that come to lie elsewhere is told apart.
func TestDifferences(t *testing.T) {
	const units = mib / unit
	made := func(tensor, size uint32) Request { return Request{Op: Make, Tensor: tensor, Units: size * units} }
	free := func(tensor uint32) Request { return Request{Op: Free, Tensor: tensor} }
	const one, two = 1 << 40, 2 << 40
	for name, test := range map[string]struct {
		own                 Settings
		requests            []Request
		addresses           []uint64
		passed, kept, taken int
	}{
		// The block of 30 MiB at the lower address is free, and fits as well.
		"passed over": {Settings{}, []Request{made(0, 30), made(1, 30), free(0), free(1), made(2, 30)}, []uint64{one, one + 32*mib, one + 32*mib}, 1, 0, 0},
		// max_split_size_mb of 24 keeps blocks of 30 MiB for requests of 24 MiB and more.
		"kept for others": {Settings{MaxSplit: 24 * mib}, []Request{made(0, 30), free(0), made(1, 12)}, []uint64{one, one}, 0, 1, 0},
		"not free":        {Settings{}, []Request{made(0, 30), made(1, 12)}, []uint64{two, two + 10*mib}, 0, 0, 1},
	} {
		run := &Run{Requests: test.requests, Addresses: test.addresses, Reserved: make([]uint32, len(test.requests))}
		c := run.compare(test.own, nil).check
		if c.Passed != test.passed || c.Kept != test.kept || c.Taken != test.taken || c.Made-c.Same != 1 {
			t.Errorf("%s: %+v", name, c)
		}
	}
}
