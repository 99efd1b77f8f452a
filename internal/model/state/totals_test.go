package state

import (
	"fmt"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// stackOf is a stack of one frame in a library.
func stackOf(id uint64, library string) *record.Stack {
	m := &snapshot.Mapping{Start: 0x1000, Limit: 0x2000, Path: "/usr/lib/" + library}
	l := &snapshot.Location{Address: 0x1000 + id, Mapping: m, Lines: []snapshot.Line{{Function: "f"}}}
	return &record.Stack{ID: id, Frames: []*record.Place{record.NewPlace(id, l.Address, l, nil)}}
}

// ever adds up what totals say was ever allocated and freed, in bytes.
func ever(t *Totals) (allocated, freed int64) {
	for _, g := range t.Groups {
		allocated += g.AllocBytes
		freed += g.FreedBytes
	}
	return allocated, freed
}

// Counters have all that ended processes allocated, whether or not anybody looked while
// they lived, and never fall when those processes leave the state.
func TestCountersOfEnded(t *testing.T) {
	s := begun(record.Trace{All: true})
	s.Apply(stackOf(1, "libtorch.so"))
	before := map[Group]GroupFigures{}
	for i := range uint64(5000) { // more than are kept
		id := event.Process{PID: uint32(100 + i), Start: event.StartUnit}
		e := alloc(id, 10*i+1, 0x1000, mib)
		e.Stack = 1
		s.Apply(e)
		if i%3 == 0 {
			s.Apply(free(id, 10*i+2, 0x1000))
		}
		s.Apply(exit(id, 10*i+3))
		if i%1000 == 0 {
			s.Apply(&record.Reported{})
		}
		if i%700 == 0 {
			totals := s.View(Want{Totals: true}).Totals()
			if allocated, freed := ever(totals); allocated != int64(i+1)*mib || freed != allocated {
				t.Fatalf("after %d processes: %d allocated, %d freed", i+1, allocated, freed)
			}
			for _, g := range totals.Groups {
				if old := before[g.Group]; g.AllocBytes < old.AllocBytes || g.FreedObjects < old.FreedObjects {
					t.Errorf("%+v after %+v", g, old)
				}
				before[g.Group] = g
			}
		}
	}
	s.Apply(&record.Reported{})
	totals := s.View(Want{Totals: true}).Totals()
	if allocated, freed := ever(totals); allocated != 5000*mib || freed != allocated || len(totals.Groups) != 1 || totals.Groups[0].Owner != "pytorch" {
		t.Errorf("%d allocated, %d freed, groups %+v", allocated, freed, totals.Groups)
	}
}

// However many owners programs make up, so many are told apart, the same ones for ever, and
// those of the table always: the rest is one, and the sum stays.
func TestOwnersBounded(t *testing.T) {
	s := begun(record.Trace{})
	const made = 1000
	add := func(id uint64, library string) {
		s.Apply(stackOf(id, library))
		e := alloc(prog, 10+id, id<<20, mib)
		e.Stack = id
		s.Apply(e)
	}
	apart := func() map[string]int64 {
		out := map[string]int64{}
		for _, g := range s.View(Want{Totals: true}).Totals().Groups {
			if g.Kind == event.KindDevice {
				out[g.Owner] += g.LiveBytes
			}
		}
		return out
	}
	for id := range uint64(made) {
		add(id+1, fmt.Sprintf("libmade%d.so", id))
	}
	first := apart()
	if len(first) != maxOwners+1 || first[OtherOwners] != (made-maxOwners)*mib {
		t.Fatalf("%d owners, %d bytes of others", len(first), first[OtherOwners])
	}
	add(made+1, "libtorch.so")
	add(made+2, "libmore.so")
	again := apart()
	if again["pytorch"] != mib || again[OtherOwners] != first[OtherOwners]+mib {
		t.Errorf("pytorch has %d bytes, others %d", again["pytorch"], again[OtherOwners])
	}
	for owner, bytes := range first {
		if owner != OtherOwners && again[owner] != bytes {
			t.Errorf("%s had %d bytes, and has %d", owner, bytes, again[owner])
		}
	}
	if s.groups.folded == 0 {
		t.Error("it is not counted that owners were folded")
	}
}

// What a stack counts before its names were looked for waits for them.
func TestCountersWaitForNames(t *testing.T) {
	s := begun(record.Trace{})
	m := &snapshot.Mapping{Start: 0x1000, Limit: 0x2000, Path: "/usr/bin/prog"}
	place := record.NewPlace(1, 0x1001, nil, nil)
	s.Apply(&record.Stack{ID: 1, Frames: []*record.Place{place}})
	e := alloc(prog, 10, 0x1000, mib)
	e.Stack = 1
	s.Apply(e)
	if got := s.View(Want{Totals: true}).Totals(); len(got.Groups) != 1 || got.Groups[0].LiveBytes != mib || got.Groups[0].AllocBytes != 0 {
		t.Errorf("before names: %+v", got.Groups)
	}
	s.Apply(&record.Name{Place: place, Location: &snapshot.Location{Address: 0x1001, Mapping: m, Lines: []snapshot.Line{{Function: "ncclCommInit"}}}, Final: true})
	got := s.View(Want{Totals: true}).Totals()
	if allocated, _ := ever(got); allocated != mib {
		t.Errorf("%d allocated", allocated)
	}
	for _, g := range got.Groups {
		if (g.LiveBytes != 0 || g.AllocBytes != 0) && g.Owner != "nccl" {
			t.Errorf("after: %+v", g)
		}
	}
}

// Calls of a thread that fail one soon after the other are one failure; they are counted
// where nobody wants a report of them, and when their process is gone.
func TestTotalsOutOfMemory(t *testing.T) {
	s := begun(record.Trace{All: true})
	fail := func(at uint64) {
		e := alloc(prog, at, 0, 8*mib)
		e.Result = event.OutOfMemory
		s.Apply(e)
	}
	for i := range uint64(10) {
		fail(10 + i)
	}
	fail(10 + 3*recoveryWindow)
	s.Apply(exit(prog, 20+3*recoveryWindow))
	s.Apply(&record.Reported{})
	got := s.View(Want{Totals: true}).Totals()
	var all, failed int64
	for _, n := range got.OutOfMemory {
		all += n
	}
	for _, g := range got.Groups {
		failed += g.FailedObjects
	}
	if len(got.Latest) != 2 || got.Latest[1].Number != 2 || got.Latest[1].Requested != 8*mib || got.Latest[1].PID != int(prog.PID) || got.Latest[1].Process != "prog" {
		t.Errorf("the latest are %+v", got.Latest)
	}
	if all != 2 || failed != 11 {
		t.Errorf("%d failures of %d calls: %+v", all, failed, got.OutOfMemory)
	}
}

// sameTotals wants totals to be what the samples of a snapshot add up to, by GPU and kind.
func sameTotals(t *testing.T, s *State) {
	t.Helper()
	type of struct{ gpu, kind string }
	v := s.View(Want{Totals: true})
	want, got := map[of][3]int64{}, map[of][3]int64{}
	add := func(to map[of][3]int64, k of, x [3]int64) {
		if x != ([3]int64{}) {
			sum := to[k]
			for i := range x {
				sum[i] += x[i]
			}
			to[k] = sum
			if sum == ([3]int64{}) {
				delete(to, k)
			}
		}
	}
	for _, x := range v.Snapshot().Samples {
		add(want, of{x.GPU, x.Kind}, [3]int64{x.InuseObjects, x.InuseBytes, x.PeakBytes})
	}
	for _, g := range v.Totals().Groups {
		add(got, of{g.GPU, g.Kind.String()}, [3]int64{g.LiveObjects, g.LiveBytes, g.PeakBytes})
	}
	expect(t, "totals", want, got)
}

// GPUs that processes make up are told apart up to a bound, and so are groups; sums stay.
func TestGroupsBounded(t *testing.T) {
	s := begun(record.Trace{})
	const made = 20
	for i := range uint64(1000) {
		id := event.Process{PID: uint32(100 + i), Start: event.StartUnit}
		s.Apply(stackOf(i+1, fmt.Sprintf("libmade%d.so", i%made)))
		e := alloc(id, 10+i, 0x1000, mib)
		e.Device, e.Stack = int32(i), i+1
		s.Apply(e)
		for kind := event.KindArray; kind < event.KindManaged; kind++ { // three more, on each
			e := alloc(id, 10+i, uint64(kind)<<32, mib)
			e.Device, e.Stack, e.Kind = int32(i), i+1, kind
			s.Apply(e)
		}
	}
	totals := s.View(Want{Totals: true}).Totals()
	gpus, sum, others := map[string]bool{}, int64(0), int64(0)
	for _, g := range totals.Groups {
		gpus[g.GPU] = true
		sum += g.LiveBytes
		if g.GPU == OtherGPUs {
			others += g.LiveBytes
		}
	}
	if len(gpus) != maxGPUs+1 || sum != 4000*mib || others != (1000-maxGPUs)*4*mib {
		t.Errorf("%d GPUs, %d bytes, %d of others", len(gpus), sum, others)
	}
	if len(totals.Groups) > maxGroups+int(event.NumKinds)*(maxGPUs+1) {
		t.Errorf("%d groups", len(totals.Groups))
	}
	for i := range uint64(3 * maxGroups) { // as many owners as fit on one more GPU
		k := s.groups.admit(Group{fmt.Sprint(i), event.KindDevice, "pytorch"})
		if i > maxGroups && k.Owner != OtherOwners {
			t.Fatalf("group %d is %+v", i, k)
		}
	}
}
