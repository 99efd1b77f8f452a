package state

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// watched is a state in which prog is traced from its start, and the kernel driver's
// calls are.
func watched() *State { return begun(record.Trace{NVML: true, Physical: true, Initial: true}) }

// attached is one that was attached to prog late.
func attached() *State {
	s := watched()
	s.processes.known[prog].fromStart = false
	return s
}

func driven(s *State) *snapshot.Snapshot { return s.View(Want{Driver: true}).Snapshot() }

// stacksOf are the samples of the kernel driver's memory, as bytes in use and at the
// peak by their frames, leaf first.
func stacksOf(snap *snapshot.Snapshot) map[string][2]int64 {
	out := map[string][2]int64{}
	for i := range snap.Samples {
		s := &snap.Samples[i]
		if kindOf(s).Class() == event.ClassDevice {
			continue
		}
		var names []string
		for _, l := range s.Stack {
			names = append(names, l.Lines[0].Function)
		}
		key := strings.Join(names, " ")
		if _, twice := out[key]; twice {
			key += " again"
		}
		out[key] = [2]int64{s.InuseBytes, s.PeakBytes}
	}
	return out
}

func kindOf(s *snapshot.Sample) event.Kind {
	for k := range event.NumKinds {
		if k.String() == s.Kind {
			return k
		}
	}
	return event.KindNone
}

