package state

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// inUse is what a state shows as held, without what counts from the beginning.
func inUse(s *State) *snapshot.Snapshot {
	out := s.View(Want{Live: true}).Snapshot()
	samples := map[string]*snapshot.Sample{}
	key := func(x *snapshot.Sample) string {
		var b strings.Builder
		for _, l := range x.Stack {
			b.WriteString(l.Lines[0].Function + ";")
		}
		return b.String() + x.Process + x.GPU + x.Kind + string(rune(x.PID))
	}
	for i := range out.Samples {
		x := &out.Samples[i]
		if x.InuseBytes == 0 {
			continue
		}
		x.Values = snapshot.Values{InuseBytes: x.InuseBytes, InuseObjects: x.InuseObjects}
		if y := samples[key(x)]; y != nil {
			y.Values.Add(&x.Values)
		} else {
			samples[key(x)] = x
		}
	}
	names := map[string]snapshot.Values{}
	for k, x := range samples {
		names[k] = x.Values
	}
	var rows []snapshot.Allocation
	for _, a := range out.Live {
		rows = append(rows, snapshot.Allocation{Address: a.Address, Size: a.Size, Time: a.Time})
	}
	slices.SortFunc(rows, func(a, b snapshot.Allocation) int { return int(a.Address>>1) - int(b.Address>>1) })
	var processes []snapshot.Process
	for _, p := range out.Processes {
		if !p.Exited && p.Inuse > 0 {
			processes = append(processes, snapshot.Process{PID: p.PID, Name: p.Name, Inuse: p.Inuse, LiveObjects: p.LiveObjects})
		}
	}
	slices.SortFunc(processes, func(a, b snapshot.Process) int { return a.PID - b.PID })
	shown := &snapshot.Snapshot{Live: rows, Processes: processes, Allocators: out.Allocators}
	for _, k := range slices.Sorted(func(yield func(string) bool) {
		for k := range names {
			if !yield(k) {
				return
			}
		}
	}) {
		shown.Samples = append(shown.Samples, snapshot.Sample{Labels: snapshot.Labels{Owner: k}, Values: names[k]})
	}
	return shown
}

// A state that begins with a keyframe shows what is live as the one that it is
// of, there and after any further records.
func TestKeyframe(t *testing.T) {
	accounts, allocators := 0, 0
	for seed := range uint64(50) {
		whole, cut := New(), New()
		n := 0
		at := rand.New(rand.NewPCG(seed, 2)).IntN(700)
		traced(seed, 800, func(r record.Record) {
			whole.Apply(r)
			if n++; n == at+70 {
				cut.Apply(&record.Cut{Time: whole.Now()})
				whole.Keyframe(cut.Apply)
				if d := cmp.Diff(inUse(whole), inUse(cut)); d != "" {
					t.Fatalf("seed %d: where it begins (-whole +cut):\n%s", seed, d)
				}
			} else if n > at+70 {
				cut.Apply(r)
			}
		})
		if d := cmp.Diff(inUse(whole), inUse(cut)); d != "" {
			t.Fatalf("seed %d: at the end (-whole +cut):\n%s", seed, d)
		}
		if a, b := len(whole.View(Want{Driver: true}).Snapshot().Accounts), len(cut.View(Want{Driver: true}).Snapshot().Accounts); a != b {
			t.Errorf("seed %d: %d accounts, %d after the cut", seed, a, b)
		} else {
			accounts += a
		}
		allocators += len(inUse(whole).Allocators)
	}
	if accounts == 0 || allocators == 0 {
		t.Errorf("%d accounts, %d allocators", accounts, allocators)
	}
}
