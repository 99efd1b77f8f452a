package session

import (
	"errors"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/gpu"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

// A fakeDriver says what a test wants it to say.
type fakeDriver struct {
	devices []gpu.Device
	uses    map[string][]gpu.ProcessUse // by UUID
	err     error
	reading func() // called when processes are read, if set
}

func (f *fakeDriver) Devices() ([]gpu.Device, error) { return f.devices, f.err }
func (f *fakeDriver) DriverVersion() (string, error) { return "580.0", f.err }
func (f *fakeDriver) Close() error                   { return nil }
func (f *fakeDriver) Processes(d gpu.Device) ([]gpu.ProcessUse, error) {
	if f.reading != nil {
		f.reading()
	}
	return f.uses[d.UUID], f.err
}
func (f *fakeDriver) Use(d gpu.Device, pid int) (gpu.ProcessUse, error) {
	for _, u := range f.uses[d.UUID] {
		if u.PID == pid {
			return u, f.err
		}
	}
	return gpu.ProcessUse{PID: pid}, f.err
}

const pid = 1 << 30 // no process: what it opened cannot be looked at

var target = event.Process{PID: pid, Start: event.StartUnit}

func oneGPU(bytes int64) (*gpus, *fakeDriver) {
	f := &fakeDriver{
		devices: []gpu.Device{{Index: 0, UUID: "GPU-a", Name: "Fake"}},
		uses:    map[string][]gpu.ProcessUse{"GPU-a": {{PID: pid, Bytes: bytes, Known: true}}},
	}
	g := newGPUs()
	if err := g.use(f); err != nil {
		panic(err)
	}
	return g, f
}

// holding tracked bytes on the one GPU, whose context was never seen.
func held(tracked int64, fromStart bool) []*accountable {
	return []*accountable{{proc: target, fromStart: fromStart, peak: tracked, holdings: map[int32]*holding{event.NoDevice: {tracked: tracked}}}}
}

// report returns the account and adds up the samples that go with it.
func report(t *testing.T, g *gpus) (snapshot.Account, map[string]int64) {
	t.Helper()
	sym := symbolize.New(symbolize.Config{})
	t.Cleanup(sym.Close)
	s := &Session{gpus: g, sym: sym, naming: newNaming()}
	go s.naming.run()
	t.Cleanup(func() { close(s.naming.end) })
	accounts, samples := g.statements(s.newBuilder(state{}), target, "prog")
	if len(accounts) != 1 {
		t.Fatalf("%d accounts, want 1", len(accounts))
	}
	byFrame := map[string]int64{}
	for _, x := range samples {
		if x.Kind != "driver" || x.GPU != "0" || x.PID != pid || x.Process != "prog" {
			t.Errorf("labels %+v", x.Labels)
		}
		byFrame[x.Stack[0].Lines[0].Function] += x.InuseBytes
	}
	return accounts[0], byFrame
}

// The parts of an account are the driver's figure, and so are the samples with
// what was tracked.
func wantSum(t *testing.T, a snapshot.Account, samples map[string]int64, tracked, total int64) {
	t.Helper()
	var lines, sum int64
	for _, l := range a.Lines {
		lines += l.Bytes
	}
	for _, n := range samples {
		sum += n
	}
	if !a.Known || a.Total != total || lines != total || sum+tracked != total {
		t.Errorf("total %d (known %v), lines %d, samples %d + tracked %d; want %d", a.Total, a.Known, lines, sum, tracked, total)
	}
}

func TestAccount(t *testing.T) {
	g, f := oneGPU(700)
	g.observe(held(100, true))
	a, samples := report(t, g)
	wantSum(t, a, samples, 100, 700)
	if samples[gpu.LineContext] != 600 || samples[gpu.LineBefore] != 0 {
		t.Errorf("samples %v, want 600 of context", samples)
	}

	// Growth across one suspect goes under its stack; the total stays exact.
	g.suspect(&event.Event{Op: event.OpSuspect, API: 1, Stack: 7, Proc: target})
	f.uses["GPU-a"][0].Bytes = 1000
	g.observe(held(100, true))
	a, samples = report(t, g)
	wantSum(t, a, samples, 100, 1000)
	if samples[lineGrowth] != 300 || samples[gpu.LineContext] != 600 {
		t.Errorf("samples %v, want 300 of growth", samples)
	}
	if ids := g.stackIDs(); len(ids) != 1 || ids[0] != 7 {
		t.Errorf("stack ids %v", ids)
	}

	// Two call sites between two readings cannot be told apart.
	g.suspect(&event.Event{Op: event.OpSuspect, API: 1, Stack: 7, Proc: target})
	g.suspect(&event.Event{Op: event.OpSuspect, API: 1, Stack: 8, Proc: target})
	f.uses["GPU-a"][0].Bytes = 1100
	g.observe(held(100, true))
	a, samples = report(t, g)
	wantSum(t, a, samples, 100, 1100)
	if samples[lineGrowth] != 300 {
		t.Errorf("samples %v, want 300 of growth still", samples)
	}

	// An ended process is no longer listed: the last reading stays.
	f.uses = nil
	g.observe(held(100, true))
	if a, _ := report(t, g); a.Total != 1100 {
		t.Errorf("total %d after the end, want 1100", a.Total)
	}
	g.forget(target)
	if len(g.accounts)+len(g.ordinals)+len(g.suspects) != 0 {
		t.Error("a forgotten process is remembered")
	}
}

func TestAccountLate(t *testing.T) {
	g, f := oneGPU(700)
	g.observe(held(0, false))
	if _, samples := report(t, g); samples[gpu.LineBefore] != 700 {
		t.Errorf("samples %v, want 700 from before", samples)
	}
	f.uses["GPU-a"][0].Bytes = 500
	p := held(0, false)
	p[0].unmatched = 1
	g.observe(p)
	a, samples := report(t, g)
	wantSum(t, a, samples, 0, 500)
	if samples[gpu.LineBefore] != 500 {
		t.Errorf("samples %v, want 500 from before", samples)
	}
}

// A process that the driver did not know when it was attached to held nothing.
func TestAccountOfEmptyProcess(t *testing.T) {
	g, f := oneGPU(0)
	g.initial = true
	listed := f.uses
	f.uses = nil
	g.observe([]*accountable{{proc: target}})
	f.uses = listed
	f.uses["GPU-a"][0].Bytes = 700
	g.observe(held(100, false))
	if _, samples := report(t, g); samples[gpu.LineBefore] != 0 || samples[gpu.LineContext] != 600 {
		t.Errorf("samples %v, want 600 of context", samples)
	}
}

// A driver that does not say, or fails, gives no number.
func TestAccountNotKnown(t *testing.T) {
	g, f := oneGPU(0)
	f.uses["GPU-a"][0].Known = false
	g.observe(held(100, true))
	a, samples := report(t, g)
	if a.Known || len(samples) != 0 {
		t.Errorf("account %+v, samples %v: a number out of nothing", a, samples)
	}
	f.err = errors.New("lost")
	g.observe(held(200, true))
	if g.memory() != nil {
		t.Error("GPUs of a driver that fails")
	}
	if err := newGPUs().use(f); err == nil {
		t.Error("a driver that fails is used")
	}
}

// Two holders of one PID have an account each.
func TestAccountOfReusedPID(t *testing.T) {
	g, f := oneGPU(700)
	g.observe(held(100, false))
	later := event.Process{PID: pid, Start: 2 * event.StartUnit}
	f.uses["GPU-a"][0].Bytes = 900
	g.observe([]*accountable{{proc: later, fromStart: true, holdings: map[int32]*holding{event.NoDevice: {tracked: 100}}}})
	first, second := g.accounts[accountKey{target, "GPU-a"}], g.accounts[accountKey{later, "GPU-a"}]
	if first == nil || second == nil || first.last.Total != 700 || second.last.Total != 900 || !second.FromStart || first.FromStart {
		t.Errorf("accounts %+v and %+v", first, second)
	}
	if _, ok := g.device(later, 7); ok {
		t.Error("a device that was never seen")
	}
}

// A process that ends while the driver is read leaves nothing behind.
func TestEndDuringReading(t *testing.T) {
	for _, listed := range []int64{0, 700} {
		s := offline(t, Options{})
		g, f := oneGPU(listed)
		if listed == 0 {
			f.uses = nil
		}
		g.initial, s.gpus = true, g
		s.procs.add(target)
		f.reading = func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.ended(target, &event.Event{Op: event.OpExit, Time: 1, Proc: target})
		}
		s.readGPUs()
		if n := len(g.accounts) + len(g.ordinals) + len(g.empty); n != 0 {
			t.Errorf("%d bytes held: %d entries stay of a process that is known no more", listed, n)
		}
	}
}