func expect(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestKinds has one call for each thing that memory is for: it has a line of the
// account, and a sample under the call.
func TestKinds(t *testing.T) {
	s := watched()
	k := opened(s, prog, 6)
	calls := []struct{ function, line string }{
		{"cuMemAllocAsync", "[pool]"},
		{"cuDevicePrimaryCtxRetain", "[context]"},
		{"cuModuleLoadData", "[code]"},
		{"cuCtxSetLimit", "[local memory]"},
		{"cuStreamCreate", "[stream]"},
		{"cuEventCreate", "[event]"},
		{"cuGraphInstantiateWithFlags", "[graph]"},
		{"cuTexObjectCreate", "[other]"},
		{"", "[cause not known]"},
		{"cuMemAlloc_v2", "[calls under way]"}, // it has not returned
	}
	wantLines := map[string]int64{LineAllocations: 0}
	wantStacks := map[string][2]int64{}
	total := int64(0)
	for i, c := range calls {
		size := int64(1) << i * mib
		k.takes(10, c.function, uint64(size), 0)
		wantLines[c.line] = size
		total += size
		switch c.line {
		case "[pool]":
			wantStacks[c.line] = [2]int64{size, size}
		case "[calls under way]":
			wantStacks[c.line+" "+c.function], wantStacks["[driver rounding]"] = [2]int64{size, 0}, [2]int64{0, size}
		default:
			wantStacks[strings.TrimSpace(c.line+" "+c.function)] = [2]int64{size, size}
		}
	}
	s.Apply(held(20, total))
	moment(s, 30)
	snap := driven(s)
	if len(snap.Accounts) != 1 {
		t.Fatalf("accounts %+v", snap.Accounts)
	}
	a := snap.Accounts[0]
	if a.GPU != "3" || a.Process != "prog" || a.PID != 17 || a.Total != total || !a.Known || a.Driver != total || !a.DriverKnown || a.Inferred || !a.Compared || a.Difference != 0 {
		t.Errorf("%+v", a)
	}
	expect(t, "lines", wantLines, lines(t, s))
	expect(t, "samples", wantStacks, stacksOf(snap))
	if p := snap.Processes[0]; p.Physical != total {
		t.Errorf("the process has %d, want %d", p.Physical, total)
	}
}

// TestShared: what another process gave away is with who has it when its owner lets go.
func TestShared(t *testing.T) {
	s := watched()
	other := event.Process{PID: 18, Start: event.StartUnit}
	s.Apply(&record.Process{Process: other, Target: true, Name: "other", FromStart: true})
	owner, importer := opened(s, prog, 6), opened(s, other, 6)
	object := owner.takes(10, "cuMemAlloc_v2", 4*mib, 0)
	importer.last++
	importer.apply(&event.Event{Op: event.OpObjectShare, Time: 11, Handle: importer.client<<32 | importer.last, Part: importer.device(), Addr: object})
	s.Apply(held(12, 0))
	moment(s, 13)
	owner.frees(20, object, "cuMemFree_v2")
	snap := driven(s)
	expect(t, "samples", map[string][2]int64{"[shared, its owner gone]": {4 * mib, 4 * mib}, "[driver rounding]": {0, 4 * mib}}, stacksOf(snap))
	i := slices.IndexFunc(snap.Accounts, func(a snapshot.Account) bool { return a.Process == "other" })
	if i < 0 || snap.Accounts[i].Total != 4*mib {
		t.Errorf("accounts %+v", snap.Accounts)
	}
}

// TestPeakOfTheDriver: rounding, the pool and what is under a stack have what they
// were at the peak of all that the process held, also when all is gone.
func TestPeakOfTheDriver(t *testing.T) {
	s := watched()
	s.Apply(nobody(2))
	moment(s, 3)
	k := opened(s, prog, 6)
	context := k.takes(4, "cuDevicePrimaryCtxRetain", 100*mib, 0)
	pool := k.takes(5, "cuMemAllocAsync", 32*mib, 0)
	async := alloc(prog, 6, 0x3000, 5*mib)
	async.Kind = event.KindAsync
	s.Apply(async)
	first := k.backs(10, 0x1000, 3*mib, 4*mib) // the peak
	s.Apply(free(prog, 11, 0x1000))
	k.frees(11, first, "cuMemFree_v2")
	stream := k.takes(12, "cuStreamCreate", 2*mib, 0)
	want := map[string][2]int64{
		"[context] cuDevicePrimaryCtxRetain": {100 * mib, 100 * mib},
		"[stream] cuStreamCreate":            {2 * mib, 0},
		"[driver rounding]":                  {0, 1 * mib},
		"[pool]":                             {27 * mib, 27 * mib},
	}
	expect(t, "after the peak", want, stacksOf(driven(s)))

	s.Apply(free(prog, 20, 0x3000))
	for _, object := range []uint64{context, pool, stream} {
		k.frees(21, object, "")
	}
	moment(s, 30)
	for name, v := range want {
		want[name] = [2]int64{0, v[1]}
	}
	snap := driven(s)
	expect(t, "after all", want, stacksOf(snap))
	if len(snap.Accounts) != 0 {
		t.Errorf("accounts of what holds nothing: %+v", snap.Accounts)
	}
}

// TestLate: what was allocated before the trace is what NVML says beyond what was
// seen, and memory of before that allocations of the trace lie in comes out of it.
func TestLate(t *testing.T) {
	s := attached()
	s.Apply(held(2, 700*mib))
	moment(s, 3)
	expect(t, "at attach", map[string]int64{LineAllocations: 0, LineBefore: 700 * mib}, lines(t, s))

	s.Apply(alloc(prog, 10, 0x1000, 1*mib)) // in memory of before
	k := before(s, prog, 6)
	k.takes(11, "cuStreamCreate", 2*mib, 0)
	snap := driven(s)
	expect(t, "lines", map[string]int64{LineAllocations: 1 * mib, "[stream]": 2 * mib, LineBefore: 699 * mib}, lines(t, s))
	expect(t, "samples", map[string][2]int64{LineBefore: {699 * mib, 699 * mib}, "[stream] cuStreamCreate": {2 * mib, 2 * mib}}, stacksOf(snap))
	if a := snap.Accounts[0]; a.Total != 702*mib || !a.Known || a.Driver != 700*mib || !a.DriverKnown {
		t.Errorf("%+v", a)
	}
	s.Apply(held(20, 702*mib))
	moment(s, 21)
	if a := driven(s).Accounts[0]; a.Total != 702*mib || a.Driver != 702*mib || !a.DriverKnown {
		t.Errorf("after a reading: %+v", a)
	}

	unread := attached()
	opened(unread, prog, 6).takes(10, "cuStreamCreate", 2*mib, 0)
	if a := driven(unread).Accounts[0]; a.Known || a.Total != 2*mib {
		t.Errorf("without a reading: %+v", a)
	}
}

// TestLateButEmpty: a process that NVML listed nowhere at attach is as one that was
// traced from its start.
func TestLateButEmpty(t *testing.T) {
	s := attached()
	s.Apply(nobody(2))
	moment(s, 3)
	opened(s, prog, 6).takes(10, "cuStreamCreate", 2*mib, 0)
	s.Apply(held(20, 3*mib))
	moment(s, 21)
	expect(t, "lines", map[string]int64{LineAllocations: 0, "[stream]": 2 * mib}, lines(t, s))
	if a := driven(s).Accounts[0]; a.Total != 2*mib || a.Driver != 3*mib || !a.DriverKnown || !a.Compared || a.Difference != mib {
		t.Errorf("%+v", a)
	}
	if i := slices.IndexFunc(s.loss(), func(c loss.Counter) bool { return c.Name == "driver_total_differs" && c.Value == 1 }); i < 0 {
		t.Errorf("the difference is not counted: %+v", s.loss())
	}
}

// TestNotSeen: where the kernel driver's calls are not seen the rest is one line, as
// it was when NVML was read.
func TestNotSeen(t *testing.T) {
	for _, tt := range []struct {
		name     string
		physical bool // others are seen
		late     bool
		line     string
	}{
		{"from start", false, false, LineRemainder},
		{"from start, the layer runs", true, false, LineRemainder},
		{"late", false, true, LineBefore},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := begun(record.Trace{NVML: true, Physical: tt.physical})
			s.processes.known[prog].fromStart = !tt.late
			s.Apply(alloc(prog, 1, 0x1000, 100*mib))
			s.Apply(held(10, 700*mib))
			moment(s, 11)
			expect(t, "lines", map[string]int64{LineAllocations: 100 * mib, tt.line: 600 * mib}, lines(t, s))
			expect(t, "samples", map[string][2]int64{tt.line: {600 * mib, 600 * mib}}, stacksOf(driven(s)))
			if a := driven(s).Accounts[0]; a.Total != 700*mib || !a.Known || !a.DriverKnown || a.Driver != 700*mib {
				t.Errorf("%+v", a)
			}
			s.Apply(alloc(prog, 20, 0x90000000, 50*mib))
			expect(t, "lines after the reading", map[string]int64{LineAllocations: 150 * mib, tt.line: 600 * mib}, lines(t, s))
			if a := driven(s).Accounts[0]; a.Total != 750*mib || a.Driver != 700*mib || !a.DriverKnown {
				t.Errorf("after the reading: %+v", a)
			}
		})
	}
}

