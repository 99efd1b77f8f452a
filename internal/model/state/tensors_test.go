package state

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// tensor is one that is made at a stack. allocated is what its allocator says then.
func tensor(at, addr, size, stack, allocated uint64) *event.Event {
	return &event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Proc: prog, TID: prog.PID, Time: at,
		Addr: addr, Size: size, Stack: stack, Handle: allocated, Part: event.NoTotal}
}

func tensorEnd(at, addr, size, allocated uint64) *event.Event {
	return &event.Event{Op: event.OpTensorFree, Proc: prog, TID: prog.PID, Time: at, Addr: addr, Size: size,
		Handle: allocated, Part: event.NoTotal}
}

// sums returns the bytes in use and at the peak of a view's samples, by their kind and
// the leaf of their stack's own frames.
func sums(s *State) map[string][2]int64 {
	out := map[string][2]int64{}
	snap := s.View(Want{}).Snapshot()
	for i := range snap.Samples {
		x := &snap.Samples[i]
		key := x.Kind
		for _, l := range x.Stack {
			switch name := l.Lines[0].Function; name {
			case "", "cuMemAlloc_v2":
			default:
				key += " " + name
			}
		}
		out[key] = [2]int64{out[key][0] + x.InuseBytes, out[key][1] + x.PeakBytes}
	}
	return out
}

// TestTensors: a segment's bytes are those of the tensors in it and what is cached,
// under the stack that grew the pool. The total stays what the driver handed out, in
// use and at the peak.
func TestTensors(t *testing.T) {
	s := begun(record.Trace{})
	for id, f := range []string{"load", "forward", "nccl"} {
		stack(s, uint64(id+1), " ", f)
	}
	grow := alloc(prog, 10, 0x100000, 20*mib)
	grow.Stack = 1
	s.Apply(grow)
	outside := alloc(prog, 11, 0x9000000, 7*mib)
	outside.Stack = 3
	s.Apply(outside)
	expect(t, "before the first tensor", map[string][2]int64{"device [load]": {20 * mib, 20 * mib}, "device [nccl]": {7 * mib, 7 * mib}}, sums(s))

	s.Apply(tensor(12, 0x100000, 8*mib, 2, 8*mib))
	s.Apply(tensor(13, 0x100000+8*mib, 2*mib, 2, 10*mib))
	s.Apply(tensorEnd(14, 0x100000, 8*mib, 2*mib))
	expect(t, "with tensors", map[string][2]int64{
		// The peak is the moment at which most of it was in tensors.
		"cached [cached, unused] [load]": {18 * mib, 10 * mib}, "tensor [forward]": {2 * mib, 10 * mib}, "device [nccl]": {7 * mib, 7 * mib},
	}, sums(s))

	// The driver's memory falls: what comes to lie in tensors then is at no peak.
	s.Apply(free(prog, 15, 0x9000000))
	s.Apply(tensor(16, 0x100000, 12*mib, 2, 14*mib))
	expect(t, "below the peak", map[string][2]int64{
		"cached [cached, unused] [load]": {6 * mib, 10 * mib}, "tensor [forward]": {14 * mib, 10 * mib}, "device [nccl]": {0, 7 * mib},
	}, sums(s))

	s.Apply(tensorEnd(17, 0x100000, 12*mib, 2*mib))
	s.Apply(tensorEnd(18, 0x100000+8*mib, 2*mib, 0))
	s.Apply(free(prog, 19, 0x100000))
	expect(t, "after all", map[string][2]int64{
		"device [load]": {0, 10 * mib}, "tensor [forward]": {0, 10 * mib}, "device [nccl]": {0, 7 * mib},
	}, sums(s))
	for _, c := range s.loss() {
		if c.Value != 0 {
			t.Errorf("lost: %s %d", c.Name, c.Value)
		}
	}
}

