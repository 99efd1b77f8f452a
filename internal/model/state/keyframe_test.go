package state

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// traced yields the records of a made-up trace: processes that allocate and
// free from named stacks, fork, exec and exit, and readings of one GPU.
func traced(seed uint64, n int, yield func(record.Record)) {
	rng := rand.New(rand.NewPCG(seed, 1))
	start := time.Unix(1_700_000_000, 0)
	yield(&record.Trace{Target: "pid 1 (prog)", Start: start, Boot: start, NVML: true, APIs: []string{"", "cuMemAlloc_v2", "cuMemFree_v2"}})
	mapping := &snapshot.Mapping{Start: 0x1000, Limit: 0x9000, Path: "/usr/bin/prog", BuildID: "ab"}
	var places []*record.Place
	for i := range uint64(40) {
		places = append(places, record.NewPlace(i+1, 0x1000+i, nil, nil))
	}
	for id := range uint64(20) {
		st := &record.Stack{ID: id + 1, Process: event.Process{PID: 1}}
		for range 1 + rng.IntN(5) {
			st.Frames = append(st.Frames, places[rng.IntN(len(places))])
		}
		yield(st)
	}
	for i, p := range places {
		yield(&record.Name{Place: p, Final: true, Location: &snapshot.Location{Address: p.Address, Mapping: mapping, Lines: []snapshot.Line{{Function: "f" + string(rune('a'+i))}}}})
	}
	living := []event.Process{{PID: 1, Start: event.StartUnit}}
	yield(&record.Process{Process: living[0], Target: true, Name: "prog", FromStart: true, Program: mapping})
	type held struct {
		p    event.Process
		addr uint64
	}
	var live, tensors []held
	free := func(e *event.Event, op event.Op, among *[]held, j int) {
		e.Op, e.Proc, e.Addr, e.API, e.Kind = op, (*among)[j].p, (*among)[j].addr, 2, 0
		*among = slices.Delete(*among, j, j+1)
	}
	for i := range n {
		at := uint64(i+1) * 1000
		p := living[rng.IntN(len(living))]
		e := &event.Event{Time: at, Proc: p, TID: p.PID, Stack: 1 + rng.Uint64N(20), API: 1, Device: 0, Kind: event.KindDevice}
		switch k := rng.IntN(130); {
		case k >= 115 && len(tensors) > 0:
			e.Handle, e.Part = rng.Uint64N(1<<30), rng.Uint64N(1<<30)
			free(e, event.OpTensorFree, &tensors, rng.IntN(len(tensors)))
		case k >= 100 && len(live) > 0:
			in := live[rng.IntN(len(live))]
			e.Op, e.Kind, e.Proc, e.Addr, e.Size = event.OpTensorAlloc, event.KindTensor, in.p, in.addr+uint64(rng.IntN(3)), 1
			e.Handle, e.Part = event.NoTotal, event.NoTotal
			tensors = slices.DeleteFunc(tensors, func(x held) bool { return x.p == e.Proc && x.addr == e.Addr })
			tensors = append(tensors, held{e.Proc, e.Addr})
		case k < 50 || len(live) == 0:
			e.Op, e.Addr, e.Size = event.OpAlloc, uint64(i+1)<<22, 1+rng.Uint64N(4<<20)
			live = append(live, held{p, e.Addr})
		case k < 90:
			free(e, event.OpFree, &live, rng.IntN(len(live)))
			tensors = slices.DeleteFunc(tensors, func(x held) bool { return x.p == e.Proc && x.addr>>22 == e.Addr>>22 })
		case k < 94 && len(living) < 5:
			child := event.Process{PID: uint32(i + 100), Start: uint64(i+2) * event.StartUnit}
			e = &event.Event{Op: event.OpFork, Time: at, Proc: p, Child: child, Name: "child"}
			living = append(living, child)
		case k < 96 && len(living) > 1:
			e = &event.Event{Op: event.OpExit, Time: at, Proc: p, Name: "child"}
			living = slices.DeleteFunc(living, func(x event.Process) bool { return x == p })
			gone := func(h held) bool { return h.p == p }
			live, tensors = slices.DeleteFunc(live, gone), slices.DeleteFunc(tensors, gone)
		case k < 98:
			r := &record.Reading{Time: at, Devices: []record.Device{{UUID: "GPU-a", Label: "0", Listed: true}}}
			for _, p := range living {
				r.Devices[0].Processes = append(r.Devices[0].Processes, snapshot.GPUProcess{PID: int(p.PID)})
				r.Uses = append(r.Uses, record.Use{Process: p, Bytes: 1 << 30, Known: true})
				r.Ordinals = append(r.Ordinals, record.Ordinal{Process: p})
			}
			yield(r)
			continue
		default:
			yield(&record.Moment{Time: at, Drained: true})
			continue
		}
		yield(e)
	}
	yield(&record.Moment{Time: uint64(n+1) * 1000, Drained: true})
}

