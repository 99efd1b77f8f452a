package state

import (
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

const failedAt = uint64(10_000_000_000)

var culprit = event.Process{PID: 7, Start: event.StartUnit}

func failedCall(at uint64) *event.Event {
	return &event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Result: event.OutOfMemory, Time: at, Proc: culprit, TID: 8, Size: 1, Device: event.NoDevice}
}

// fails is a state in which a call failed for want of memory.
func fails(t *testing.T, trace record.Trace) *State {
	t.Helper()
	s := New()
	trace.Incidents = 2
	s.Apply(&trace)
	s.Apply(failedCall(failedAt))
	return s
}

// known returns the incidents that are known in full once the sources have told
// what they lost.
func known(s *State) []*Incident {
	s.Apply(&record.Loss{})
	return s.Incidents(false)
}

// A framework that gives thousands of pieces back after its failed call says
// what it wanted after that: the report waits for it, but not for ever.
func TestIncidentLastsWhileMemoryIsGivenBack(t *testing.T) {
	for op, lasts := range map[event.Op]bool{event.OpUnmap: true, event.OpHandleRelease: true, event.OpFree: false, event.OpAlloc: false} {
		s := fails(t, record.Trace{})
		const step = recoveryWindow - 1
		at := failedAt + step
		s.Apply(&event.Event{Op: op, Kind: event.KindDevice, Proc: culprit, TID: 8, Time: at, Addr: 1 << 30, Size: 4096})
		s.Apply(&record.Moment{Time: at + step, Drained: true})
		if got := len(known(s)) == 0; got != lasts {
			t.Errorf("after op %d it lasts %v, want %v", op, got, lasts)
		}
		for at := at; lasts && at < failedAt+longestIncident; at += step {
			s.Apply(&event.Event{Op: op, Proc: culprit, TID: 8, Time: at, Addr: 1 << 30, Size: 4096})
		}
		s.Apply(&record.Moment{Time: failedAt + longestIncident, Drained: true})
		if got := len(known(s)) == 1; got != lasts {
			t.Errorf("after op %d: it lasts for ever, or came twice", op)
		}
	}
}

// A call for as many bytes that succeeds soon after is a recovery; one of
// another thread, or too late, is not.
func TestRecovery(t *testing.T) {
	for name, c := range map[string]struct {
		after  uint64
		tid    uint32
		size   uint64
		result int32
		want   bool
	}{
		"soon":           {1000, 8, 1, event.Success, true},
		"too late":       {recoveryWindow, 8, 1, event.Success, false},
		"another thread": {1000, 9, 1, event.Success, false},
		"another size":   {1000, 8, 2, event.Success, false},
		"failed again":   {1000, 8, 1, event.OutOfMemory, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := fails(t, record.Trace{})
			e := failedCall(failedAt + c.after)
			e.TID, e.Size, e.Result, e.Addr = c.tid, c.size, c.result, 1<<30
			s.Apply(e)
			s.Apply(&record.Moment{Time: failedAt + 2*recoveryWindow, Drained: true})
			got := known(s)
			if len(got) != 1 {
				t.Fatalf("%d incidents, want 1", len(got))
			}
			if o := got[0].OutOfMemory(Want{}); o.Recovered != c.want {
				t.Errorf("recovered %v, want %v", o.Recovered, c.want)
			}
		})
	}
}

// An incident waits for the driver's figures, but not for ever, and shows what
// was live when it began.
func TestIncidentWaitsForFigures(t *testing.T) {
	for _, answers := range []bool{true, false} {
		s := fails(t, record.Trace{NVML: true})
		if w := s.Wants(); w == nil || !w.Reading || !w.Memory {
			t.Fatalf("wants %+v", w)
		}
		at := failedAt + recoveryWindow
		s.Apply(&record.Moment{Time: at, Drained: true})
		if got := known(s); len(got) != 0 {
			t.Fatal("it waits for no figures")
		}
		if answers {
			s.Apply(&record.Reading{Time: at, Devices: []record.Device{{UUID: "GPU-a", Label: "0", Total: 5, MemoryKnown: true}}})
			s.Apply(&record.Moment{Time: at + 1, Drained: true})
		} else {
			s.Apply(&record.Moment{Time: failedAt + readingPatience, Drained: true})
		}
		got := known(s)
		if len(got) != 1 {
			t.Fatalf("%d incidents, want 1", len(got))
		}
		o := got[0].OutOfMemory(Want{})
		if (len(o.GPUs) == 1) != answers || o.Snapshot.Meta.Events != 1 || o.Requested != 1 || o.Calls != 1 {
			t.Errorf("%+v", o)
		}
	}
}

