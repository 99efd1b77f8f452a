package state

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/record"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// watched is a state in which prog is traced from its start, and the kernel driver's
// calls are.
func watched() *State { return begun(record.Trace{NVML: true, Physical: true, Initial: true}) }

// attached is one that was attached to prog late.
func attached() *State {
	s := watched()
	s.procs.known[prog].fromStart = false
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
		{"cuMemAlloc_v2", "[driver rounding]"},
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
		case "[pool]", "[driver rounding]":
			wantStacks[c.line] = [2]int64{size, size}
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
	expect(t, "samples", map[string][2]int64{"[shared, its owner gone]": {4 * mib, 0}}, stacksOf(snap))
	i := slices.IndexFunc(snap.Accounts, func(a snapshot.Account) bool { return a.Process == "other" })
	if i < 0 || snap.Accounts[i].Total != 4*mib {
		t.Errorf("accounts %+v", snap.Accounts)
	}
}

// TestPeakOfTheDriver: rounding, the pool and what is under a stack have what they
// were at the peak of the program's own memory, also when all is gone.
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
	expect(t, "samples", map[string][2]int64{LineBefore: {699 * mib, 0}, "[stream] cuStreamCreate": {2 * mib, 0}}, stacksOf(snap))
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
			s.procs.known[prog].fromStart = !tt.late
			s.Apply(alloc(prog, 1, 0x1000, 100*mib))
			s.Apply(held(10, 700*mib))
			moment(s, 11)
			expect(t, "lines", map[string]int64{LineAllocations: 100 * mib, tt.line: 600 * mib}, lines(t, s))
			expect(t, "samples", map[string][2]int64{tt.line: {600 * mib, 0}}, stacksOf(driven(s)))
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

// stack tells one of frames: "file function", or "file" for one without a name.
func stack(s *State, id uint64, frames ...string) {
	st := &record.Stack{ID: id, Process: prog}
	for i, frame := range frames {
		file, function, named := strings.Cut(frame, " ")
		l := &snapshot.Location{Address: id<<8 + uint64(i), Lines: []snapshot.Line{{Function: function}}}
		if !named {
			l.Lines[0] = snapshot.Line{Function: "[" + file + "]", Reason: "stripped"}
		}
		if file != "" {
			l.Mapping = &snapshot.Mapping{Path: file}
		}
		st.Frames = append(st.Frames, record.NewPlace(id<<8+uint64(i), l.Address, l, nil))
	}
	s.Apply(st)
}

// TestCauses: where no probed function tells what memory is for, libcuda's function
// that was called from elsewhere does. libcuda's own frames are not shown.
func TestCauses(t *testing.T) {
	const anonymous = ""
	for _, tt := range []struct {
		name     string
		function string // probed
		frames   []string
		want     string
	}{
		{"a function of libcuda's", "", []string{libcuda, libcuda, libcuda + " cuStreamCreate", "/prog main"}, "[stream] cuStreamCreate main"},
		{"inner names are not the cause", "", []string{libcuda + " cuMemAlloc_v2", libcuda + " cuGraphLaunch", "/prog main"}, "[graph] cuGraphLaunch main"},
		{"another copy of it, in a folder of its own", "", []string{"/a/libcuda.so.1", "/b/libcuda.so.1 cuModuleLoadData", "/prog main"}, "[code] cuModuleLoadData main"},
		{"called back, and called again", "", []string{libcuda + " cuStreamCreate", "/prog callback", libcuda + " cuLaunchHostFunc", "/prog main"}, "[stream] cuStreamCreate callback [libcuda] main"},
		{"a probed function tells first", "cuEventCreate", []string{libcuda + " cuStreamCreate", "/prog main"}, "[event] cuEventCreate main"},
		{"called where it has no name", "", []string{libcuda + " cuInit", libcuda, "/usr/lib/libcudart.so cudaSetDevice", "/prog main"}, "[other] cudaSetDevice main"},
		{"called by video, by an address", "", []string{libcuda, "/usr/lib/libnvcuvid.so.1", "/usr/lib/libnvcuvid.so.1", "/prog main"}, "[video] libnvcuvid main"},
		{"called by video, by its name", "", []string{libcuda, libcuda + " cuModuleLoadData", "/usr/lib/libnvcuvid.so.1", "/prog main"}, "[code] cuModuleLoadData [/usr/lib/libnvcuvid.so.1] main"},
		{"OpenCL, without libcuda", "", []string{"/usr/lib/libnvidia-opencl.so.1", "/usr/lib/libOpenCL.so clCreateBuffer", "/prog main"}, "[opencl] libnvidia-opencl clCreateBuffer main"},
		{"no names at all", "", []string{libcuda, libcuda, "/prog"}, "[cause not known] [" + libcuda + "] [" + libcuda + "] [/prog]"},
		{"nothing but libcuda", "", []string{libcuda, libcuda + " cuStreamCreate"}, "[stream] cuStreamCreate"},
		{"code in no file", "", []string{anonymous + " jitted", "/prog main"}, "[cause not known] jitted main"},
		{"no frames", "", nil, "[cause not known]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := watched()
			stack(s, 5, tt.frames...)
			opened(s, prog, 6).takes(10, tt.function, 2*mib, 5)
			want := strings.ReplaceAll(tt.want, "[libcuda]", "cuLaunchHostFunc")
			expect(t, "samples", map[string][2]int64{want: {2 * mib, 2 * mib}}, stacksOf(driven(s)))
		})
	}
}

