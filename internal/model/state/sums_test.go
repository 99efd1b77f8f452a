package state

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// sameSums wants totals that are kept to be those that are added up afresh. Kept first: what
// they miss of what was counted, the others find.
func sameSums(t *testing.T, s *State, sums *Sums) {
	t.Helper()
	got := s.View(Want{Totals: true, Sums: sums}).Totals()
	want := s.View(Want{Totals: true}).Totals()
	got.Loss, want.Loss = nil, nil           // to look at a stack again may count again that it is folded
	for _, x := range []*Totals{got, want} { // a group without figures is there from its second look on
		x.Groups = slices.DeleteFunc(x.Groups, func(g GroupTotals) bool { return g == GroupTotals{Group: g.Group} })
	}
	if !reflect.DeepEqual(got, want) {
		a, b := reflect.ValueOf(got).Elem(), reflect.ValueOf(want).Elem()
		for i := range a.NumField() {
			if !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
				t.Fatalf("%s kept:\n%+v\nwant\n%+v", a.Type().Field(i).Name, a.Field(i), b.Field(i))
			}
		}
	}
}

// Totals that go on from those of the moment before are the same as all added up, after
// anything that may happen: names that come late, or twice; devices that come to be known;
// processes that begin, end, and are dropped; with the tensor layer, all of it or a sample.
func TestSumsAreTotals(t *testing.T) {
	looks, none := 0, 0
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 9))
		s, sums := New(), new(Sums)
		var later []record.Record
		n := 0
		physicalSteps(seed, 400, s, func(r record.Record) {
			switch r := r.(type) {
			case *record.Trace:
				r.All = seed%8 != 0
			case *record.Name:
				if rng.IntN(2) == 0 {
					last := *r
					if rng.IntN(2) == 0 {
						first := *r
						first.Final, first.Location = false, &snapshot.Location{Address: r.Location.Address, Lines: []snapshot.Line{{Function: "ncclCommInit"}}}
						s.Apply(&first)
					}
					later = append(later, &last)
					return
				}
			case *record.Stack:
				if rng.IntN(4) == 0 {
					later = append(later, r)
					return
				}
			case *record.Reading:
				switch rng.IntN(4) {
				case 0:
					r.Devices[0].Label = "7" // GPUs were numbered anew
				case 1: // the same, but for which GPU processes mean by a number
					first := *r
					first.Ordinals = nil
					s.Apply(&first)
					s.Apply(&record.Moment{Time: r.Time, Drained: true})
					sameSums(t, s, sums)
				}
			}
			s.Apply(r)
			if n++; n == 1 && seed%3 == 0 {
				s.Apply(&record.Tensors{Sample: 4096})
			}
			switch rng.IntN(20) {
			case 0, 1, 2, 3:
				sameSums(t, s, sums)
				looks++
				// At once again nothing is looked at.
				if v := s.View(Want{Totals: true, Sums: sums}); v.only != nil && len(v.sites)+len(v.physical)+len(v.tensors) == 0 {
					none++
					v.Totals()
				} else {
					v.Totals()
				}
			case 4:
				if len(later) > 0 {
					i := rng.IntN(len(later))
					s.Apply(later[i])
					later = append(later[:i], later[i+1:]...)
				}
			case 5:
				s.Apply(&record.Reported{})
			case 6:
				for id := range s.Living {
					s.Apply(&record.Process{Process: id, Name: "named", FromStart: rng.IntN(2) == 0})
					break
				}
			case 7:
				for id := range s.Living {
					if seed%3 == 0 {
						s.Apply(&record.Tensors{Sample: 4096, Allocators: []record.Allocator{{Process: id, Allocated: rng.Uint64N(1 << 30), Reserved: 1 << 30}}})
					} else { // an allocator's own totals
						s.Apply(&event.Event{Op: event.OpReserve, Space: event.SpaceTensor, Proc: id, Time: s.Now() + 1, Addr: 1 << 50, Size: mib, Handle: rng.Uint64N(1 << 30), Part: 1 << 30})
					}
					break
				}
				sameSums(t, s, sums)
			}
		})
		sameSums(t, s, sums)
	}
	if looks < 1000 || none < looks/4 {
		t.Errorf("%d looks, of which %d had nothing to look at when repeated", looks, none)
	}
}