// What is too many or too close is counted.
func TestIncidentsAreFew(t *testing.T) {
	s := fails(t, record.Trace{})
	for i := range uint64(5) { // each beyond the window of the one before
		s.Apply(failedCall(failedAt + (i+1)*(recoveryWindow+1)))
	}
	if got := len(s.Incidents(true)); got != 2 {
		t.Errorf("%d incidents, want 2", got)
	}
	for _, c := range s.View(Want{}).Snapshot().Loss {
		if c.Name == lossSuppressed.Counter(0).Name && c.Value != 4 {
			t.Errorf("%d suppressed, want 4", c.Value)
		}
	}
}

// One who fails all the time leaves a report to others, also within the same second.
func TestIncidentsAreShared(t *testing.T) {
	const reports = 5
	s := New()
	s.Apply(&record.Trace{Incidents: reports, All: true})
	at := failedAt
	for i := range uint32(30) { // many processes of one user
		id := event.Process{PID: 1000 + i%7, Start: event.StartUnit}
		s.Apply(&record.Process{Process: id, Target: true, User: record.UserOf(666)})
		e := failedCall(at)
		e.Proc = id
		s.Apply(e)
		at += incidentPause
		s.Apply(&record.Moment{Time: at, Drained: true})
	}
	if got := len(s.Incidents(true)); got != reports-1 {
		t.Errorf("%d reports of one user, want %d", got, reports-1)
	}
	e := failedCall(at - incidentPause + 1)
	e.Proc = event.Process{PID: 1, Start: event.StartUnit}
	s.Apply(e)
	if got := s.Incidents(true); len(got) != 1 || got[0].first.Proc != e.Proc {
		t.Errorf("the neighbour has %d reports", len(got))
	}
	if len(s.incidents.last) > 2 {
		t.Errorf("%d owners are remembered", len(s.incidents.last))
	}
}

// A limit of the framework's own has no failed call.
func TestFrameworksLimit(t *testing.T) {
	s := New()
	s.Apply(&record.Trace{Incidents: 1})
	s.Apply(&event.Event{Op: event.OpOutOfMemory, Time: failedAt, Proc: culprit, TID: 8, Size: 100, Handle: 30, Part: 70})
	s.Apply(&record.Moment{Time: failedAt + 1, Drained: true})
	got := known(s)
	if len(got) != 1 {
		t.Fatalf("%d incidents, want 1", len(got))
	}
	want := snapshot.FrameworkMemory{Name: "PyTorch", Allocated: 30, Reserved: 70}
	if o := got[0].OutOfMemory(Want{}); o.Calls != 0 || o.Tensor != 100 || o.Framework == nil || *o.Framework != want {
		t.Errorf("%+v", o)
	}
}

// The stack of a failed call may be told after its incident ended, and what the
// sources lost is told after that: both are in the report, and so is the account
// as it was when the driver's figures came.
func TestIncidentWaitsForItsStack(t *testing.T) {
	s := New()
	s.Apply(&record.Trace{Incidents: 2, NVML: true})
	e := failedCall(failedAt)
	e.Stack = 5
	s.Apply(e)
	held := func(at uint64, bytes int64) *record.Reading {
		return &record.Reading{Begin: at, Time: at, Uses: []record.Use{{Process: culprit, Bytes: bytes, Known: true}},
			Devices: []record.Device{{UUID: "GPU-a", Label: "0", MemoryKnown: true, Listed: true, Processes: []snapshot.GPUProcess{{PID: int(culprit.PID)}}}}}
	}
	s.Apply(held(failedAt+1, 1000))
	s.Apply(&record.Moment{Time: failedAt + recoveryWindow, Drained: true})
	if s.Incidents(false) != nil || !s.HasIncidents() {
		t.Error("it waits for nothing, or is not there")
	}
	line := snapshot.Line{Function: "culprit"}
	s.Apply(&record.Stack{ID: 5, Process: culprit, Frames: []*record.Place{record.NewPlace(1, 0, &snapshot.Location{Lines: []snapshot.Line{line}}, nil)}})
	s.Apply(held(failedAt+recoveryWindow+1, 2000))
	s.Apply(&record.Moment{Time: failedAt + recoveryWindow + 2, Drained: true})
	lost := loss.Counter{Name: "events_lost", Value: 3}
	s.Apply(&record.Loss{Counters: []loss.Counter{lost}})
	got := s.Incidents(false)
	if len(got) != 1 || s.HasIncidents() {
		t.Fatalf("%d incidents, want 1 and no more", len(got))
	}
	o := got[0].OutOfMemory(Want{Driver: true})
	if len(o.Stack) != 2 || o.Stack[1].Lines[0] != line {
		t.Errorf("its stack is %v", o.Stack)
	}
	if !slices.Contains(o.Snapshot.Loss, lost) {
		t.Errorf("what was lost is %v", o.Snapshot.Loss)
	}
	if a := o.Snapshot.Accounts; len(a) != 1 || a[0].Total != 1000 {
		t.Errorf("accounts %+v", a)
	}
}

