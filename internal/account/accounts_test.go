package account

import (
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/record"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

const pid = 4711

var target = event.Process{PID: pid, Start: event.StartUnit}

// on is a reading of one GPU on which processes hold bytes, -1 for a figure that
// the driver does not tell. What any ordinal is, the one GPU is.
func on(held map[event.Process]int64) *record.Reading {
	r := &record.Reading{Devices: []record.Device{{UUID: "GPU-a", Label: "0", Name: "Fake", Listed: true}}}
	for p, bytes := range held {
		r.Devices[0].Processes = append(r.Devices[0].Processes, snapshot.GPUProcess{PID: int(p.PID), Bytes: max(bytes, 0), Known: bytes >= 0})
		r.Uses = append(r.Uses, record.Use{Process: p, Bytes: max(bytes, 0), Known: bytes >= 0})
		r.Ordinals = append(r.Ordinals, record.Ordinal{Process: p, Ordinal: event.NoDevice}, record.Ordinal{Process: p, Ordinal: 0})
	}
	return r
}

func one(bytes int64) *record.Reading { return on(map[event.Process]int64{target: bytes}) }

// holding tracked bytes on the one GPU, whose context was never seen.
func holding(tracked int64, fromStart bool) []Process {
	return []Process{{Process: target, FromStart: fromStart, Peak: tracked, Holdings: []ledger.Holding{{Device: event.NoDevice, Bytes: tracked}}}}
}

// statement returns the account and adds up what goes with it, by line.
func statement(t *testing.T, a *Accounts) (Statement, map[string]int64) {
	t.Helper()
	statements := a.Statements(target)
	if len(statements) != 1 {
		t.Fatalf("%d statements, want 1", len(statements))
	}
	parts := map[string]int64{}
	for _, p := range statements[0].Driver {
		parts[p.Name] += p.Inuse
	}
	for _, g := range statements[0].Growths {
		parts[LineGrowth] += g.Bytes
	}
	return statements[0], parts
}

// The lines of an account are the driver's figure, and so are its parts with
// what was tracked.
func wantSum(t *testing.T, s Statement, parts map[string]int64, tracked, total int64) {
	t.Helper()
	var lines, sum int64
	for _, l := range s.Lines {
		lines += l.Bytes
	}
	for _, n := range parts {
		sum += n
	}
	if !s.Known || s.Total != total || lines != total || sum+tracked != total {
		t.Errorf("total %d (known %v), lines %d, parts %d + tracked %d; want %d", s.Total, s.Known, lines, sum, tracked, total)
	}
}

func TestStatement(t *testing.T) {
	a := New()
	a.Observe(one(700), holding(100, true))
	s, parts := statement(t, a)
	wantSum(t, s, parts, 100, 700)
	if parts[LineContext] != 600 || parts[LineBefore] != 0 {
		t.Errorf("parts %v, want 600 of context", parts)
	}

	// Growth across one suspect goes under its stack; the total stays exact.
	a.Suspect(ledger.SiteKey{Proc: target, API: 1, Stack: 7})
	a.Observe(one(1000), holding(100, true))
	s, parts = statement(t, a)
	wantSum(t, s, parts, 100, 1000)
	if parts[LineGrowth] != 300 || parts[LineContext] != 600 {
		t.Errorf("parts %v, want 300 of growth", parts)
	}
	for id := range a.Stacks {
		if id != 7 {
			t.Errorf("stack %d", id)
		}
	}

	// Two call sites between two readings cannot be told apart.
	a.Suspect(ledger.SiteKey{Proc: target, API: 1, Stack: 7})
	a.Suspect(ledger.SiteKey{Proc: target, API: 1, Stack: 8})
	a.Observe(one(1100), holding(100, true))
	s, parts = statement(t, a)
	wantSum(t, s, parts, 100, 1100)
	if parts[LineGrowth] != 300 {
		t.Errorf("parts %v, want 300 of growth still", parts)
	}

	// An ended process is no longer listed: the last reading stays.
	a.Observe(on(nil), nil)
	if s, _ := statement(t, a); s.Total != 1100 {
		t.Errorf("total %d after the end, want 1100", s.Total)
	}
	a.Forget(target)
	if len(a.accounts)+len(a.ordinals)+len(a.suspects) != 0 {
		t.Error("a forgotten process is remembered")
	}
}

func TestStatementLate(t *testing.T) {
	a := New()
	a.Observe(one(700), holding(0, false))
	if _, parts := statement(t, a); parts[LineBefore] != 700 {
		t.Errorf("parts %v, want 700 from before", parts)
	}
	p := holding(0, false)
	p[0].Unmatched = 1
	a.Observe(one(500), p)
	s, parts := statement(t, a)
	wantSum(t, s, parts, 0, 500)
	if parts[LineBefore] != 500 {
		t.Errorf("parts %v, want 500 from before", parts)
	}
}

// A process that the driver did not know when it was attached to held nothing.
func TestEmptyProcess(t *testing.T) {
	a := New()
	a.Initial = true
	a.Observe(on(nil), []Process{{Process: target}})
	a.Observe(one(700), holding(100, false))
	if _, parts := statement(t, a); parts[LineBefore] != 0 || parts[LineContext] != 600 {
		t.Errorf("parts %v, want 600 of context", parts)
	}
}

// A driver that does not say gives no number.
func TestNotKnown(t *testing.T) {
	a := New()
	a.Observe(one(-1), holding(100, true))
	if s, parts := statement(t, a); s.Known || len(parts) != 0 {
		t.Errorf("%+v, parts %v: a number out of nothing", s, parts)
	}
	if a.GPUs() != nil {
		t.Error("the memory of GPUs that was not read")
	}
}

// Two holders of one PID have an account each.
func TestReusedPID(t *testing.T) {
	a := New()
	a.Observe(one(700), holding(100, false))
	later := event.Process{PID: pid, Start: 2 * event.StartUnit}
	a.Observe(on(map[event.Process]int64{later: 900}), []Process{{Process: later, FromStart: true, Holdings: []ledger.Holding{{Bytes: 100}}}})
	first, second := a.accounts[key{target, "GPU-a"}], a.accounts[key{later, "GPU-a"}]
	if first == nil || second == nil || first.last.total != 700 || second.last.total != 900 || !second.fromStart || first.fromStart {
		t.Errorf("accounts %+v and %+v", first, second)
	}
	if _, ok := a.Label(later, 7); ok {
		t.Error("a device that was never seen")
	}
}

// Memory of a context that was never seen and of device 0 is on the one GPU
// that the process uses: what the driver rounds adds up.
func TestRoundingAddsUp(t *testing.T) {
	a := New()
	l := ledger.New(ledger.Options{})
	for i, device := range []int32{event.NoDevice, 0} { // each 1 MiB short of two granules
		l.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: target, Device: device, Time: 1, Addr: uint64(i+1) << 30, Size: 3 << 20})
	}
	p := []Process{{Process: target, FromStart: true, Holdings: slices.Collect(l.Holdings(target))}}
	a.Observe(one(100<<20), p)
	for _, l := range a.accounts[key{target, "GPU-a"}].last.lines {
		if l.Name == LineRounding && l.Bytes != 2<<20 {
			t.Fatalf("rounding %d, want %d", l.Bytes, 2<<20)
		}
	}
}

