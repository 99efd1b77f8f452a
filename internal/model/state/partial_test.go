package state

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// estimate is what a sampled tensor counts for, by the definition.
func estimate(size, mean float64) int64 { return int64(math.Round(-size / math.Expm1(-size/mean))) }

// holds says that memory of a caching allocator is at an address.
func holds(at, addr, size, allocated uint64) *event.Event {
	e := tensor(at, addr, size, 0, allocated)
	e.Op, e.Kind = event.OpSegmentSeen, event.KindNone
	return e
}

// says tells what prog's allocator says at a moment that the events have reached.
func says(s *State, sample, at uint64, a record.Allocator) {
	a.Process = prog
	s.Apply(&record.Tensors{Sample: sample, Time: at, Allocators: []record.Allocator{a}})
	s.Apply(&record.Moment{Time: s.Now(), Drained: true})
}

// TestTensorSample: a sampled tensor counts for others; with one signed line the tensors
// of a device are what its allocator says, and with what is cached what it holds. The
// total stays what the driver handed out, in use and at the peak.
func TestTensorSample(t *testing.T) {
	s := begun(record.Trace{})
	s.Apply(&record.Tensors{Sample: mib})
	for id, f := range []string{"load", "forward", "nccl"} {
		stack(s, uint64(id+1), " ", f)
	}
	for addr, size := range map[uint64]uint64{0x1000000: 20 * mib, 0x9000000: 2 * mib} {
		grow := alloc(prog, 10, addr, size)
		grow.Stack = 1
		s.Apply(grow)
	}
	other := alloc(prog, 11, 0xa000000, 7*mib)
	other.Stack = 3
	s.Apply(other)
	s.Apply(tensor(12, 0x1000000, 512<<10, 2, 5*mib))
	// Nobody was told of a tensor in the other segment.
	s.Apply(holds(13, 0x9000000, 512, 5*mib+512))
	// Both sums are older than the last event but one.
	says(s, mib, 13, record.Allocator{Allocated: 5*mib + 512, Reserved: 22 * mib,
		Made: record.Tally{Count: 12, Bytes: 5*mib + 1536}, Freed: record.Tally{Count: 2, Bytes: 1024}})
	e := estimate(512<<10, mib)
	now := 5*mib + 512 - e
	expect(t, "a sample", map[string][2]int64{
		"tensor [forward]": {e, e}, "tensor [sampling error]": {now, now},
		"cached [cached, unused]": {17*mib - 512, 17*mib - 512}, "device [load]": {0, 0}, "device [nccl]": {7 * mib, 7 * mib},
	}, sums(s))
	snap := s.View(Want{Live: true}).Snapshot()
	objects := map[string][2]int64{}
	for i := range snap.Samples {
		x := &snap.Samples[i]
		objects[x.Stack[0].Lines[0].Function] = [2]int64{x.InuseObjects, x.AllocObjects}
	}
	expect(t, "objects", map[string][2]int64{
		"[forward]": {3, 3}, "[sampling error]": {7, 9}, "[cached, unused]": {2, 0}, "cuMemAlloc_v2": {1, 1},
	}, objects)
	for _, a := range snap.Live {
		if a.Address == 0x1000000 && a.Size != 512<<10 && a.Size != 20*mib {
			t.Errorf("the row of a sampled tensor: %+v", a)
		}
	}
	if len(snap.Notes) != 1 {
		t.Errorf("notes: %q", snap.Notes)
	}

	// An older figure changes nothing, and a later one does.
	says(s, mib, 5, record.Allocator{Allocated: mib, Reserved: mib, Made: record.Tally{Count: 9, Bytes: 5 * mib}})
	s.Apply(free(prog, 15, 0xa000000))
	s.Apply(tensorEnd(16, 0x1000000, 512<<10, 4*mib))
	expect(t, "after it was freed", map[string][2]int64{
		"tensor [forward]": {0, e}, "tensor [sampling error]": {4 * mib, now},
		"cached [cached, unused]": {18 * mib, 17*mib - 512}, "device [load]": {0, 0}, "device [nccl]": {0, 7 * mib},
	}, sums(s))
	s.Apply(free(prog, 17, 0x9000000))
	if got := sums(s)["cached [cached, unused]"]; got != [2]int64{16 * mib, 17*mib - 512} {
		t.Errorf("after a segment ended: %v", got)
	}
}

