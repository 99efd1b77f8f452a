package ledger

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// Memory that went is a block of the addresses from the block's beginning on, and of
// arrays the one handle.
func TestBlocks(t *testing.T) {
	const mib = 1 << 20
	went := blocksOf([]Backed{
		{Addr: 10*mib + 512, Block: 2 * mib},
		{Addr: 10*mib + 4096, Block: 512}, // in the same, and smaller
		{Addr: 20 * mib, Block: 6 * mib},
		{Addr: 31*mib + 100, Block: 64 << 10}, // far from the beginning of its block
		{Space: event.SpaceArray, Addr: 12 * mib, Block: 2 * mib},
	})
	for addr, want := range map[uint64]bool{
		10*mib - 1: false, 10 * mib: true, 11 * mib: true, 12*mib - 1: true, 12 * mib: false, 20 * mib: true, 26*mib - 1: true, 26 * mib: false,
		31*mib + 100: true, 31*mib + 101: false, 0: false,
	} {
		if got := went.have(Backed{Addr: addr}); got != want {
			t.Errorf("%#x: %v, want %v", addr, got, want)
		}
	}
	for addr, want := range map[uint64]bool{12 * mib: true, 12*mib + 1: false, 10 * mib: false} {
		if got := went.have(Backed{Space: event.SpaceArray, Addr: addr}); got != want {
			t.Errorf("array %#x: %v, want %v", addr, got, want)
		}
	}
	if blocks(nil).have(Backed{Addr: 1}) {
		t.Error("nothing has something")
	}
}
