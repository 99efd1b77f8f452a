package timeline

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

// never is the end of what is live at the end.
const never = math.MaxUint64

// A life is memory that lay at addresses [from, to) from begin until end, in
// nanoseconds of CLOCK_MONOTONIC.
type life struct {
	proc       event.Process
	from, to   uint64
	begin, end uint64
	leaf       int32
	tensor     bool // it lies in memory that the driver handed out
}

// A spot is where in a process a life is that has not ended.
type spot struct {
	from   uint64
	tensor bool
}

// A madeAt is the stack of a process that made tensors.
type madeAt struct {
	proc  event.Process
	stack uint64
}

// lives are where memory lay. Where there are too many, only the lives at some of the moments
// remain: the page shows another moment as the moment before it.
type lives struct {
	all    []life
	live   map[event.Process]map[spot]int // into all
	ended  int                            // of all
	news   []tensors.Piece
	leaves map[madeAt]int32 // of tensors
	leafOf func(*ledger.Site) int32
	max    int // lives
	// moments are those before until that have all lives; after until every moment has.
	moments []uint64
	until   uint64
	most    int // moments
}

// name stores the leaf of tensors that a stack made.
func (l *lives) name(id event.Process, stack uint64, leaf int32) {
	if l.leaves == nil {
		l.leaves = map[madeAt]int32{}
	}
	l.leaves[madeAt{id, stack}] = leaf
}

// add adds what the latest record changed.
func (l *lives) add(w *run, now uint64) {
	if l.live == nil {
		l.live = map[event.Process]map[spot]int{}
	}
	for i := range l.news {
		c := &l.news[i]
		live, at := l.live[c.Proc], spot{c.From, c.Site == nil}
		if i, ok := live[at]; ok {
			l.all[i].end = now
			l.ended++
			delete(live, at)
		}
		if c.Ended {
			continue
		}
		leaf := int32(-1) // of a tensor whose site has no leaf: there is none
		if c.Site != nil {
			leaf = l.leafOf(c.Site)
		} else if made, ok := l.leaves[madeAt{c.Proc, c.Stack}]; ok {
			leaf = made
		}
		if len(l.all) >= l.max && !l.prune(w, now) {
			w.lost.Add(lossLives, 1)
			continue
		}
		keyed.Map(l.live, c.Proc)[at] = len(l.all)
		l.all = append(l.all, life{proc: c.Proc, from: c.From, to: c.To, begin: now, end: never, leaf: leaf, tensor: c.Site == nil})
	}
	l.news = l.news[:0]
}

// endAll ends what a process has, or all have.
func (l *lives) endAll(now uint64, id *event.Process) {
	if id == nil {
		for id := range l.live {
			l.endAll(now, &id)
		}
		return
	}
	for _, i := range l.live[*id] {
		l.all[i].end = now
		l.ended++
	}
	delete(l.live, *id)
}

// prune forgets lives that were there at none of the chosen moments, and reports whether that
// made room.
func (l *lives) prune(w *run, now uint64) bool {
	before := len(l.all)
	if l.ended < before/8 {
		return false
	}
	if l.most == 0 {
		l.most = 1 << 16
	}
	for {
		l.choose(w, now)
		l.forget()
		if len(l.all) <= before*3/4 {
			return true
		}
		if l.most == 1 {
			return len(l.all) < before
		}
		l.most = max(l.most/4, 1)
	}
}

// choose chooses moments until now: of instants of the stream.
func (l *lives) choose(w *run, now uint64) {
	times := slices.Clone(l.moments)
	w.stream.Times(l.until, func(t uint64) { times = append(times, t) })
	times = slices.Compact(times)
	step := (len(times) + l.most - 1) / l.most
	l.moments = l.moments[:0]
	for i := 0; i < len(times); i += max(step, 1) {
		l.moments = append(l.moments, times[i])
	}
	l.until = now
}

func (l *lives) forget() {
	kept := l.all[:0]
	for i := range l.all {
		x := l.all[i]
		j, _ := slices.BinarySearch(l.moments, x.begin)
		if x.end < l.until && (j >= len(l.moments) || l.moments[j] >= x.end) {
			continue
		}
		if x.end == never {
			l.live[x.proc][spot{x.from, x.tensor}] = len(kept)
		}
		kept = append(kept, x)
	}
	l.ended -= len(l.all) - len(kept)
	l.all = kept
}

// finish puts all in order.
func (l *lives) finish(w *run) {
	l.add(w, w.Now)
	slices.SortFunc(l.all, func(a, b life) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), a.proc.Compare(b.proc), cmp.Compare(a.from, b.from), cmp.Compare(a.end, b.end))
	})
}