// TestFrameWithoutLines: a recording may hold one.
func TestFrameWithoutLines(t *testing.T) {
	s := watched()
	place := record.NewPlace(1, 1, &snapshot.Location{Mapping: &snapshot.Mapping{Path: libcuda}}, nil)
	s.Apply(&record.Stack{ID: 5, Process: prog, Frames: []*record.Place{place}})
	opened(s, prog, 6).takes(10, "", 2*mib, 5)
	if n := len(driven(s).Samples); n != 1 {
		t.Errorf("%d samples, want 1", n)
	}
}

// TestMerged: memory that one call of the program brought is one sample, whatever
// went on inside libcuda.
func TestMerged(t *testing.T) {
	s := watched()
	other := event.Process{PID: 18, Start: event.StartUnit}
	s.Apply(&record.Process{Process: other, Target: true, Name: "other", FromStart: true})
	program := &snapshot.Mapping{Path: "/prog"}
	driver := &snapshot.Mapping{Path: libcuda}
	place := func(id uint64, m *snapshot.Mapping, function string) *record.Place {
		return record.NewPlace(id, id, &snapshot.Location{Address: id, Mapping: m, Lines: []snapshot.Line{{Function: function}}}, nil)
	}
	retain, main, again := place(1, driver, "cuDevicePrimaryCtxRetain"), place(2, program, "main"), place(3, program, "main")
	for i := range uint64(17) {
		s.Apply(&record.Stack{ID: 100 + i, Process: prog, Frames: []*record.Place{place(100+i, driver, fmt.Sprint("inner", i)), retain, main}})
	}
	s.Apply(&record.Stack{ID: 200, Process: prog, Frames: []*record.Place{retain, again}})
	k, second := opened(s, prog, 6), opened(s, prog, 7)
	for i := range uint64(17) {
		k.takes(10+i, "", 2*mib, 100+i)
	}
	k.takes(40, "", 3*mib, 200)                         // from another address of main
	k.takes(41, "cuStreamCreate", 5*mib, 100)           // for something else
	second.takes(42, "", 7*mib, 100)                    // on another GPU
	opened(s, other, 6).takes(43, "", 11*mib, 101)      // of another process
	k.takes(44, "cuDevicePrimaryCtxRetain", 2*mib, 101) // the same, seen otherwise
	s.Apply(held(50, 0))
	moment(s, 51)
	type face struct{ kind, api, gpu, process string }
	got := map[face][]int64{}
	snap := driven(s)
	for i := range snap.Samples {
		x := &snap.Samples[i]
		if x.Stack[0].Lines[0].Function != LineRounding {
			f := face{x.Kind, x.API, x.GPU, x.Process}
			got[f] = append(got[f], x.InuseBytes)
			if x.AllocBytes != x.InuseBytes || x.InuseObjects != x.AllocObjects {
				t.Errorf("%+v", x.Values)
			}
		}
	}
	const api = "cuDevicePrimaryCtxRetain"
	expect(t, "samples", map[face][]int64{
		{"context", api, "3", "prog"}:             {36 * mib, 3 * mib},
		{"stream", "cuStreamCreate", "3", "prog"}: {5 * mib},
		{"context", api, "unknown", "prog"}:       {7 * mib},
		{"context", api, "3", "other"}:            {11 * mib},
	}, got)
}

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

// physicalTrace applies the records of traced, with what the kernel driver hands out to its
// processes beside them, on two GPUs. Some processes are attached to late.
func physicalTrace(seed uint64, n int, s *State) {
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
		s.Apply(r)
		if e, ok := r.(*event.Event); ok && e.Op == event.OpFork && rng.IntN(2) == 0 {
			s.procs.known[e.Child].fromStart = false
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
			if class := kindOf(x).Class(); x.InuseBytes != 0 && (class == event.ClassDevice || class == event.ClassDriver) {
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
		var highest, atPeak int64
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
			if peak := s.ledger.Peak(prog); peak > highest || peak == 0 {
				highest, atPeak = peak, s.taken(prog)
			}
		}
		var peak int64
		for _, x := range driven(s).Samples {
			peak += x.PeakBytes
		}
		if peak != atPeak || atPeak == 0 {
			t.Errorf("seed %d: %d at the peak, want %d", seed, peak, atPeak)
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
