package account

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

var (
	target = event.Process{PID: 4711, Start: event.StartUnit}
	other  = event.Process{PID: 4712, Start: event.StartUnit}
)

// A reading is made of GPUs that each list their processes. It begins at 10 and
// is complete at 20.
type reading struct{ record.Reading }

// gpu adds a whole GPU that lists its processes. The kernel driver calls it id.
func (r *reading) gpu(label string, id uint32) *reading {
	r.Begin, r.Time = 10, 20
	r.Devices = append(r.Devices, record.Device{UUID: "GPU-" + label, Label: label, Name: "Fake", GPU: id, GPUKnown: true, Instance: -1, Listed: true})
	return r
}

// instance adds a GPU instance of MIG.
func (r *reading) instance(label string, id uint32, instance int32) *reading {
	r.gpu(label, id)
	r.last().Instance = instance
	return r
}

func (r *reading) last() *record.Device { return &r.Devices[len(r.Devices)-1] }

// lists says that the last GPU lists a process with so many bytes, -1 for a figure
// that is not told.
func (r *reading) lists(p event.Process, bytes int64) *reading {
	d := r.last()
	d.Processes = append(d.Processes, snapshot.GPUProcess{PID: int(p.PID), Bytes: max(bytes, 0), Known: bytes >= 0})
	r.Uses = append(r.Uses, record.Use{Process: p, Device: len(r.Devices) - 1, Bytes: max(bytes, 0), Known: bytes >= 0})
	return r
}

// infers makes the last figure that of the whole GPU.
func (r *reading) infers() *reading {
	r.Uses[len(r.Uses)-1].Inferred = true
	return r
}

// numbers says what a process calls the last GPU.
func (r *reading) numbers(p event.Process, ordinal int32) *reading {
	r.Ordinals = append(r.Ordinals, record.Ordinal{Process: p, Ordinal: ordinal, Device: len(r.Devices) - 1})
	return r
}

// one is a reading of GPU 0, number 6, on which the target has so many bytes.
func one(bytes int64) *reading { return new(reading).gpu("0", 6).lists(target, bytes) }

// A whole GPU that a process opened.
func whole(id uint32) physical.GPU {
	return physical.GPU{ID: id, Known: true, Instance: -1, Ordinal: event.NoDevice}
}

// holding is the target as the physical layer sees it, with so many bytes on GPU
// number 6, and nothing that changed since long.
func holding(bytes int64, fromStart bool) Process {
	return Process{Process: target, FromStart: fromStart, Seen: true, Changed: 1, GPUs: []physical.GPU{whole(6)}, Bytes: []int64{bytes}}
}

func newAccounts() *Accounts {
	a := New()
	a.Initial = true
	return a
}

// differs is the counter of readings that were not what was seen.
func differs(a *Accounts) uint64 {
	for _, c := range a.Loss() {
		if c.Name == "driver_total_differs" {
			return c.Value
		}
	}
	return 0
}