// Incidents that nobody takes are few, and those beyond are counted.
func TestIncidentsThatNobodyTakes(t *testing.T) {
	s := New()
	s.Apply(&record.Trace{Incidents: 1 << 30})
	const n = 3 * maxIncidents
	for i := range uint64(n) {
		s.Apply(failedCall(failedAt + i*2*incidentPause))
	}
	if got := len(s.Incidents(true)); got != maxIncidents || s.incidents.suppressed != n-maxIncidents {
		t.Errorf("%d incidents and %d suppressed, want %d of %d", got, s.incidents.suppressed, maxIncidents, n)
	}
}

// pytorch is a process with a cached segment of 20 MiB, and one of 20 MiB of which a
// tensor has 6 MiB in the middle.
func pytorch() *State {
	s := begun(record.Trace{Incidents: 2})
	s.Apply(alloc(prog, 1, 0x10000000, 20*mib))
	s.Apply(tensor(2, 0x10000000, 4*mib, 0, 4*mib))
	s.Apply(alloc(prog, 3, 0x20000000, 20*mib))
	s.Apply(tensor(4, 0x20000000+7*mib, 6*mib, 0, 10*mib))
	s.Apply(tensorEnd(5, 0x10000000, 4*mib, 6*mib))
	return s
}

// refused is a call for a segment that fails.
func refused(at, size uint64) *event.Event {
	e := alloc(prog, at, 0, size)
	e.Result = event.OutOfMemory
	return e
}

// one is the only incident of a state.
func one(t *testing.T, s *State) *snapshot.OutOfMemory {
	t.Helper()
	got := s.Incidents(true)
	if len(got) != 1 {
		t.Fatalf("%d incidents, want 1", len(got))
	}
	return got[0].OutOfMemory(Want{})
}

// TestFrameworkGivesUp: the report has the tensor that was asked for, with the stack
// at which it was, and what was cached after the framework gave back what it could.
func TestFrameworkGivesUp(t *testing.T) {
	s := pytorch()
	stack(s, 1, " ", "segment")
	stack(s, 2, " ", "tensor")
	first := refused(10, 20*mib)
	first.Stack = 1
	s.Apply(first)
	s.Apply(free(prog, 11, 0x10000000))
	s.Apply(refused(12, 20*mib))
	s.Apply(&event.Event{Op: event.OpOutOfMemory, Time: 13, Proc: prog, TID: prog.PID, Stack: 2, Size: 8 * mib, Handle: 6 * mib, Part: 20 * mib})
	s.Apply(free(prog, 14, 0x20000000)) // the program's own, after that
	o := one(t, s)
	if o.Requested != 20*mib || o.Tensor != 8*mib || o.GaveBack != 20*mib || o.Calls != 2 || o.Recovered {
		t.Errorf("%d for a tensor of %d after %d calls; gave %d back", o.Requested, o.Tensor, o.Calls, o.GaveBack)
	}
	if got := o.Stack[len(o.Stack)-1].Lines[0].Function; got != "[tensor]" {
		t.Errorf("the stack is %q", got)
	}
	want := snapshot.Segments{Count: 1, Reserved: 20 * mib, Allocated: 6 * mib, Cached: 14 * mib, FreeBlocks: 2, LargestFree: 7 * mib}
	if o.Allocator == nil || o.Allocator.Pool(o.Tensor, "") != want {
		t.Errorf("allocator %+v, want %+v", o.Allocator, want)
	}
	if got := o.Snapshot.Allocators[0].Total().Cached; got != 34*mib {
		t.Errorf("when the call failed %d bytes were cached, want 34 MiB", got)
	}
}

// TestFrameworkRecovers: it gives back what it can, and gets what the tensor is for.
func TestFrameworkRecovers(t *testing.T) {
	s := pytorch()
	s.Apply(refused(10, 30*mib))
	s.Apply(free(prog, 11, 0x10000000))
	s.Apply(alloc(prog, 12, 0x40000000, 30*mib))
	s.Apply(tensor(13, 0x20000000, mib, 0, 36*mib)) // another one
	s.Apply(tensor(14, 0x40000000, 29*mib, 0, 35*mib))
	s.Apply(tensor(15, 0x40000000+29*mib, 512, 0, 35*mib+512)) // and one more
	o := one(t, s)
	if !o.Recovered || o.Tensor != 29*mib || o.GaveBack != 20*mib || o.Framework != nil {
		t.Errorf("recovered %v for a tensor of %d; gave %d back", o.Recovered, o.Tensor, o.GaveBack)
	}
	if o.Allocator == nil || o.Allocator.Total().Releasable != 20*mib {
		t.Errorf("allocator %+v", o.Allocator)
	}
}

