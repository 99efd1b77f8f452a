package agent

import (
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/probes"
)

// A machine is made up: what the agent takes there depends on what it sheds.
type machine struct {
	*limiter
	at    time.Duration
	usage Usage
}

// run has the agent go on for a while; load is of a core.
func (m *machine) run(t *testing.T, d time.Duration, b Bounds, load func(probes.Shed) float64, memory func(probes.Shed) int64) {
	t.Helper()
	for end := m.at + d; m.at < end; {
		m.at += usageInterval
		m.usage.CPU += time.Duration(load(m.shed) * float64(usageInterval))
		m.usage.Memory = memory(m.shed)
		before := m.shed
		changed := m.observe(m.at, m.usage, b)
		if changed != (m.shed != before) {
			t.Fatalf("%v: from %d to %d, told %v", m.at, before, m.shed, changed)
		}
		if (m.why == "") != (m.shed == probes.ShedNothing) {
			t.Fatalf("shed %d: %q", m.shed, m.why)
		}
	}
}

func always[T any](v T) func(probes.Shed) T { return func(probes.Shed) T { return v } }

func newMachine() *machine { return &machine{limiter: newLimiter(true)} }

// Above a limit it sheds step by step, and what was shed comes back when there is room.
func TestLimits(t *testing.T) {
	const mib = 1 << 20
	b := Bounds{Memory: 400 * mib, CPU: 0.05}
	m := newMachine()
	m.run(t, time.Hour, b, always(0.049), always[int64](279*mib))
	if m.shed != probes.ShedNothing {
		t.Fatalf("shed %d within its limits", m.shed)
	}
	m.run(t, usageInterval, b, always(0.01), always[int64](281*mib))
	if m.shed != probes.ShedTensors || !strings.Contains(m.why, "needs 281 MiB of memory, and may have 400 MiB") {
		t.Fatalf("shed %d: %q", m.shed, m.why)
	}
	m.run(t, time.Hour, b, always(0.01), always[int64](240*mib)) // neither full nor well
	if m.shed != probes.ShedTensors {
		t.Fatalf("shed %d while there was no room", m.shed)
	}
	m.run(t, usageInterval, b, always(0.01), always[int64](500*mib))
	if m.shed != probes.ShedAll {
		t.Fatalf("shed %d", m.shed)
	}
	m.run(t, time.Hour, b, always(0.01), always[int64](500*mib)) // no more to shed
	m.run(t, restMin, b, always(0.01), always[int64](200*mib))
	if m.shed != probes.ShedAll {
		t.Fatal("it came back at once")
	}
	m.run(t, 2*usageInterval+restMin, b, always(0.01), always[int64](200*mib))
	if m.shed != probes.ShedNothing {
		t.Fatalf("shed %d though there is room", m.shed)
	}
}

// One busy moment is no reason to shed, two in a row are.
func TestProcessorLimit(t *testing.T) {
	b := Bounds{CPU: 0.05}
	m := newMachine()
	for range 10 {
		m.run(t, usageInterval, b, always(0.5), always[int64](1<<40))
		m.run(t, usageInterval, b, always(0.04), always[int64](1<<40))
	}
	if m.shed != probes.ShedNothing {
		t.Fatalf("shed %d for single moments", m.shed)
	}
	m.run(t, 2*usageInterval, b, always(0.5), always[int64](1<<40))
	if m.shed != probes.ShedTensors || !strings.Contains(m.why, "50.0 % of a core, of 5.0 %") {
		t.Fatalf("shed %d: %q", m.shed, m.why)
	}
}

// Where what is shed is what takes the time, it does not go back and forth all the time.
func TestHysteresis(t *testing.T) {
	m := newMachine()
	changes := 0
	load := func(s probes.Shed) float64 {
		if s == probes.ShedAll {
			return 0.01
		}
		return 0.3
	}
	for range 24 {
		before := m.shed
		for range time.Hour / usageInterval {
			m.run(t, usageInterval, Bounds{CPU: 0.05}, load, always[int64](0))
			if m.shed != before {
				changes, before = changes+1, m.shed
			}
		}
	}
	if changes < 10 || changes > 80 {
		t.Errorf("%d changes in a day", changes)
	}
	// Rest again after a calm day.
	m.run(t, 24*time.Hour, Bounds{CPU: 0.05}, always(0.0), always[int64](0))
	m.run(t, 10*usageInterval, Bounds{CPU: 0.05}, always(0.3), always[int64](0))
	if m.shed != probes.ShedAll {
		t.Fatalf("shed %d", m.shed)
	}
	at := m.at
	for m.shed != probes.ShedNothing {
		m.run(t, usageInterval, Bounds{CPU: 0.05}, always(0.0), always[int64](0))
	}
	if took := m.at - at; took > 3*restMax {
		t.Errorf("it took %v to come back", took)
	}
}

// Where no tensors are traced there are none to shed first.
func TestLimitWithoutTensors(t *testing.T) {
	m := &machine{limiter: newLimiter(false)}
	b := Bounds{Memory: 1 << 20}
	m.run(t, usageInterval, b, always(0.0), always[int64](1<<20))
	if m.shed != probes.ShedAll || !strings.Contains(m.why, "New allocations have no call stack") {
		t.Fatalf("shed %d: %q", m.shed, m.why)
	}
	m.run(t, 2*usageInterval+restMin, b, always(0.0), always[int64](0))
	if m.shed != probes.ShedNothing {
		t.Fatalf("shed %d though there is room", m.shed)
	}
}

// Without limits nothing is shed, and with one that is taken away all comes back.
func TestNoLimits(t *testing.T) {
	m := newMachine()
	m.run(t, time.Hour, Bounds{}, always(7.0), always[int64](1<<50))
	if m.shed != probes.ShedNothing {
		t.Fatalf("shed %d", m.shed)
	}
	m.run(t, time.Hour, Bounds{Memory: 1 << 20}, always(7.0), always[int64](1<<50))
	if m.shed != probes.ShedAll {
		t.Fatalf("shed %d", m.shed)
	}
	m.run(t, 4*restMin, Bounds{}, always(7.0), always[int64](1<<50))
	if m.shed != probes.ShedNothing {
		t.Fatalf("shed %d", m.shed)
	}
}

// What is held counts, and garbage does not.
func TestOwnUsage(t *testing.T) {
	usage := func() Usage {
		t.Helper()
		u, err := OwnUsage()
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	before := usage()
	held := make([]byte, 64<<20)
	for i := range held {
		held[i] = byte(i)
	}
	runtime.GC()
	with := usage()
	if with.Memory < before.Memory+48<<20 || with.CPU <= before.CPU {
		t.Errorf("from %+v to %+v with %d bytes", before, with, len(held))
	}
	runtime.KeepAlive(held)
	runtime.GC()
	if without := usage(); without.Memory > with.Memory-48<<20 {
		t.Errorf("from %+v to %+v without them", with, without)
	}
}

// A limit is one of all memory, and can be taken away.
func TestCollectWithin(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	collectWithin(400 << 20)
	if got := debug.SetMemoryLimit(-1); got > 380<<20 || got < 100<<20 {
		t.Errorf("limit %d", got)
	}
	collectWithin(0)
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Errorf("limit %d", got)
	}
}