// A process that the driver lists no more, and that lives, has no context: what
// was said of it ends. One reading is not enough, because it may be about to end.
func TestEndedContext(t *testing.T) {
	a := New()
	a.Initial = true
	a.Observe(one(700), holding(100, true))
	for i := range contextGone {
		if len(a.accounts) != 1 {
			t.Fatalf("gone after %d readings", i)
		}
		a.Observe(on(nil), holding(100, true))
	}
	if len(a.accounts) != 0 {
		t.Errorf("%d accounts of a process without a context", len(a.accounts))
	}
	a.Observe(one(700), holding(100, true))
	silent := on(nil) // which says nothing of the context
	silent.Devices[0].Listed = false
	for range 2 * contextGone {
		a.Observe(silent, holding(100, true))
	}
	if len(a.accounts) != 1 {
		t.Error("a driver that does not answer ended an account")
	}
}

// A reading from a file may name devices that it does not have.
func TestStrangeOrdinals(t *testing.T) {
	a := New()
	r := one(700)
	r.Ordinals = append(r.Ordinals, record.Ordinal{Process: target, Ordinal: 1, Device: 5}, record.Ordinal{Process: target, Ordinal: 2, Device: -1})
	r.Uses = append(r.Uses, record.Use{Process: target, Device: 9})
	a.Observe(r, holding(100, true))
	if label, ok := a.Label(target, 1); ok {
		t.Errorf("label %q", label)
	}
}

// A reading that tells of a process which ended while it was made leaves nothing
// behind.
func TestReadingOfAnEndedProcess(t *testing.T) {
	a := New()
	other := event.Process{PID: 9, Start: 9 * event.StartUnit}
	a.Observe(on(map[event.Process]int64{target: 700, other: 700}), holding(100, true))
	if len(a.ordinals) != 1 {
		t.Errorf("ordinals %v", a.ordinals)
	}
	a.Forget(target)
	if len(a.ordinals)+len(a.accounts)+len(a.empty)+len(a.suspects) != 0 {
		t.Errorf("%+v", a)
	}
}