// TestTensorsOfPieces: with expandable segments a tensor lies in several pieces of
// physical memory, each with the stack that brought it.
func TestTensorsOfPieces(t *testing.T) {
	s := begun(record.Trace{})
	for id, f := range []string{"first", "second", "forward"} {
		stack(s, uint64(id+1), " ", f)
	}
	for i := range uint64(2) {
		s.Apply(&event.Event{Op: event.OpHandleCreate, Kind: event.KindVMM, Proc: prog, Time: 10 + i, API: 1, Handle: 7 + i, Size: 2 * mib, Stack: 1 + i})
		s.Apply(&event.Event{Op: event.OpMap, Proc: prog, Time: 12 + i, Addr: 0x1000000 + i*2*mib, Size: 2 * mib, Handle: 7 + i})
	}
	s.Apply(tensor(20, 0x1000000+mib/2, 3*mib, 3, 3*mib))
	expect(t, "in two pieces", map[string][2]int64{
		"cached [cached, unused] [first]": {mib / 2, mib / 2}, "cached [cached, unused] [second]": {mib / 2, mib / 2}, "tensor [forward]": {3 * mib, 3 * mib},
	}, sums(s))
	s.Apply(tensorEnd(21, 0x1000000+mib/2, 3*mib, 0))
	s.Apply(&event.Event{Op: event.OpUnmap, Proc: prog, Time: 22, Addr: 0x1000000, Size: 2 * mib})
	s.Apply(&event.Event{Op: event.OpHandleRelease, Proc: prog, Time: 23, Handle: 7})
	expect(t, "one piece less", map[string][2]int64{
		"vmm [first]": {0, mib / 2}, "cached [cached, unused] [second]": {2 * mib, mib / 2}, "tensor [forward]": {0, 3 * mib},
	}, sums(s))
}

// TestTensorsOfAnAccount: an account has lines for tensors and for what is cached, and
// the same total. Tensors in memory from before the trace are a part of what was
// allocated before it.
func TestTensorsOfAnAccount(t *testing.T) {
	s := watched()
	k := opened(s, prog, 6)
	k.backs(10, 0x100000, 20*mib, 20*mib)
	s.Apply(tensor(12, 0x100000, 8*mib, 0, 8*mib))
	s.Apply(held(20, 20*mib))
	moment(s, 21)
	expect(t, "lines", map[string]int64{LineTensors: 8 * mib, LineCached: 12 * mib, LineAllocations: 0}, lines(t, s))

	s = attached()
	k = before(s, prog, 6)
	k.backs(10, 0x100000, 20*mib, 20*mib)
	s.Apply(tensor(12, 0x100000, 8*mib, 0, 108*mib))
	s.Apply(tensor(13, 0x9000000, 5*mib, 0, 113*mib))
	s.Apply(held(20, 300*mib))
	moment(s, 21)
	expect(t, "lines, attached to late", map[string]int64{
		LineTensors: 8 * mib, LineCached: 12 * mib, LineAllocations: 0, LineTensorsInOld: 5 * mib,
		LineOldTensors: 100 * mib, LineBefore: 175 * mib,
	}, lines(t, s))
	last := tensor(22, 0xa000000, mib, 0, 114*mib)
	last.Part = 200 * mib
	s.Apply(last)
	expect(t, "and the allocator said what it holds", map[string]int64{
		LineTensors: 8 * mib, LineCached: 12 * mib, LineAllocations: 0, LineTensorsInOld: 6 * mib,
		LineOldTensors: 100 * mib, LineOldCached: 74 * mib, LineBefore: 100 * mib,
	}, lines(t, s))
}

// TestTensorsElsewhere: tensors of a process that was traced from its start, in managed
// memory and in memory that was not seen allocated, are shown, and taken off again: what
// the account and its samples add up to stays what the driver handed out.
func TestTensorsElsewhere(t *testing.T) {
	s := watched()
	k := opened(s, prog, 6)
	k.backs(10, 0x100000, 20*mib, 20*mib)
	s.Apply(tensor(12, 0x100000, 8*mib, 0, 8*mib))
	managed := alloc(prog, 13, 0x8000000, 4*mib)
	managed.Kind = event.KindManaged
	s.Apply(managed)
	s.Apply(tensor(14, 0x8000000, 3*mib, 0, 11*mib))
	s.Apply(tensor(15, 0x9000000, 5*mib, 0, 16*mib))
	s.Apply(held(20, 20*mib))
	moment(s, 21)
	expect(t, "lines", map[string]int64{
		LineTensors: 8 * mib, LineCached: 12 * mib, LineAllocations: 0, LineTensorsElsewhere: 8 * mib, LineElsewhere: -8 * mib,
	}, lines(t, s))
	snap := driven(s)
	sum := int64(0)
	for i := range snap.Samples {
		if kind := kindOf(&snap.Samples[i]); kind != event.KindSystem && kind != event.KindManaged {
			sum += snap.Samples[i].InuseBytes
		}
	}
	if total := snap.Accounts[0].Total; sum != total || total != 20*mib {
		t.Errorf("the samples add up to %d, the account to %d; want 20 MiB", sum, total)
	}
}

