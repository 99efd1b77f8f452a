package state

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// A stack looks as its places are named then: before, after, and once more; and another
// stack that comes under its id is another.
func TestShapesFollowNames(t *testing.T) {
	s, shapes := New(), NewShapes()
	id := event.Process{PID: 7, Start: event.StartUnit}
	s.Apply(&record.Trace{APIs: []string{"", "cuMemAlloc_v2"}})
	s.Apply(&record.Process{Process: id, Target: true, Name: "prog"})
	place := record.NewPlace(1, 4096, nil, nil)
	s.Apply(&record.Stack{ID: 1, Process: id, Frames: []*record.Place{place}})
	s.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Time: 1, Proc: id, API: 1, Stack: 1, Addr: 1, Size: 1})
	check := func(want string) {
		t.Helper()
		got := s.View(Want{Shapes: shapes}).Snapshot()
		if d := cmp.Diff(s.View(Want{}).Snapshot(), got); d != "" {
			t.Fatalf("not as a snapshot without shapes (-want +got):\n%s", d)
		}
		if f := got.Samples[0].Stack[1].Lines[0].Function; f != want {
			t.Errorf("it is %s, want %s", f, want)
		}
	}
	name := func(p *record.Place, f string, final bool) {
		(&record.Name{Place: p, Final: final, Location: &snapshot.Location{Address: 4096, Lines: []snapshot.Line{{Function: f}}}}).Apply()
	}
	check("[not named yet]")
	name(place, "first", false)
	check("first")
	name(place, "second", true)
	check("second")
	check("second")
	s.Apply(&event.Event{Op: event.OpFree, Time: 2, Proc: id, Addr: 1})
	s.stacks.Mark(func(uint64) bool { return false })
	s.stacks.Drop(func(uint64) bool { return false })
	other := record.NewPlace(2, 4096, nil, nil)
	name(other, "other", true)
	s.Apply(&record.Stack{ID: 1, Process: id, Frames: []*record.Place{other}})
	check("other")
}

// Where stacks come and go for months, those that went are not kept.
func TestShapesForget(t *testing.T) {
	s, shapes := New(), NewShapes()
	id := event.Process{PID: 7, Start: event.StartUnit}
	s.Apply(&record.Trace{APIs: []string{"", "cuMemAlloc_v2"}})
	most := 0
	for i := range uint64(3 * manyShapes) {
		place := record.NewPlace(i+1, 4096*i, nil, nil)
		(&record.Name{Place: place, Final: true, Location: &snapshot.Location{Address: 4096 * i, Lines: []snapshot.Line{{Function: "f"}}}}).Apply()
		s.Apply(&record.Stack{ID: i + 1, Process: id, Frames: []*record.Place{place}})
		s.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Time: 2*i + 1, Proc: id, API: 1, Stack: i + 1, Addr: 1, Size: 1})
		x := s.Select(nil, []*ledger.Site{{SiteKey: ledger.SiteKey{Proc: id, Stack: i + 1, Kind: event.KindDevice, API: 1}}}, 0)
		v := &View{trace: x.trace, names: x.names, sites: x.sites}
		v.want.Shapes = shapes
		if n := len(v.Snapshot().Samples); n != 1 {
			t.Fatalf("%d samples", n)
		}
		most = max(most, len(shapes.located))
		s.Apply(&event.Event{Op: event.OpFree, Time: 2*i + 2, Proc: id, Addr: 1})
	}
	if most > manyShapes+shapesPerShown+1 {
		t.Errorf("%d stacks are kept of which one is shown", most)
	}
}

// Rows of one call site are those of all that are its.
func TestLiveOf(t *testing.T) {
	job := &recordtest.Training{Stacks: 20, Depth: 5, Live: 200, Pieces: 200}
	s := New()
	job.Begin(s.Apply)
	for range 2000 {
		s.Apply(job.Next())
	}
	v := s.View(Want{Live: true})
	all := v.Snapshot()
	rows := 0
	i := 0
	for key := range v.Sites {
		got := s.View(Want{Live: true, LiveOf: []ledger.SiteKey{key}}).Snapshot()
		var want []snapshot.Allocation
		for _, a := range all.Live {
			if a.Sample == i {
				want = append(want, a)
			}
		}
		if d := cmp.Diff(want, got.Live); d != "" {
			t.Fatalf("%+v (-want +got):\n%s", key, d)
		}
		rows += len(want)
		i++
	}
	if rows == 0 || rows != len(all.Live) {
		t.Errorf("%d rows of %d", rows, len(all.Live))
	}
	if got := s.View(Want{Live: true, LiveOf: []ledger.SiteKey{}}).Snapshot(); len(got.Live) != 0 {
		t.Errorf("%d rows of no site", len(got.Live))
	}
}
