package allocator

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Each row is what c10/cuda/CUDACachingAllocator.cpp does with one request.
func TestReserves(t *testing.T) {
	for _, test := range []struct {
		name     string
		settings Settings
		size     uint64
		reserved uint64
		block    uint64
	}{
		{"small", Settings{}, 1, 2 * mib, 512},
		{"small rounds to 512", Settings{}, 513, 2 * mib, 1024},
		{"largest small one", Settings{}, mib, 2 * mib, mib},
		{"large is cut where more than 1 MiB remains", Settings{}, mib + 1, 20 * mib, mib + 512},
		{"large is not cut where 1 MiB remains", Settings{}, 19 * mib, 20 * mib, 20 * mib},
		{"larger rounds to 2 MiB", Settings{}, 21*mib + 512, 22 * mib, 22 * mib},
		{"eight parts of a power of two", Settings{Divisions: all(8)}, 1200 * 1024, 20 * mib, 1280 * 1024},
		{"expandable maps 20 MiB", Settings{Expandable: true}, 3 * mib, 20 * mib, 3 * mib},
		{"expandable maps as many pieces as it needs", Settings{Expandable: true}, 21 * mib, 40 * mib, 21 * mib},
		{"expandable is always cut", Settings{Expandable: true}, 20*mib - 512, 20 * mib, 20*mib - 512},
		{"large segments of 32 MiB", Settings{LargeSegment: 32 * mib}, 3 * mib, 32 * mib, 3 * mib}, // since pull request 172056 of PyTorch
		{"of which large requests have none", Settings{LargeSegment: 32 * mib}, 10 * mib, 10 * mib, 10 * mib},
		{"expandable maps 32 MiB", Settings{Expandable: true, LargeSegment: 32 * mib}, 3 * mib, 32 * mib, 3 * mib},
		{"expandable small", Settings{Expandable: true}, 512, 2 * mib, 512},
		{"no caching", Settings{NoCaching: true}, 3 * mib, 3 * mib, 3 * mib},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := New(test.settings)
			b := a.Allocate(test.size, 0, 0)
			if a.Reserved != test.reserved || b.Size != test.block || a.Allocated != test.block {
				t.Errorf("reserved %d, block %d, allocated %d; want %d, %d", a.Reserved, b.Size, a.Allocated, test.reserved, test.block)
			}
		})
	}
}

func all(n uint64) (d [16]uint64) {
	for i := range d {
		d[i] = n
	}
	return d
}

func TestReuse(t *testing.T) {
	a := New(Settings{})
	one, two := a.Allocate(4*mib, 0, 0), a.Allocate(6*mib, 0, 0)
	if two.Address != one.Address+4*mib {
		t.Errorf("the second tensor is at %#x, want right after the first", two.Address)
	}
	first := one.Address
	a.Free(one)
	a.Free(two)
	if b := a.Allocate(19*mib, 0, 0); b.Address != first || b.Size != 20*mib || a.Reserved != 20*mib {
		t.Errorf("block of %d at %#x, %d reserved: free blocks did not merge", b.Size, b.Address, a.Reserved)
	}
	if b := a.Allocate(4*mib, 1, 0); b.Address-first < 20*mib || a.Reserved != 40*mib {
		t.Error("a stream was served from another one's segment")
	}
	if b := a.Allocate(4*mib, 0, 1); b == nil || a.Reserved != 60*mib {
		t.Error("a private pool was served from another one's segment")
	}
}

func TestBestFit(t *testing.T) {
	a := New(Settings{})
	var free []*Block
	for _, n := range []uint64{40, 24, 30} {
		free = append(free, a.Allocate(n*mib, 0, 0))
	}
	want := free[1].Address
	for _, b := range free {
		a.Free(b)
	}
	if b := a.Allocate(23*mib, 0, 0); b.Address != want {
		t.Error("not the smallest block that fits")
	}
}

func TestMaxSplit(t *testing.T) {
	a := New(Settings{MaxSplit: 32 * mib})
	big := a.Allocate(64*mib, 0, 0)
	a.Free(big)
	if a.Allocate(4*mib, 0, 0); a.Reserved != 84*mib {
		t.Errorf("%d reserved: a block beyond max_split_size_mb was cut", a.Reserved)
	}
	if b := a.Allocate(40*mib, 0, 0); b.Size != 40*mib || a.Reserved != 124*mib {
		t.Errorf("block of %d: 64 MiB exceed 40 by more than max_non_split_rounding_mb", b.Size)
	}
	if b := a.Allocate(50*mib, 0, 0); b.Size != 64*mib || a.Reserved != 124*mib {
		t.Errorf("block of %d, %d reserved: a block that is larger by less than 20 MiB serves whole", b.Size, a.Reserved)
	}
}