// Memory of a context that was never seen and of device 0 is on the one GPU
// that the process uses: what the driver rounds adds up.
func TestRoundingAddsUp(t *testing.T) {
	g, _ := oneGPU(100 << 20)
	h := map[int32]*holding{event.NoDevice: {}, 0: {}}
	for _, x := range h {
		x.rounding.Add(3 << 20) // 1 MiB short of two granules
	}
	g.ordinals[target] = map[int]gpu.Device{int(event.NoDevice): g.devices[0], 0: g.devices[0]}
	for range 10 { // in any order of the map
		g.observe([]*accountable{{proc: target, fromStart: true, used: []int{0}, holdings: h}})
		for _, l := range g.accounts[accountKey{target, "GPU-a"}].last.Lines {
			if l.Name == gpu.LineRounding && l.Bytes != 2<<20 {
				t.Fatalf("rounding %d, want %d", l.Bytes, 2<<20)
			}
		}
	}
}

// A process that the driver lists no more, and that lives, has no context: what
// was said of it ends. One reading is not enough, because it may be about to end.
func TestAccountOfEndedContext(t *testing.T) {
	g, f := oneGPU(700)
	g.initial = true
	g.observe(held(100, true))
	f.uses["GPU-a"] = nil
	for i := range contextGone {
		if len(g.accounts) != 1 {
			t.Fatalf("gone after %d readings", i)
		}
		g.observe(held(100, true))
	}
	if len(g.accounts) != 0 {
		t.Errorf("%d accounts of a process without a context", len(g.accounts))
	}
	g, f = oneGPU(700)
	g.initial = true
	g.observe(held(100, true))
	f.err = errors.New("no answer") // which says nothing of the context
	for range 2 * contextGone {
		g.observe(held(100, true))
	}
	if len(g.accounts) != 1 {
		t.Error("a driver that does not answer ended an account")
	}
}