const libcuda = "/usr/lib/libcuda.so.580"

// TestSystemMemory is on no GPU, and so in no account.
func TestSystemMemory(t *testing.T) {
	s := watched()
	k := opened(s, prog, 6)
	k.object(10, event.KindSystem, "cuStreamCreate", 9*mib, 0)
	if a := driven(s).Accounts; len(a) != 0 {
		t.Errorf("accounts %+v", a)
	}
	k.takes(11, "cuStreamCreate", 2*mib, 0)
	snap := driven(s)
	if a := snap.Accounts; len(a) != 1 || a[0].Total != 2*mib {
		t.Errorf("accounts %+v", a)
	}
	i := slices.IndexFunc(snap.Samples, func(x snapshot.Sample) bool { return x.Kind == "system" })
	if i < 0 || snap.Samples[i].GPU != "" || snap.Samples[i].InuseBytes != 9*mib || snap.Samples[i].Stack[0].Lines[0].Function != "[driver's system memory]" {
		t.Errorf("samples %+v", snap.Samples)
	}
	if p := snap.Processes[0]; p.Physical != 2*mib {
		t.Errorf("the process has %d of GPUs' memory", p.Physical)
	}
}

// TestTwoGPUs: each process has an account on each GPU that it holds memory on.
func TestTwoGPUs(t *testing.T) {
	s := watched()
	other := event.Process{PID: 18, Start: event.StartUnit}
	s.Apply(&record.Process{Process: other, Target: true, Name: "other", FromStart: true})
	r := nobody(2)
	second := r.Devices[0]
	second.UUID, second.Label, second.GPU = "GPU-b", "4", 7
	r.Devices = append(r.Devices, second)
	s.Apply(r)
	moment(s, 3)
	for i, id := range []event.Process{prog, other} {
		for j, gpu := range []uint32{6, 7} {
			opened(s, id, gpu).takes(10, "cuStreamCreate", uint64(1+2*i+j)*mib, 0)
		}
	}
	got := map[string]int64{}
	for _, a := range driven(s).Accounts {
		got[a.Process+" "+a.GPU] = a.Total
	}
	expect(t, "accounts", map[string]int64{"prog 3": 1 * mib, "prog 4": 2 * mib, "other 3": 3 * mib, "other 4": 4 * mib}, got)
}