func TestOutOfMemory(t *testing.T) {
	a := New(Settings{Limit: 100 * mib})
	keep := a.Allocate(20*mib, 0, 0)
	for range 3 {
		a.Free(a.Allocate(24*mib, 0, 0))
	}
	other := a.Allocate(22*mib, 0, 0)
	a.Free(a.Allocate(50*mib, 0, 0))
	if b := a.Allocate(70*mib, 0, 0); b != nil {
		t.Error("70 MiB were served beside 42 of 100")
	}
	if a.Reserved != 44*mib && a.Reserved != 42*mib {
		t.Errorf("%d reserved: the cache was not given back", a.Reserved)
	}
	a.Free(keep)
	a.Free(other)
	if b := a.Allocate(90*mib, 0, 0); b == nil || a.Reserved != 90*mib {
		t.Error("what is cached was not given back for a request")
	}
}

func TestCollect(t *testing.T) {
	a := New(Settings{Fraction: 100 * mib, Threshold: 0.5})
	for _, n := range []uint64{20, 22, 24} {
		a.Free(a.Allocate(n*mib, 0, 0))
	}
	before := a.Reserved
	if a.Allocate(30*mib, 0, 0); a.Reserved >= before+30*mib {
		t.Errorf("%d reserved: nothing was given back above the threshold", a.Reserved)
	}
}

func TestEmptyExpandable(t *testing.T) {
	a := New(Settings{Expandable: true})
	one := a.Allocate(30*mib, 0, 0)
	two := a.Allocate(100*mib, 0, 0)
	a.Free(one)
	a.EmptyCache()
	if a.Reserved != 120*mib {
		t.Errorf("%d reserved, want the pieces without a tensor given back", a.Reserved)
	}
	if b := a.Allocate(25*mib, 0, 0); b.Address >= two.Address {
		t.Error("addresses that were unmapped are not used again")
	}
	a.Free(two)
	a.EmptyCache()
}

// A request that is larger than a segment's addresses is refused, and leaves nothing behind.
func TestLargerThanExpandable(t *testing.T) {
	a := New(Settings{Expandable: true, Memory: 1 << 30})
	for range 2 {
		if b := a.Allocate(400<<30, 0, 0); b != nil || a.Reserved != 0 {
			t.Errorf("%+v, %d reserved", b, a.Reserved)
		}
	}
	if b := a.Allocate(900*mib, 0, 0); b == nil {
		t.Error("no room for less than the GPU has")
	}
}