// TestTensorSampleOfAnAccount: so are the lines of an account, and attached late what the
// allocator holds in older memory is a part of what was allocated before.
func TestTensorSampleOfAnAccount(t *testing.T) {
	for _, late := range []bool{false, true} {
		s := watched()
		k := opened(s, prog, 6)
		older := uint64(0)
		if late {
			s = attached()
			k = before(s, prog, 6)
			older = 100 * mib
		}
		s.Apply(&record.Tensors{Sample: mib})
		k.backs(10, 0x100000, 20*mib, 20*mib)
		s.Apply(tensor(12, 0x100000, 8*mib, 0, 9*mib+older))
		says(s, mib, 13, record.Allocator{Allocated: 9*mib + older, Reserved: 20*mib + older + older/2, Made: record.Tally{Count: 5, Bytes: 9 * mib}})
		total := int64(20 * mib)
		if late {
			total = 300 * mib
		}
		s.Apply(held(20, total))
		moment(s, 21)
		e := estimate(8*mib, mib)
		want := map[string]int64{LineTensors: e, LineSampling: 9*mib - e, LineCached: 11 * mib, LineAllocations: 0}
		if late {
			want = map[string]int64{LineTensors: e, LineSamplingOld: 109*mib - e, LineCached: 61 * mib, LineAllocations: 0, LineBefore: 130 * mib}
		}
		expect(t, "lines", want, lines(t, s))
		if got := s.View(Want{Driver: true}).Snapshot().Accounts[0].Total; got != total {
			t.Errorf("late %v: a total of %d, want %d", late, got, total)
		}
	}
}

// TestTensorSampleInTime: what allocators say counts when the events have reached that
// moment, and not before.
func TestTensorSampleInTime(t *testing.T) {
	s := begun(record.Trace{})
	s.Apply(&record.Tensors{Sample: 1})
	stack(s, 1, " ", "forward")
	s.Apply(alloc(prog, 10, 0x1000000, 20*mib))
	s.Apply(tensor(12, 0x1000000, 2*mib, 1, 2*mib))
	s.Apply(&record.Tensors{Sample: 1, Time: 20, Allocators: []record.Allocator{{Process: prog, Allocated: 5 * mib, Reserved: 20 * mib}}})
	if !s.WaitsForTime() {
		t.Error("nothing is awaited")
	}
	s.Apply(tensor(19, 0x2000000-3*mib, 3*mib, 1, event.NoTotal))
	if got := sums(s)["cached [cached, unused]"][0]; got != 18*mib {
		t.Errorf("before its moment %d are cached", got)
	}
	s.Apply(tensorEnd(21, 0x1000000, 2*mib, event.NoTotal))
	if got := sums(s)["cached [cached, unused]"][0]; got != 15*mib || s.WaitsForTime() {
		t.Errorf("after its moment %d are cached", got)
	}
}