// What has no room for its call sites is folded into one of another process, too.
func TestSumsFolded(t *testing.T) {
	s, sums := begun(record.Trace{All: true}), new(Sums)
	s.Apply(stackOf(1, "libtorch.so"))
	other := event.Process{PID: 20, Start: event.StartUnit}
	for i := range uint64(2 * maxSites) {
		id := prog
		if i < 10 {
			id = other // whose peak is at sites that hold nothing any more
		}
		e := alloc(id, 10*i+1, 0x1000, mib)
		e.Stack = i + 1
		s.Apply(e)
		s.Apply(free(id, 10*i+2, 0x1000))
		if i == 10 || i%20000 == 0 {
			sameSums(t, s, sums)
		}
	}
	sameSums(t, s, sums)
}

// What a process gave away is another's when it lets go of it, without an event of that one.
func TestSumsShared(t *testing.T) {
	s, sums := watched(), new(Sums)
	s.Apply(&record.Trace{All: true, Physical: true, Start: s.trace.Start, Boot: s.trace.Boot, APIs: apis})
	other := event.Process{PID: 18, Start: event.StartUnit}
	s.Apply(&record.Process{Process: other, Target: true, Name: "other", FromStart: true})
	owner, importer := opened(s, prog, 6), opened(s, other, 6)
	object := owner.takes(10, "cuMemAlloc_v2", 4*mib, 0)
	importer.last++
	importer.apply(&event.Event{Op: event.OpObjectShare, Time: 11, Handle: importer.client<<32 | importer.last, Part: importer.device(), Addr: object})
	sameSums(t, s, sums)
	owner.frees(12, object, "cuMemFree_v2")
	if !s.changes.processes[other] {
		t.Error("that the other process has it is not known")
	}
	sameSums(t, s, sums)
}

// A look costs what changed: of a crowd of which one process allocates, that one's call
// sites are visited.
func TestSumsFollowChanges(t *testing.T) {
	s, sums := New(), new(Sums)
	recordtest.Crowd(100, 40, 20, s.Apply)
	look := func() *View {
		v := s.View(Want{Totals: true, Sums: sums})
		v.Totals()
		return v
	}
	if all := look(); len(all.sites) != 100*20 {
		t.Errorf("%d call sites at first", len(all.sites))
	}
	s.Apply(&record.Moment{Time: s.Now() + 1, Drained: true})
	if none := look(); len(none.sites) != 0 {
		t.Errorf("%d call sites where nothing happened", len(none.sites))
	}
	var id event.Process
	for one := range s.Living {
		id = one
	}
	s.Apply(alloc(id, s.Now()+1, 1<<50, mib))
	if one := look(); len(one.sites) != 21 || one.sites[0].Proc != id {
		t.Errorf("%d call sites where one process made one more", len(one.sites))
	}
	sameSums(t, s, sums)
	for range 3 {
		n := 0
		for id := range s.Living { // so many that it keeps nothing of each
			if n++; n <= 70 {
				s.Apply(alloc(id, s.Now()+1, 1<<51, mib))
			}
		}
		sameSums(t, s, sums)
	}
	sameSums(t, s, sums)
	if none := look(); len(none.sites) != 0 {
		t.Errorf("%d call sites where nothing happened again", len(none.sites))
	}
	sameSums(t, s, sums)
}

// Without anybody who looks, nothing is kept of processes that come and go.
func TestSumsForgotten(t *testing.T) {
	s := begun(record.Trace{All: true})
	sums := new(Sums)
	for i := range uint64(3000) {
		id := event.Process{PID: uint32(100 + i), Start: event.StartUnit}
		s.Apply(alloc(id, 10*i+1, 0x1000, mib))
		s.Apply(exit(id, 10*i+3))
		s.Apply(&record.Reported{})
		if i == 1000 {
			if n := len(s.changes.processes); n != 0 {
				t.Fatalf("%d processes are kept for nobody", n)
			}
		}
		if i >= 1000 && i%100 == 0 {
			sameSums(t, s, sums)
			if len(sums.processes) > 1 {
				t.Fatalf("of %d processes sums are kept", len(sums.processes))
			}
		}
	}
}