// The peak is when most was in tensors while most was reserved, which is after the request
// that made CUDA provide it.
func TestPeak(t *testing.T) {
	a, r := New(Settings{}), &Run{}
	blocks := map[uint32]*Block{}
	add := func(q Request) {
		switch q.Op {
		case Make:
			blocks[q.Tensor] = a.Allocate(uint64(q.Units)*unit, 0, 0)
			r.Addresses = append(r.Addresses, blocks[q.Tensor].Address)
		case Free:
			a.Free(blocks[q.Tensor])
		}
		r.Requests, r.Reserved = append(r.Requests, q), append(r.Reserved, uint32(a.Reserved/unit))
	}
	const units = mib / unit
	for _, q := range []Request{
		{Op: Make, Tensor: 0, Units: 40 * units},
		{Op: Free, Tensor: 0},
		{Op: Make, Tensor: 1, Units: 60 * units}, // 100 MiB are reserved
		{Op: Make, Tensor: 2, Units: 38 * units}, // and now 98 of them in tensors
		{Op: Free, Tensor: 2},
		{Op: Make, Tensor: 3, Units: 20 * units},
	} {
		add(q)
	}
	for name, got := range map[string]Result{"played": r.Play(Settings{}, -1), "checked": r.Check(Settings{}).Result} {
		want := Result{Peak: 100 * mib, Allocated: 98 * mib, ReachedAt: 2, PeakAt: 3, Segments: 2, Failed: -1}
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// A limit of the program's own counts what a segment would have, though an expandable one would
// map less: alloc_block of PyTorch 2.1 and later.
func TestFraction(t *testing.T) {
	for _, test := range []struct {
		settings Settings
		served   bool
	}{
		{Settings{Limit: 60 * mib}, false}, // a segment of 30 MiB beside 40
		{Settings{Fraction: 60 * mib}, false},
		{Settings{Limit: 60 * mib, Expandable: true}, true}, // 20 MiB more
		{Settings{Fraction: 60 * mib, Expandable: true}, false},
		{Settings{Fraction: 70 * mib, Expandable: true}, true},
	} {
		a := New(test.settings)
		a.Allocate(25*mib, 0, 0)
		if !test.settings.Expandable { // what is reserved is the same
			a.Allocate(14*mib, 0, 0)
		}
		if b := a.Allocate(30*mib, 0, 0); (b != nil) != test.served {
			t.Errorf("%+v: %d reserved, served %t", test.settings, a.Reserved, b != nil)
		}
	}
}

// What holds whatever is asked: no two tensors overlap, neighbours that are free are one
// block, and what is reserved is what segments have.
func TestInvariants(t *testing.T) {
	for _, s := range []Settings{{}, {Expandable: true}, {MaxSplit: 32 * mib}, {Divisions: all(4)}, {Limit: 400 * mib}, {Limit: 400 * mib, Expandable: true}, {Fraction: 300 * mib, Threshold: 0.3}, {NoCaching: true}} {
		r := rand.New(rand.NewPCG(1, 2))
		a := New(s)
		var live []*Block
		for range 4000 {
			switch n := r.IntN(100); {
			case n == 0:
				a.EmptyCache()
			case n < 55:
				size := r.Uint64N(3000) + 1
				if r.IntN(3) == 0 {
					size = r.Uint64N(40*mib) + 1
				}
				if b := a.Allocate(size, uint8(r.IntN(2)), uint8(r.IntN(2))); b != nil {
					if b.Size < size {
						t.Fatalf("%+v: a block of %d for %d", s, b.Size, size)
					}
					live = append(live, b)
				}
			case len(live) > 0:
				i := r.IntN(len(live))
				a.Free(live[i])
				live = slices.Delete(live, i, i+1)
			}
			a.verify(t, live)
		}
	}
}

func (a *Allocator) verify(t *testing.T, live []*Block) {
	t.Helper()
	sorted := slices.Clone(live)
	slices.SortFunc(sorted, func(a, b *Block) int {
		if a.Address < b.Address {
			return -1
		}
		return 1
	})
	var allocated uint64
	segments := map[*Segment]bool{}
	for i, b := range sorted {
		allocated += b.Size
		if i > 0 && sorted[i-1].Address+sorted[i-1].Size > b.Address {
			t.Fatalf("%+v: two tensors overlap", a.Settings)
		}
		segments[b.segment] = true
	}
	if allocated != a.Allocated {
		t.Fatalf("%+v: %d allocated, want %d", a.Settings, a.Allocated, allocated)
	}
	if a.NoCaching {
		if a.Reserved != allocated {
			t.Fatalf("%d reserved without caching, want %d", a.Reserved, allocated)
		}
		return
	}
	for _, p := range a.pools {
		for _, b := range p.all() {
			segments[b.segment] = true
		}
	}
	var reserved uint64
	for s := range segments {
		at := s.Address
		for b := s.first; b != nil; b = b.next {
			if b.Address != at {
				t.Fatalf("%+v: a gap in a segment at %#x", a.Settings, at)
			}
			if n := b.next; n != nil && b.free && n.free && b.mapped == n.mapped {
				t.Fatalf("%+v: two free blocks side by side", a.Settings)
			}
			at += b.Size
			if b.mapped {
				reserved += b.Size
			}
		}
	}
	if reserved != a.Reserved {
		t.Fatalf("%+v: %d reserved, segments have %d", a.Settings, a.Reserved, reserved)
	}
}

func TestSet(t *testing.T) {
	for _, test := range []struct {
		name, value string
		want        Settings
		wrong       bool
	}{
		{"expandable_segments", "True", Settings{Expandable: true}, false},
		{"max_split_size_mb", "128", Settings{MaxSplit: 128 * mib}, false},
		{"max_split_size_mb", "20", Settings{}, true},
		{"max_split_size_mb", "18446744073709551615", Settings{}, true},
		{"large_segment_size_mb", "32", Settings{LargeSegment: 32 * mib}, false},
		{"large_segment_size_mb", "9", Settings{}, true},
		{"garbage_collection_threshold", "0.8", Settings{Threshold: 0.8}, false},
		{"garbage_collection_threshold", "NaN", Settings{}, true},
		{"roundup_power2_divisions", "4", Settings{Divisions: all(4)}, false},
		{"roundup_power2_divisions", "3", Settings{}, true},
		{"roundup_power2_divisions", "[256:1,512:2,>:8]", Settings{Divisions: [16]uint64{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 8, 8, 8, 8, 8, 8}}, false},
		{"roundup_power2_divisions", "[256:1,", Settings{}, true},
		{"backend", "native", Settings{}, true},
	} {
		var s Settings
		if err := s.Set(test.name, test.value); (err != nil) != test.wrong || err == nil && s != test.want {
			t.Errorf("%s:%s: %+v, %v", test.name, test.value, s, err)
		}
	}
}

// One pair of requests in a heap of a thousand tensors.
func BenchmarkPlay(b *testing.B) {
	r := rand.New(rand.NewPCG(3, 4))
	var live []*Block
	a := New(Settings{})
	for b.Loop() {
		size := r.Uint64N(3000) + 1
		if r.IntN(3) == 0 {
			size = r.Uint64N(8*mib) + 1
		}
		live = append(live, a.Allocate(size, 0, 0))
		if len(live) > 1000 {
			i := r.IntN(len(live))
			a.Free(live[i])
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
		}
	}
}
