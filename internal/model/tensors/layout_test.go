package tensors

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// A follower has what the pieces that it heard of add up to.
type follower struct {
	t    *testing.T
	when string
	held map[Piece]int // as it came, but for what is learnt; by how many were told of before
	all  []Piece
}

func (f *follower) hear(c Piece) {
	f.all = append(f.all, c)
	ended := c.Ended
	c.Ended, c.Pool, c.Device = false, false, 0 // Pool and Device are learnt
	came, there := f.held[c]
	switch {
	case ended && !there:
		f.t.Errorf("%s: %+v ended, and was not there", f.when, c)
	case !ended && there:
		f.t.Errorf("%s: %+v came, and was there", f.when, c)
	}
	for other, before := range f.held {
		over := c.Site != nil && other.Proc == c.Proc && other.From < c.To && c.From < other.To && other != c
		if over && (other.Site != nil || ended && before > came) {
			f.t.Errorf("%s: %+v came or ended over %+v", f.when, c, other)
		}
	}
	if ended {
		delete(f.held, c)
	} else {
		f.held[c] = len(f.all)
	}
}

// ends hears of the end of all that a process has, which is about to be forgotten.
func (f *follower) ends(l *Ledger, proc event.Process) {
	for c := range l.PieceEnds(proc) {
		f.hear(c)
	}
}

// TestPieces: after each of many random events what was told of adds up to what is
// there, and the same events are followed by the same pieces.
func TestPieces(t *testing.T) {
	for seed := range uint64(60) {
		first, again := follow(t, seed), follow(t, seed)
		if t.Failed() {
			return
		}
		for i := range first {
			first[i].Site, again[i].Site = nil, nil // of two ledgers
		}
		if !reflect.DeepEqual(first, again) {
			t.Fatalf("seed %d: the same events are followed by other pieces", seed)
		}
	}
}

func follow(t *testing.T, seed uint64) []Piece {
	r := rand.New(rand.NewPCG(seed, 2))
	f := &follower{t: t, held: map[Piece]int{}}
	l := New(ledger.Options{})
	l.Layout = true
	procs := []event.Process{{PID: 7, Start: 1}, {PID: 8, Start: 1}}
	sites := []*ledger.Site{{}, {}}
	sites[1].Kind = event.KindVMM
	for now := uint64(1); now < 500; now++ {
		f.when = fmt.Sprintf("seed %d, event %d", seed, now)
		proc := procs[r.IntN(2)]
		addr := 0x1000 + uint64(r.IntN(64))*256
		size := uint64(1+r.IntN(10)) * 128
		e := &event.Event{Kind: event.KindTensor, Time: now, Proc: proc, Addr: addr, Size: size, Stack: uint64(r.IntN(3)), Handle: event.NoTotal, Part: event.NoTotal}
		switch n := r.IntN(200); {
		case n < 90:
			e.Op = event.OpTensorAlloc
			l.Apply(e)
		case n < 150:
			e.Op = event.OpTensorFree
			l.Apply(e)
		case n < 170:
			l.began(proc, addr, addr+4*size, sites[r.IntN(2)])
		case n < 190:
			l.ended(proc, addr, addr+size)
		case n < 195:
			l.Apply(&event.Event{Op: event.OpExec, Time: now, Proc: proc})
		case n < 198:
			f.ends(l, proc)
			l.Forget(proc)
		default:
			l.Apply(&event.Event{Op: event.OpExit, Time: now, Proc: proc})
			f.ends(l, proc)
			l.Release(proc)
		}
		for c := range l.TakePieces {
			f.hear(*c)
		}
		held := map[Piece]bool{}
		for c := range l.Pieces {
			c.Pool, c.Device = false, 0
			held[c] = true
		}
		for c := range f.held {
			if !held[c] {
				t.Errorf("%s: %+v came, and is not there", f.when, c)
			}
		}
		if len(held) != len(f.held) {
			t.Errorf("%s: %d are there, the pieces add up to %d", f.when, len(held), len(f.held))
		}
		if t.Failed() {
			break
		}
	}
	return f.all
}

// A segment is a pool's when a tensor was handed out of its call site's memory, and
// that is known when it ends.
func TestPieceOfPool(t *testing.T) {
	var heard []Piece
	l := New(ledger.Options{})
	l.Layout = true
	proc := event.Process{PID: 7, Start: 1}
	pages, other := &ledger.Site{}, &ledger.Site{}
	pages.Kind = event.KindVMM
	l.began(proc, 2<<20, 4<<20, pages)
	l.began(proc, 4<<20, 6<<20, pages)
	l.began(proc, 32<<20, 40<<20, other)
	l.Apply(&event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Time: 1, Proc: proc, Addr: 2 << 20, Size: 512, Handle: event.NoTotal})
	l.ended(proc, 4<<20, 6<<20)
	l.ended(proc, 32<<20, 40<<20)
	for c := range l.TakePieces {
		heard = append(heard, *c)
	}
	type what struct{ ended, pool, expandable, small bool }
	var got []what
	for i := range heard {
		c := &heard[i]
		got = append(got, what{c.Ended, c.Pool, c.Expandable(), c.Small()})
	}
	want := []what{{}, {}, {}, {}, {true, true, true, true}, {ended: true}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
