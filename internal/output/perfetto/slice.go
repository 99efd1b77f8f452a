package perfetto

import (
	"cmp"
	"iter"
	"slices"

	"github.com/google/btree"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/observe"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

const (
	// maxSlices bounds the slices: a trace of more is too large to be looked at.
	maxSlices = 1 << 20
	// maxLanes bounds the tracks that slices lie on.
	maxLanes = 1 << 16
	// maxOver bounds the allocations that one record ends and that are put in order.
	maxOver = 1 << 16
)

// A lane is a track whose slices do not overlap.
type lane struct {
	end  uint64 // of the latest slice
	uuid uint64
}

// lives are the lives of allocations, as slices. One is written when its end is known,
// onto the lane that has been free for the shortest time.
type lives struct {
	lanes map[laneKey]*btree.BTreeG[lane]
	n     int    // lanes
	all   int    // slices
	over  []life // ended by the latest record, in no order
}

type laneKey struct {
	proc event.Process
	name string
}

// A life is one allocation that ended, or did not.
type life struct {
	ledger.Allocation
	end  uint64
	over bool
}

// live writes a slice.
func (t *plot) live(l *life) {
	x := t.label(l.Site)
	p := t.survey.processes[l.Proc]
	if x == nil || p == nil || t.all >= maxSlices {
		t.lost.Add(lossSlices, 1)
		return
	}
	key := laneKey{l.Proc, x.counters[0] + ", each"}
	free := t.lanes[key]
	if free == nil {
		free = btree.NewG(16, func(a, b lane) bool { return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.uuid, b.uuid)) < 0 })
		t.lanes[key] = free
	}
	on := lane{}
	free.DescendLessOrEqual(lane{l.Time, ^uint64(0)}, func(x lane) bool {
		on = x
		return false
	})
	if on.uuid == 0 {
		if t.n >= maxLanes {
			t.lost.Add(lossSlices, 1)
			return
		}
		t.n++
		on.uuid = t.out.track(key.name, p.uuid, 0, nil)
	} else {
		free.Delete(on)
	}
	t.all++
	l.end = max(l.end, l.Time)
	var a args
	a.int("bytes", int64(l.Size))
	if l.Handle != 0 || l.Space.Handles() {
		a.pointer("handle", cmp.Or(l.Handle, l.Addr))
	} else {
		a.pointer("address", l.Addr)
	}
	a.message = append(a.message, x.args...)
	t.out.named(on.uuid, l.Time, typeBegin, cmp.Or(x.title, "allocation"), a.message)
	if !l.over {
		return // the lane is in use for good
	}
	t.out.end(on.uuid, l.end)
	on.end = l.end
	free.ReplaceOrInsert(on)
}

// rest writes the lives of allocations that whose has chosen, which end at a time, or do not end.
func (t *plot) rest(rows iter.Seq[ledger.Allocation], whose func(event.Process) bool, end uint64, over bool) {
	var all []life
	for a := range rows {
		switch {
		case !whose(a.Proc):
		case t.all+len(all) >= maxSlices:
			t.lost.Add(lossSlices, 1)
		default:
			all = append(all, life{a, end, over})
		}
	}
	t.write(all)
}

// writeOver writes the lives that the latest record ended.
func (t *plot) writeOver() {
	t.write(t.over)
	t.over = t.over[:0]
}

func (t *plot) write(all []life) {
	slices.SortFunc(all, func(a, b life) int {
		return cmp.Or(observe.CompareProcesses(a.Proc, b.Proc), cmp.Compare(a.Time, b.Time), cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Handle, b.Handle), cmp.Compare(a.Space, b.Space))
	})
	for i := range all {
		t.live(&all[i])
	}
}

// describe returns the name and the annotations that the slices of a site share.
func describe(x *snapshot.Sample) (title string, out message) {
	var a args
	a.text("kind", x.Kind)
	a.text("api", x.API)
	a.text("GPU", x.GPU)
	a.text("owner", x.Owner)
	a.text("category", x.Category)
	a.text("operator", x.Operator)
	a.text("module", x.Module)
	a.texts("stack", leafLines(x.Frames()))
	return render.Brief(x.Frames(), 2), a.message
}