// TestTensorSampleTotals: whatever allocators say, and however much of it is true, with
// a sample the lines of a process from its start add up to what the driver handed out,
// in use and at the peak.
func TestTensorSampleTotals(t *testing.T) {
	sum := func(s *State) (out amount) {
		snap := s.View(Want{}).Snapshot()
		for i := range snap.Samples {
			if x := &snap.Samples[i]; x.PID == 1 {
				out.add(amount{x.InuseBytes, x.PeakBytes})
			}
		}
		return out
	}
	total := func(s *State) (out amount) {
		for _, p := range s.Processes() {
			if p.PID == 1 {
				out = amount{p.Inuse, p.Peak}
			}
		}
		return out
	}
	lines := 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 3))
		s, n := New(), 0
		telling := record.Tensors{Sample: 1 + rng.Uint64N(4)}
		id := event.Process{PID: 1, Start: event.StartUnit}
		traced(seed, 800, func(r record.Record) {
			s.Apply(r)
			if n++; n == 1 {
				s.Apply(&telling)
			}
			if n%50 == 0 {
				tally := func() record.Tally { return record.Tally{Count: rng.Uint64N(100), Bytes: rng.Uint64N(1 << 30)} }
				now := s.Now()
				s.Apply(&record.Tensors{Sample: telling.Sample, Time: now, Allocators: []record.Allocator{{Process: id, Device: int32(rng.IntN(2)), Allocated: rng.Uint64N(1 << 30),
					Reserved: rng.Uint64N(1 << 30), Made: tally(), Freed: tally()}}})
			}
			if n%37 != 0 {
				return
			}
			if got, want := sum(s), total(s); got != want {
				t.Fatalf("seed %d, record %d: lines of %+v, handed out %+v", seed, n, got, want)
			}
			sameTotals(t, s)
			lines += len(s.View(Want{}).splits())
		})
	}
	if lines == 0 {
		t.Error("no lines")
	}
}

// From a moment on, nothing is told of what an allocator ever made: its tallies are of the
// whole trace.
func TestTensorSampleAfresh(t *testing.T) {
	s := begun(record.Trace{})
	s.Apply(&record.Tensors{Sample: mib})
	s.Apply(alloc(prog, 10, 0x1000000, 20*mib))
	s.Apply(tensor(12, 0x1000000, 512<<10, 2, 5*mib))
	says(s, mib, 13, record.Allocator{Allocated: 5 * mib, Reserved: 20 * mib,
		Made: record.Tally{Count: 12, Bytes: 5*mib + 1536}})
	ever := func() (sum int64) {
		for _, x := range s.View(Want{}).Snapshot().Samples {
			sum += x.AllocBytes
		}
		return sum
	}
	if ever() == 0 {
		t.Error("nothing was made")
	}
	s.ResetCounts()
	if sum := ever(); sum != 0 {
		t.Errorf("%d bytes were made since", sum)
	}
}

// What was made between two reports adds up to all, of tensors that are told and of those
// that are not.
func TestTensorSampleUnreported(t *testing.T) {
	s := begun(record.Trace{})
	s.Apply(&record.Tensors{Sample: mib})
	s.Apply(alloc(prog, 10, 0x1000000, 20*mib))
	sums := func(w Want) (objects, bytes int64) {
		for _, x := range s.View(w).Snapshot().Samples {
			if x.Kind == event.KindTensor.String() {
				objects, bytes = objects+x.AllocObjects, bytes+x.AllocBytes
			}
		}
		return objects, bytes
	}
	var objects, bytes int64
	for i := range uint64(4) {
		at := 20 + 10*i
		if i != 2 { // nothing is told of the third
			s.Apply(tensor(at, 0x1000000+i*mib, 512<<10, 2, (5+i)*mib))
		}
		says(s, mib, at+1, record.Allocator{Allocated: (5 + i) * mib, Reserved: 20 * mib,
			Made: record.Tally{Count: 12 + 5*i, Bytes: (5+i)*mib + 1536 + 512*i}})
		n, b := sums(Want{Unreported: true})
		if b <= 0 || i > 0 && b > 2*mib {
			t.Errorf("%d bytes in interval %d", b, i)
		}
		objects, bytes = objects+n, bytes+b
		s.Apply(&record.Reported{})
	}
	if n, b := sums(Want{}); n != objects || b != bytes || b < 8*mib {
		t.Errorf("%d objects and %d bytes, all are %d and %d", objects, bytes, n, b)
	}
	if n, b := sums(Want{Unreported: true}); n != 0 || b != 0 {
		t.Errorf("%d objects and %d bytes after the last report", n, b)
	}
}