// TestTensorsNotSeen: what the allocator says shows tensors that were lost.
func TestTensorsNotSeen(t *testing.T) {
	s := begun(record.Trace{})
	lost := func() (n uint64) {
		for _, c := range s.loss() {
			if c.Name == "tensor_totals_differ" {
				n = c.Value
			}
		}
		return n
	}
	s.Apply(alloc(prog, 10, 0x100000, 20*mib))
	s.Apply(tensor(11, 0x100000, mib, 0, mib))
	s.Apply(tensor(12, 0x300000, mib, 0, 2*mib))
	if n := lost(); n != 0 {
		t.Errorf("%d differences, want none", n)
	}
	s.Apply(tensor(13, 0x500000, mib, 0, 5*mib))
	if n := lost(); n != 1 {
		t.Errorf("%d differences, want one", n)
	}
	s.Apply(tensorEnd(14, 0x700000, 2*mib, 3*mib)) // it is one of those
	s.Apply(tensorEnd(15, 0x100000, mib, 2*mib))
	if n := lost(); n != 1 {
		t.Errorf("%d differences, want no more", n)
	}
}

// TestTensorsTellTheirDevices: a process that was attached to late may have asked CUDA
// for nothing since: a reading must tell which GPU its tensors are on.
func TestTensorsTellTheirDevices(t *testing.T) {
	s := attached()
	e := tensor(12, 0x100000, mib, 0, mib)
	e.Device = 2
	s.Apply(e)
	expect(t, "ordinals", []record.Subject{{Process: prog, Ordinals: []int32{2}}}, s.Subjects())
}

// What a caching allocator ever took from CUDA counts as allocated where it was handed out,
// also when it has given all of it back: else all of it would seem to be allocated then.
func TestAllocatedOfSegmentsThatGo(t *testing.T) {
	s := begun(record.Trace{})
	s.Apply(alloc(prog, 10, 1<<32, 20*mib))
	s.Apply(tensor(11, 1<<32, mib, 2, event.NoTotal))
	allocated := func() (sum int64) {
		for _, x := range s.View(Want{}).Snapshot().Samples {
			sum += x.AllocBytes
		}
		return sum
	}
	before := allocated()
	s.Apply(tensorEnd(12, 1<<32, mib, event.NoTotal))
	s.Apply(free(prog, 13, 1<<32))
	if after := allocated(); after != before {
		t.Errorf("%d bytes were allocated, and %d when they were given back", before, after)
	}
	for x := range s.ledger.Sites {
		if x.AllocBytes != 20*mib {
			t.Errorf("the call site has %d", x.AllocBytes)
		}
	}
}

// A process that is attached to late, and calls the driver no more, has a peak of its tensors.
func TestPeakOfTensorsAlone(t *testing.T) {
	s := begun(record.Trace{})
	for _, st := range program() {
		s.Apply(st)
	}
	s.Apply(tensor(10, 1<<30, 4096, atForward, event.NoTotal))
	s.Apply(tensor(20, 1<<31, 1024, atBackward, event.NoTotal))
	s.Apply(tensorEnd(30, 1<<30, 4096, event.NoTotal))
	s.Apply(tensor(40, 1<<30, 512, atForward, event.NoTotal))
	got := int64(0)
	for _, x := range s.View(Want{}).Snapshot().Samples {
		if x.Kind == event.KindTensor.String() {
			got += x.PeakBytes
		}
	}
	if got != 4096+1024 {
		t.Errorf("%d bytes in tensors at the peak", got)
	}
}