// TestCompare has one process on one GPU and readings of it, one after another.
func TestCompare(t *testing.T) {
	racing := func(p Process) Process { p.Changed = 10; return p } // in the moment that the reading began
	unseen := func(p Process) Process { p.Seen, p.Changed = false, 0; return p }
	allocating := func(p Process, bytes int64) Process {
		p.AllocatedGPUs, p.Allocated = p.GPUs, []int64{bytes}
		return p
	}
	known := func(total, before int64) Figure { return Figure{Total: total, Known: true, Before: before} }
	checked := func(total, differs int64) Figure {
		return Figure{Total: total, Known: true, Difference: differs, Compared: true}
	}
	type step struct {
		reading *reading
		process Process
	}
	for _, tt := range []struct {
		name    string
		steps   []step
		want    Figure
		differs uint64
	}{
		{"from start and equal", []step{{one(700), holding(700, true)}}, checked(700, 0), 0},
		{"from start, the driver says more", []step{{one(701), holding(700, true)}}, checked(701, 1), 1},
		{"from start, the driver says less", []step{{one(699), holding(700, true)}, {one(600), holding(700, true)}}, checked(600, -100), 2},
		{"from start, changed while it was read", []step{{one(701), racing(holding(700, true))}}, known(701, 0), 0},
		{"from start, changed since, and equal by then", []step{{one(700), racing(holding(800, true))}, {one(800), holding(800, true)}}, checked(800, 0), 0},
		{"from start, the whole GPU's figure", []step{{one(900).infers(), holding(700, true)}}, Figure{Total: 900, Known: true, Inferred: true}, 0},
		{"from start, no figure", []step{{one(-1), holding(700, true)}}, Figure{}, 0},
		{"from start, its calls are not seen", []step{{one(700), unseen(holding(100, true))}, {one(900), unseen(holding(150, true))}}, known(900, 750), 0},

		{"late", []step{{one(700), holding(0, false)}}, known(700, 700), 0},
		{"late, and it took more", []step{{one(700), holding(0, false)}, {one(750), holding(50, false)}}, known(750, 700), 0},
		{"late, and it freed some of before", []step{{one(700), holding(0, false)}, {one(650), holding(50, false)}}, known(650, 600), 0},
		{"late, and it changed while it was read", []step{{one(700), holding(0, false)}, {one(700), racing(holding(50, false))}}, known(700, 700), 0},
		{"late, racing, and then not", []step{{one(700), holding(0, false)}, {one(700), racing(holding(50, false))}, {one(740), holding(50, false)}}, known(740, 690), 0},
		{"late, racing from the first on", []step{{one(700), racing(holding(50, false))}}, known(700, 650), 0},
		{"late, racing after no figure", []step{{one(-1), holding(0, false)}, {one(700), racing(holding(50, false))}}, known(700, 650), 0},
		{"late, less than it was seen to take", []step{{one(700), holding(800, false)}}, known(700, -100), 1},
		{"late, less than its allocations", []step{{one(700), allocating(holding(100, false), 800)}}, known(700, 600), 1},
		{"late, less than it was seen to take while that changed", []step{{one(700), racing(holding(800, false))}}, known(700, -100), 0},
		{"late, the whole GPU's figure", []step{{one(900).infers(), holding(100, false)}}, Figure{Total: 900, Known: true, Inferred: true, Before: 800}, 0},
		{"late, its calls are not seen", []step{{one(700), unseen(holding(100, false))}}, known(700, 600), 0},

		{"late, and held nothing by then: as from start", []step{
			{new(reading).gpu("0", 6), holding(0, false)}, {one(700), holding(700, false)}, {one(701), holding(700, false)}}, checked(701, 1), 1},
		{"no longer listed", []step{{one(700), holding(0, false)}, {new(reading).gpu("0", 6), holding(0, false)}}, known(0, 0), 0},
		{"listed again", []step{{one(700), holding(0, false)}, {new(reading).gpu("0", 6), holding(0, false)}, {one(30), holding(10, false)}}, known(30, 20), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newAccounts()
			for _, s := range tt.steps {
				a.Observe(&s.reading.Reading, []Process{s.process})
			}
			got := a.Figure(target, "0")
			if got == nil {
				t.Fatal("no figure")
			}
			if diff := cmp.Diff(tt.want, *got); diff != "" {
				t.Errorf("figure differs (-want +got):\n%s", diff)
			}
			if n := differs(a); n != tt.differs {
				t.Errorf("%d readings differed, want %d", n, tt.differs)
			}
		})
	}
}