// TestFrameworkRecoversPieces: with expandable segments it maps pieces, in which the
// tensor begins or which it goes on into.
func TestFrameworkRecoversPieces(t *testing.T) {
	s := pytorch()
	const at, piece = uint64(0x100000000), uint64(20 * mib)
	create := func(at, handle uint64, result int32) {
		s.Apply(&event.Event{Op: event.OpHandleCreate, Kind: event.KindVMM, Proc: prog, TID: prog.PID, Time: at, API: 1, Handle: handle, Size: piece, Result: result})
	}
	create(10, 0, event.OutOfMemory)
	s.Apply(free(prog, 11, 0x10000000))
	for i := range uint64(2) {
		create(12+i, 1+i, event.Success)
	}
	for i := range uint64(2) {
		s.Apply(&event.Event{Op: event.OpMap, Proc: prog, TID: prog.PID, Time: 14 + i, Addr: at + i*piece, Size: piece, Handle: 1 + i})
	}
	s.Apply(tensor(16, at+5*mib, 33*mib, 0, 39*mib))
	if o := one(t, s); !o.Recovered || o.Requested != int64(piece) || o.Tensor != 33*mib || o.GaveBack != 20*mib {
		t.Errorf("recovered %v for a tensor of %d by pieces of %d; gave %d back", o.Recovered, o.Tensor, o.Requested, o.GaveBack)
	}
}

// TestHostAllocatorGivesUp: PyTorch's allocator of the machine's memory is none of a GPU.
func TestHostAllocatorGivesUp(t *testing.T) {
	s := pytorch()
	s.Apply(&event.Event{Op: event.OpOutOfMemory, Time: 10, Proc: prog, TID: prog.PID, Size: 100, Device: event.NoDevice})
	if got := s.Incidents(true); len(got) != 0 {
		t.Errorf("%d incidents, want none", len(got))
	}
}

// TestTensorIsNoRecovery: a tensor of as many bytes as a call was refused is no success
// of that call.
func TestTensorIsNoRecovery(t *testing.T) {
	s := pytorch()
	s.Apply(refused(10, 5*mib))
	s.Apply(tensor(11, 0x20000000, 5*mib, 0, 11*mib))
	if o := one(t, s); o.Recovered || o.Tensor != 0 {
		t.Errorf("recovered %v, by a tensor of %d", o.Recovered, o.Tensor)
	}
}

// TestIncidentHasWhatIsHeld: of thousands of call sites that hold nothing, and of processes
// that ended, an incident keeps none.
func TestIncidentHasWhatIsHeld(t *testing.T) {
	s := begun(record.Trace{All: true, Incidents: 1})
	other := event.Process{PID: prog.PID + 1, Start: 1}
	for i := range uint64(1000) {
		e := alloc(other, i+1, (i+1)<<32, mib)
		e.Stack = i + 1
		s.Apply(e)
	}
	s.Apply(exit(other, 2000))
	s.Apply(&record.Reported{})
	s.Apply(alloc(prog, 3000, 1<<32, mib))
	failed := failedCall(failedAt)
	failed.Proc = prog
	s.Apply(failed)
	o := one(t, s)
	if got := len(o.Snapshot.Samples); got != 1 || o.Snapshot.Samples[0].InuseBytes != int64(mib) {
		t.Errorf("%d samples, want the one that holds memory", got)
	}
}

// What an incident shows is named when it is complete: until then its stacks stay, of a
// process too that is known no more.
func TestIncidentKeepsItsStacks(t *testing.T) {
	s := begun(record.Trace{All: true, NVML: true, Incidents: 1})
	for id, f := range []string{"segment", "forward", "backward"} {
		stack(s, uint64(id+1), " ", f)
	}
	segment := alloc(prog, 10, 1<<32, 20*mib)
	segment.Stack = 1
	s.Apply(segment)
	s.Apply(tensor(11, 1<<32, mib, 2, event.NoTotal))
	failed := failedCall(failedAt)
	failed.Proc, failed.Stack = prog, 3
	s.Apply(failed)
	s.Apply(exit(prog, failedAt+1))
	s.Apply(&record.Reported{})
	s.Apply(&record.Sweep{})
	s.Apply(&record.Sweep{Drop: true})
	s.Apply(&record.Moment{Time: failedAt + readingPatience, Drained: true})
	got := known(s)
	if len(got) != 1 {
		t.Fatalf("%d incidents", len(got))
	}
	o := got[0].OutOfMemory(Want{})
	var functions []string
	for _, x := range append(o.Snapshot.Samples, snapshot.Sample{Stack: o.Stack}) {
		function := "none"
		if n := len(x.Stack); n > 0 {
			function = x.Stack[n-1].Lines[0].Function
		}
		functions = append(functions, function)
	}
	if want := []string{"[segment]", "[forward]", "[backward]"}; !slices.Equal(functions, want) {
		t.Errorf("it shows %q, want %q", functions, want)
	}
}