// TestLabelsWithoutNVML: a GPU is what CUDA calls it as soon as an allocation tells,
// and before that what the kernel driver does.
func TestLabelsWithoutNVML(t *testing.T) {
	s := begun(record.Trace{Physical: true})
	labels := func() (out []string) {
		for _, a := range driven(s).Accounts {
			out = append(out, a.GPU)
		}
		return out
	}
	k := opened(s, prog, 0x1_2f_05)
	k.takes(10, "cuStreamCreate", 2*mib, 0)
	expect(t, "before an allocation", []string{"0001:2f:05.0"}, labels())
	e := alloc(prog, 11, 0x1000, 1*mib)
	e.Device = 1
	k.takes(11, "cuMemAlloc_v2", 2*mib, 0)
	s.Apply(e)
	expect(t, "after it", []string{"cuda:1"}, labels())
	if a := driven(s).Accounts[0]; a.Total != 4*mib || !a.Known || a.DriverKnown {
		t.Errorf("%+v", a)
	}

	late := begun(record.Trace{Physical: true})
	before(late, prog, 6).takes(10, "cuStreamCreate", 2*mib, 0)
	if a := driven(late).Accounts; len(a) != 1 || a[0].GPU != "unknown" {
		t.Errorf("opened before the trace: %+v", a)
	}
}

// TestEnded: an ended process that is shown no more keeps what it ever allocated, and
// has no account.
func TestEnded(t *testing.T) {
	s := begun(record.Trace{NVML: true, Physical: true, Initial: true, All: true})
	opened(s, prog, 6).takes(10, "cuStreamCreate", 2*mib, 0)
	s.Apply(held(11, 2*mib))
	moment(s, 12)
	s.Apply(exit(prog, 13))
	s.Apply(&record.Moment{Time: 14, Slept: 0, Drained: true})
	snap := driven(s)
	var allocated int64
	for i := range snap.Samples {
		allocated += snap.Samples[i].AllocBytes
	}
	if allocated != 2*mib {
		t.Errorf("allocated %d, want %d", allocated, 2*mib)
	}
	for _, a := range snap.Accounts {
		if a.Total != 2*mib {
			t.Errorf("%+v", a)
		}
	}
}

// A reading that began before a process was first seen does not say that the process
// held nothing then: of what it took in between nothing was seen.
func TestFirstSeenAfterReading(t *testing.T) {
	for _, tt := range []struct {
		begin uint64
		want  bool
	}{{90, false}, {110, true}} {
		s := begun(record.Trace{NVML: true, Physical: true, Initial: true, All: true})
		id := event.Process{PID: 77, Start: event.StartUnit}
		s.Apply(&event.Event{Op: event.OpDescriptorClose, Proc: id, Time: 100, Addr: 3, Device: event.NoDevice})
		s.Apply(&record.Reading{Begin: tt.begin, Time: 120, Devices: []record.Device{{Label: "0", UUID: "GPU-0", Instance: -1, Listed: true}}})
		s.Apply(&record.Moment{Time: 130, Drained: true})
		if got := s.accounts.FromStart(id); got != tt.want {
			t.Errorf("a reading of %d, the first call at 100: held nothing before: %v, want %v", tt.begin, got, tt.want)
		}
	}
}