// TestNotListed: what a driver that may hide processes does not list says nothing.
func TestNotListed(t *testing.T) {
	gone := func() *reading { return new(reading).gpu("0", 6) }
	hiding := gone()
	hiding.last().Listed = false
	for _, tt := range []struct {
		name    string
		initial bool
		second  *reading
		want    Figure
	}{
		{"the tracer sees all PIDs, the GPU lists", true, gone(), Figure{Known: true}},
		{"the GPU could not be asked", true, hiding, Figure{Total: 700, Known: true, Before: 700}},
		{"the tracer is in a container", false, gone(), Figure{Total: 700, Known: true, Before: 700}},
	} {
		a := New()
		a.Initial = tt.initial
		a.Observe(&one(700).Reading, []Process{holding(0, false)})
		a.Observe(&tt.second.Reading, []Process{holding(0, false)})
		if got := a.Figure(target, "0"); got == nil || *got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestFromStart: that a late process held nothing is only known where every GPU
// lists all that is on it.
func TestFromStart(t *testing.T) {
	both := func() *reading { return new(reading).gpu("0", 6).gpu("1", 7) }
	second := both()
	second.last().Listed = false
	for _, tt := range []struct {
		name    string
		initial bool
		reading *reading
		want    bool
	}{
		{"listed nowhere", true, both(), true},
		{"one GPU does not list", true, second, false},
		{"the tracer is in a container", false, both(), false},
		{"listed", true, both().lists(target, 1), false},
		{"listed without a figure", true, both().lists(target, -1), false},
		{"another is listed", true, both().lists(other, 1), true},
	} {
		a := New()
		a.Initial = tt.initial
		a.Observe(&tt.reading.Reading, []Process{holding(0, false)})
		if got := a.FromStart(target); got != tt.want {
			t.Errorf("%s: from start %v, want %v", tt.name, got, tt.want)
		}
	}

	a := newAccounts()
	a.Observe(&one(700).Reading, []Process{holding(0, false)})
	a.Observe(&new(reading).gpu("0", 6).Reading, []Process{holding(0, false)})
	if a.FromStart(target) {
		t.Error("a process that was listed once is taken for one that held nothing")
	}
}

// TestDevices: what a process holds is compared GPU by GPU, also where it opened
// one GPU more than once.
func TestDevices(t *testing.T) {
	a := newAccounts()
	p := holding(0, true)
	p.GPUs, p.Bytes = []physical.GPU{whole(7), whole(6), whole(7)}, []int64{40, 300, 2}
	read := func(zero, one int64) *record.Reading {
		return &new(reading).gpu("0", 6).lists(target, zero).gpu("1", 7).lists(other, 5).lists(target, one).Reading
	}
	a.Observe(read(300, 42), []Process{p})
	if n := differs(a); n != 0 {
		t.Fatalf("%d readings differed", n)
	}
	a.Observe(read(42, 300), []Process{p})
	if n := differs(a); n != 2 {
		t.Errorf("%d readings differed with the GPUs changed for each other, want 2", n)
	}
	if got := a.Labels(target); !slices.Equal(got, []string{"0", "1"}) {
		t.Errorf("on %v", got)
	}
	if got := a.Labels(other); got != nil {
		t.Errorf("another process, which nobody asked for, is on %v", got)
	}

	p.FromStart, p.Bytes = false, []int64{10, 100, 0}
	a.Observe(read(150, 30), []Process{p})
	if zero, one := a.Figure(target, "0").Before, a.Figure(target, "1").Before; zero != 50 || one != 20 {
		t.Errorf("before attach %d and %d, want 50 and 20", zero, one)
	}
}

// TestLabelOf finds the device of NVML's that the kernel driver calls so.
func TestLabelOf(t *testing.T) {
	a := newAccounts()
	r := new(reading).gpu("0", 6).numbers(target, 1).instance("1:0", 7, 1).instance("1:1", 7, 2).numbers(target, 0).numbers(target, event.NoDevice)
	nameless := new(reading).gpu("9", 0)
	nameless.last().GPUKnown = false
	r.Devices = append(r.Devices, nameless.Devices[0])
	r.numbers(target, 4)
	a.Observe(&r.Reading, []Process{holding(0, false)})
	gpu := func(id uint32, known bool, instance, ordinal int32) physical.GPU {
		return physical.GPU{ID: id, Known: known, Instance: instance, Ordinal: ordinal}
	}
	for _, tt := range []struct {
		name string
		gpu  physical.GPU
		want string // "" for none
	}{
		{"a whole GPU", gpu(6, true, -1, 0), "0"},
		{"a GPU instance", gpu(7, true, 1, 1), "1:0"},
		{"another", gpu(7, true, 2, 1), "1:1"},
		{"one that NVML does not tell of", gpu(7, true, 3, 1), ""},
		{"a GPU that NVML does not tell of", gpu(8, true, -1, 1), ""},
		{"one that NVML does not call so: its ordinal", gpu(8, true, -1, 4), "9"},
		{"a GPU that was opened before the trace", gpu(0, false, -1, 0), "1:1"},
		{"whose ordinal is not known: the only one", gpu(0, false, -1, event.NoDevice), "1:1"},
		{"an ordinal that is not known", gpu(0, false, -1, 2), ""},
	} {
		got, known := a.LabelOf(target, &tt.gpu)
		if got != tt.want || known != (tt.want != "") {
			t.Errorf("%s: %q (known %v), want %q", tt.name, got, known, tt.want)
		}
	}
	if got, known := a.LabelOf(other, &physical.GPU{Instance: -1, Ordinal: 0}); known {
		t.Errorf("the ordinal of a process that was not told of is %q", got)
	}
}

// TestUnknownIDs compares by ordinals where the kernel driver's number is not known.
func TestUnknownIDs(t *testing.T) {
	a := newAccounts()
	p := holding(0, true)
	p.GPUs = []physical.GPU{{Instance: -1, Ordinal: 1}, {Instance: -1, Ordinal: 0}, {Instance: -1, Ordinal: event.NoDevice}}
	p.Bytes = []int64{40, 300, 9}
	r := new(reading).gpu("0", 6).lists(target, 40).numbers(target, 1).gpu("1", 7).lists(target, 300).numbers(target, 0)
	a.Observe(&r.Reading, []Process{p})
	if n := differs(a); n != 0 {
		t.Errorf("%d readings differed", n)
	}
}

// TestInstances: NVML lists who uses an instance on the whole GPU, whose figure is
// the instance's if it is the only one that the process uses.
func TestInstances(t *testing.T) {
	instances := func() *reading {
		r := new(reading).gpu("0", 6).lists(target, 340).instance("0:0", 6, 1).instance("0:1", 6, 2)
		r.Devices[1].Listed, r.Devices[2].Listed = false, false
		return r
	}
	on := func(instance int32) physical.GPU {
		return physical.GPU{ID: 6, Known: true, Instance: instance, Ordinal: event.NoDevice}
	}
	for _, tt := range []struct {
		label string
		gpus  []physical.GPU
		held  []int64
	}{
		{"0:1", []physical.GPU{on(2)}, []int64{340}},
		{"0:1", []physical.GPU{on(2), on(2)}, []int64{300, 40}},
		{"0", []physical.GPU{on(2), on(1)}, []int64{40, 300}},
		{"0", []physical.GPU{on(-1)}, []int64{340}},
	} {
		a := newAccounts()
		p := holding(0, true)
		p.GPUs, p.Bytes = tt.gpus, tt.held
		a.Observe(&instances().Reading, []Process{p})
		if f := a.Figure(target, tt.label); differs(a) != 0 || f == nil || f.Total != 340 {
			t.Errorf("%v: %d readings differed, figure of %s: %+v", tt.gpus, differs(a), tt.label, f)
		}
	}
}

// TestInstance follows a process that uses one instance of a GPU.
func TestInstance(t *testing.T) {
	gpu := func() *reading { return new(reading).gpu("0", 6) }
	with := func(r *reading) *reading {
		for i, label := range []string{"0:0", "0:1"} {
			r.instance(label, 6, int32(i+1)).last().Listed = false
		}
		return r
	}
	on := func(instance int32) Process {
		p := holding(300, true)
		p.GPUs[0].Instance = instance
		return p
	}
	a := newAccounts()
	late := on(2)
	late.Process, late.FromStart = other, false
	a.Observe(&with(gpu()).Reading, []Process{late})
	if !a.FromStart(other) {
		t.Error("no GPU lists it, and it is not known to have held nothing")
	}
	unopened := on(2)
	unopened.GPUs, unopened.Bytes = nil, nil
	a.Observe(&with(gpu().lists(target, 0)).Reading, []Process{unopened})
	if got := a.Labels(target); !slices.Equal(got, []string{"0"}) {
		t.Errorf("before it opened an instance it is on %v", got)
	}
	a.Observe(&with(gpu().lists(target, 300)).Reading, []Process{on(2)})
	if got := a.Labels(target); !slices.Equal(got, []string{"0:1"}) || differs(a) != 0 {
		t.Errorf("on %v, %d readings differed", got, differs(a))
	}
	a.Observe(&with(gpu().lists(target, 301)).Reading, []Process{on(2)})
	if differs(a) != 1 {
		t.Errorf("%d readings differed, want 1", differs(a))
	}
	a.Observe(&with(gpu()).Reading, []Process{on(2)})
	if f := a.Figure(target, "0:1"); f == nil || f.Total != 0 || !f.Known {
		t.Errorf("after it let go of all: %+v", f)
	}

	// What was opened before the trace goes by its ordinal.
	p := on(-1)
	p.FromStart, p.GPUs[0] = false, physical.GPU{Instance: -1, Ordinal: 0}
	a = newAccounts()
	a.Observe(&with(gpu().lists(target, 700)).numbers(target, 0).Reading, []Process{p})
	if f := a.Figure(target, "0:1"); f == nil || f.Before != 400 {
		t.Errorf("late: %+v", f)
	}
}

// TestEmptySince: a reading that began before a process was traced may be of before
// the process took what nobody saw.
func TestEmptySince(t *testing.T) {
	a := newAccounts()
	p := holding(0, false)
	p.Process, p.Since = other, 50
	for _, tt := range []struct {
		begin uint64
		want  bool
	}{{49, false}, {50, true}} {
		r := one(700)
		r.Begin = tt.begin
		a.Observe(&r.Reading, []Process{p})
		if got := a.FromStart(other); got != tt.want {
			t.Errorf("a reading of %d: held nothing before the trace: %v, want %v", tt.begin, got, tt.want)
		}
	}
}

// TestForget: nothing of a forgotten process stays, and all of others does.
func TestForget(t *testing.T) {
	a := newAccounts()
	rest := holding(7, true)
	rest.Process = other
	empty := holding(0, false)
	empty.Process = event.Process{PID: 1, Start: event.StartUnit}
	r := one(700).numbers(target, 0).lists(other, 7).numbers(other, 0)
	a.Observe(&r.Reading, []Process{holding(0, false), rest, empty})
	a.Forget()
	if a.Figure(target, "0") == nil || !a.FromStart(empty.Process) {
		t.Fatal("something was forgotten")
	}
	a.Forget(target, empty.Process)
	if len(a.figures) != 1 || len(a.ordinals) != 1 || len(a.empty) != 0 {
		t.Errorf("kept %v, %v, %v", a.figures, a.ordinals, a.empty)
	}
	if _, known := a.Label(other, 0); !known || a.Figure(other, "0") == nil {
		t.Error("the other process was forgotten")
	}
}

// TestOrdinals: those of a reading replace those before, and what names no device
// or no process is passed over.
func TestOrdinals(t *testing.T) {
	a := newAccounts()
	r := one(1).numbers(target, 0).numbers(target, 1).numbers(other, 0)
	r.Ordinals = append(r.Ordinals, record.Ordinal{Process: target, Ordinal: 2, Device: 1}, record.Ordinal{Process: target, Ordinal: 3, Device: -1})
	a.Observe(&r.Reading, []Process{holding(0, true)})
	for ordinal, want := range map[int32]bool{0: true, 1: true, 2: false, 3: false} {
		if _, known := a.Label(target, ordinal); known != want {
			t.Errorf("ordinal %d known: %v", ordinal, known)
		}
	}
	if _, known := a.Label(other, 0); known {
		t.Error("a process that nobody asked for has an ordinal")
	}
	a.Observe(&one(1).numbers(target, 1).Reading, []Process{holding(0, true)})
	if _, known := a.Label(target, 0); known {
		t.Error("an ordinal stays that the next reading does not tell")
	}
	a.Observe(&one(1).Reading, []Process{holding(0, true)})
	if _, known := a.Label(target, 1); !known {
		t.Error("a reading that tells none of a process's ordinals took them away")
	}
}

// TestGPUs: memory and who is on it, where it was read.
func TestGPUs(t *testing.T) {
	a := newAccounts()
	r := new(reading).gpu("0", 6).gpu("1", 7)
	d := &r.Devices[0]
	d.MemoryKnown, d.Total, d.Used, d.Free = true, 100, 60, 40
	a.Observe(&r.Reading, nil)
	want := []snapshot.GPUMemory{{GPU: "0", Name: "Fake", Total: 100, Used: 60, Free: 40}}
	if diff := cmp.Diff(want, a.GPUs()); diff != "" {
		t.Errorf("GPUs differ (-want +got):\n%s", diff)
	}
}

// What nobody holds is what is in use but for what NVML says of the processes, in the same
// reading; it is not known where one of them has a figure that is not told, or has none.
func TestRests(t *testing.T) {
	used := func(r *reading, bytes int64) *reading {
		r.last().MemoryKnown, r.last().Total, r.last().Used = true, 1000, bytes
		return r
	}
	others := holding(0, true)
	others.Process, others.Bytes = other, []int64{300}
	instance := used(new(reading).gpu("0", 6), 900).lists(target, 500)
	used(instance.instance("0:1", 6, 1), 600)
	for _, tt := range []struct {
		name      string
		reading   *reading
		processes []Process
		want      map[string]Rest
	}{
		{"nobody is traced", used(new(reading).gpu("0", 6), 900), nil, map[string]Rest{"0": {900, true}}},
		{"one of two is traced", used(one(500), 900), []Process{holding(500, true)}, map[string]Rest{"0": {400, true}}},
		{"whatever it was seen to hold", used(one(500), 900), []Process{holding(1, false)}, map[string]Rest{"0": {400, true}}},
		{"both are", used(one(500).lists(other, 300), 900), []Process{holding(500, true), others}, map[string]Rest{"0": {100, true}}},
		{"one that is hidden", used(one(500), 900), []Process{holding(500, true), others}, map[string]Rest{"0": {400, false}}},
		{"a figure that is not told", used(one(-1), 900), []Process{holding(500, true)}, map[string]Rest{"0": {900, false}}},
		{"one that is inferred", used(one(500).infers(), 900), []Process{holding(500, true)}, map[string]Rest{"0": {400, false}}},
		{"memory that was not read", one(500), []Process{holding(500, true)}, map[string]Rest{"0": {-500, false}}},
		{"an instance", instance, []Process{holding(500, true)}, map[string]Rest{"0": {400, true}, "0:1": {100, false}}},
		{"another GPU", used(used(one(500), 900).gpu("1", 7), 50), []Process{holding(500, true)}, map[string]Rest{"0": {400, true}, "1": {50, true}}},
	} {
		a := newAccounts()
		a.Observe(&tt.reading.Reading, tt.processes)
		if diff := cmp.Diff(tt.want, a.Rests()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	a := newAccounts()
	r := one(500)
	r.Uses = append(r.Uses, record.Use{Process: target, Device: 9}, record.Use{Process: target, Device: -1})
	a.Observe(&r.Reading, []Process{holding(500, true)}) // a reading that cannot be
}

// A process that the driver lists on no GPU any more has left once.
func TestLeft(t *testing.T) {
	a := newAccounts()
	for i, step := range []struct {
		reading *reading
		process Process
		left    int
	}{
		{new(reading).gpu("0", 6), holding(0, false), 0}, // it was nowhere yet
		{one(700), holding(0, false), 0},
		{new(reading).gpu("0", 6), holding(0, false), 1},
		{new(reading).gpu("0", 6), holding(0, false), 0},
		{one(0), holding(0, false), 0},
	} {
		a.Observe(&step.reading.Reading, []Process{step.process})
		if got := len(a.NewlyUnlisted()); got != step.left {
			t.Errorf("step %d: %d left, want %d", i, got, step.left)
		}
	}
	hidden := New()
	hidden.Observe(&one(700).Reading, []Process{holding(0, false)})
	hidden.Observe(&new(reading).gpu("0", 6).Reading, []Process{holding(0, false)})
	if len(hidden.NewlyUnlisted()) != 0 {
		t.Error("where the driver may hide processes one left")
	}
}