// allOf is all that a state shows.
func allOf(s *State) *snapshot.Snapshot {
	out := s.View(Want{Live: true, Driver: true, Freed: true, GPUs: true}).Snapshot()
	slices.SortFunc(out.Live, func(a, b snapshot.Allocation) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Sample, b.Sample))
	})
	return out
}

// A state that begins with a keyframe shows what the one shows that it is of, there and after any
// further records.
func TestKeyframe(t *testing.T) {
	accounts, allocators := 0, 0
	for seed := range uint64(50) {
		whole, cut := New(), New()
		n := 0
		at := rand.New(rand.NewPCG(seed, 2)).IntN(700)
		compare := func(when string) {
			if d := gocmp.Diff(allOf(whole), allOf(cut), cmpopts.EquateEmpty()); d != "" {
				t.Fatalf("seed %d: %s (-whole +cut):\n%s", seed, when, d)
			}
		}
		traced(seed, 800, func(r record.Record) {
			whole.Apply(r)
			if n++; n == at+70 {
				cut.Apply(&record.Cut{Time: whole.Now()})
				whole.Keyframe(cut.Apply)
				compare("where it begins")
			} else if n > at+70 {
				cut.Apply(r)
			}
		})
		compare("at the end")
		accounts, allocators = accounts+len(allOf(cut).Accounts), allocators+len(allOf(cut).Allocators)
	}
	if accounts == 0 || allocators == 0 {
		t.Errorf("%d accounts, %d allocators", accounts, allocators)
	}
}

// FuzzKeyframe: whatever the parts of a keyframe have, the state goes on.
func FuzzKeyframe(f *testing.F) {
	from := func(seed uint64) (s *State, later []record.Record) {
		s = New()
		if seed%2 == 0 {
			physicalTrace(seed, 200, s)
		}
		n := 0
		traced(seed, 300, func(r record.Record) {
			if n++; n >= 200 {
				later = append(later, r)
			} else if seed%2 != 0 {
				s.Apply(r)
			}
		})
		return s, later
	}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 4))
		var parts [record.NumParts][]byte
		s, _ := from(seed)
		s.Keyframe(func(r record.Record) {
			p, ok := r.(*record.Part)
			for ok && len(p.Data) > 0 && rng.IntN(3) == 0 {
				p.Data[rng.IntN(len(p.Data))] = byte(rng.Uint32())
			}
			if ok {
				parts[p.Of] = append(parts[p.Of], p.Data...)
			}
		})
		f.Add(uint8(seed), parts[0], parts[1], parts[2], parts[3], parts[4])
	}
	f.Fuzz(func(_ *testing.T, seed uint8, a, b, c, d, e []byte) {
		of, later := from(uint64(seed))
		s := New()
		s.Apply(&record.Cut{Time: of.Now()})
		of.Keyframe(func(r record.Record) {
			if p, ok := r.(*record.Part); ok && !p.More {
				p.Data = [...][]byte{a, b, c, d, e}[p.Of]
				s.Apply(p)
			} else if !ok {
				s.Apply(r)
			}
		})
		for _, r := range later {
			s.Apply(r)
		}
		allOf(s)
		s.Keyframe(New().Apply)
	})
}
