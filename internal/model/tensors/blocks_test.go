package tensors

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Blocks that lie side by side are of one segment, and what is free in it can be given back if it is whole, or
// as whole pages.
func TestOfBlocks(t *testing.T) {
	const mib = 1 << 20
	graph, pages := holder.PoolID{First: 1}, holder.Block{Expandable: true}
	var a holder.Allocator
	at := uint64(1 << 40)
	begin := true
	add := func(like holder.Block, state holder.BlockState, size uint64) {
		like.Address, like.Size, like.State, like.First = at, size, state, begin && state != holder.Unmapped
		begin = state == holder.Unmapped
		at += size
		a.Blocks = append(a.Blocks, like)
	}
	segment := func() { begin = true }
	add(holder.Block{Small: true}, holder.Allocated, 512)
	add(holder.Block{Small: true}, holder.Free, 2*mib-512)
	segment()
	add(holder.Block{Small: true}, holder.Free, 2*mib)
	segment()
	add(holder.Block{}, holder.Free, 5*mib)
	add(holder.Block{}, holder.Waiting, 6*mib)
	add(holder.Block{}, holder.Free, 9*mib)
	segment()
	add(holder.Block{}, holder.Free, 34*mib)
	segment()
	add(holder.Block{Private: graph}, holder.Free, 20*mib)
	segment()
	add(pages, holder.Allocated, 13*mib)
	add(pages, holder.Free, 30*mib) // it has the page from 20 to 40 MiB
	add(pages, holder.Allocated, 37*mib)
	add(pages, holder.Unmapped, 1<<37)
	add(pages, holder.Free, 40*mib)
	add(pages, holder.Unmapped, 1<<37)
	want := []snapshot.Segments{
		{Class: "small", Small: true, Count: 2, Reserved: 4 * mib, Allocated: 512, Cached: 4*mib - 512, FreeBlocks: 2, LargestFree: 2 * mib, Releasable: 2 * mib},
		{Class: "large", Count: 1, Reserved: 20 * mib, Allocated: 6 * mib, Cached: 14 * mib, FreeBlocks: 2, LargestFree: 9 * mib},
		{Class: "larger", Count: 1, Reserved: 34 * mib, Cached: 34 * mib, FreeBlocks: 1, LargestFree: 34 * mib, Releasable: 34 * mib},
		{Class: "expandable_large", Expandable: true, Count: 2, Reserved: 120 * mib, Allocated: 50 * mib, Cached: 70 * mib, FreeBlocks: 2, LargestFree: 40 * mib, Releasable: 60 * mib},
		{Class: "large", Private: "1.0", Count: 1, Reserved: 20 * mib, Cached: 20 * mib, FreeBlocks: 1, LargestFree: 20 * mib, Kept: 20 * mib},
	}
	var got []snapshot.Segments
	for _, s := range OfBlocks(&a) {
		got = append(got, s.Shown())
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}
