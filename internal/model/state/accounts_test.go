package state

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// physicalTrace applies the records of traced, with what the kernel driver hands out to its
// processes beside them, on two GPUs. Some processes are attached to late.
func physicalTrace(seed uint64, n int, s *State) { physicalSteps(seed, n, s, s.Apply) }

// physicalSteps has apply apply the records of traced.
func physicalSteps(seed uint64, n int, s *State, apply func(record.Record)) {
	rng := rand.New(rand.NewPCG(seed, 3))
	kernels := map[event.Process][]*kernel{}
	objects := map[*kernel][]uint64{}
	traced(seed, n, func(r record.Record) {
		switch r := r.(type) {
		case *record.Trace:
			r.Physical, r.Initial, r.APIs = true, rng.IntN(2) == 0, apis
		case *record.Process:
			r.FromStart = rng.IntN(2) == 0
		case *record.Reading:
			r.Begin = r.Time - uint64(rng.IntN(2000))
			r.Devices[0].GPU, r.Devices[0].GPUKnown, r.Devices[0].Instance = 6, rng.IntN(4) != 0, -1
			for i := range r.Uses {
				r.Uses[i].Bytes, r.Uses[i].Known = rng.Int64N(1<<30), rng.IntN(8) != 0
			}
		case *event.Event:
			if r.Op == event.OpExit || r.Op == event.OpFork {
				break
			}
			if kernels[r.Proc] == nil {
				open := opened
				if rng.IntN(3) == 0 {
					open = before
				}
				kernels[r.Proc] = []*kernel{open(s, r.Proc, 6), open(s, r.Proc, 7)}
			}
			k := kernels[r.Proc][rng.IntN(2)]
			if r.Op == event.OpAlloc && rng.IntN(3) == 0 {
				r.Kind = event.KindAsync
			}
			switch mine := objects[k]; {
			case rng.IntN(3) != 0:
				kind := event.KindDriver
				if rng.IntN(6) == 0 {
					kind = event.KindSystem
				}
				function := apis[rng.IntN(len(apis))]
				objects[k] = append(mine, k.object(r.Time, kind, function, 1+rng.Uint64N(8<<20), rng.Uint64N(21)))
			case len(mine) > 0:
				i := rng.IntN(len(mine))
				k.frees(r.Time, mine[i], apis[rng.IntN(len(apis))])
				objects[k] = slices.Delete(mine, i, i+1)
			}
		}
		apply(r)
		if e, ok := r.(*event.Event); ok && e.Op == event.OpFork && rng.IntN(2) == 0 {
			s.processes.known[e.Child].fromStart = false
		}
	})
}

// onGPU is a process on a GPU.
type onGPU struct {
	pid int
	gpu string
}

// TestAccountsAddUp: the lines of each account add up to its total, and so do the
// samples of the process's memory on that GPU, its own and the driver's. No such
// memory is outside of the accounts.
func TestAccountsAddUp(t *testing.T) {
	var seen struct{ late, start, kinds int }
	for seed := range uint64(60) {
		s := New()
		physicalTrace(seed, 400, s)
		sameTotals(t, s)
		snap := driven(s)
		want := map[onGPU]int64{}
		for _, a := range snap.Accounts {
			var sum int64
			for _, l := range a.Lines {
				sum += l.Bytes
				switch l.Name {
				case LineBefore:
					seen.late++
				case LineRounding:
					seen.start++
				default:
					seen.kinds++
				}
			}
			if sum != a.Total {
				t.Errorf("seed %d: lines add up to %d, want %d: %+v", seed, sum, a.Total, a)
			}
			want[onGPU{a.PID, a.GPU}] += a.Total
		}
		got := map[onGPU]int64{}
		for i := range snap.Samples {
			x := &snap.Samples[i]
			if class := kindOf(x).Class(); x.InuseBytes != 0 && (class == event.ClassDevice || class == event.ClassDriver || class == event.ClassTensor) {
				got[onGPU{x.PID, x.GPU}] += x.InuseBytes
			}
		}
		for _, sums := range []map[onGPU]int64{want, got} {
			maps.DeleteFunc(sums, func(_ onGPU, bytes int64) bool { return bytes == 0 })
		}
		expect(t, fmt.Sprintf("seed %d: samples, and totals of accounts", seed), want, got)
	}
	if seen.late == 0 || seen.start == 0 || seen.kinds == 0 {
		t.Errorf("too little was seen: %+v", seen)
	}
}

// TestPeaksAddUp: at the peak of a process that was traced from its start, the samples
// of all its memory add up to what it had of GPUs' memory.
func TestPeaksAddUp(t *testing.T) {
	for seed := range uint64(60) {
		s := watched()
		rng := rand.New(rand.NewPCG(seed, 4))
		kernels := []*kernel{opened(s, prog, 6), opened(s, prog, 7)}
		var objects [2][]uint64
		var highest int64
		for i := range uint64(300) {
			at, j := 10+i, rng.IntN(2)
			k := kernels[j]
			switch n := len(objects[j]); {
			case rng.IntN(4) == 0:
				s.Apply(free(prog, at, 1+rng.Uint64N(i+1)))
			case n > 0 && rng.IntN(3) == 0:
				k.frees(at, objects[j][n-1], "cuTexObjectCreate")
				objects[j] = objects[j][:n-1]
			case rng.IntN(2) == 0:
				objects[j] = append(objects[j], k.takes(at, apis[1+rng.IntN(len(apis)-1)], 1+rng.Uint64N(1<<20), rng.Uint64N(5)))
			default:
				e := alloc(prog, at, 1+i, 1+rng.Uint64N(1<<20))
				e.Kind, e.Device, e.Stack = []event.Kind{event.KindDevice, event.KindAsync}[rng.IntN(2)], int32(j), rng.Uint64N(5)
				s.Apply(e)
			}
			highest = max(highest, (&collector{s: s}).physicalBytes(prog))
		}
		var peak int64
		for _, x := range driven(s).Samples {
			peak += x.PeakBytes
		}
		if peak != highest || highest == 0 {
			t.Errorf("seed %d: %d at the peak, want %d", seed, peak, highest)
		}
	}
}
