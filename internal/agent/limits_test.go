package agent

import (
	"maps"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// A party is a process of a made-up machine.
type party struct {
	probes.Consumer
	load   float64 // of a core that the agent takes for it, with stacks
	bare   float64 // without
	memory int64
	of     func(probes.Shed) (load float64, memory int64) // in place of these, if set
}

// A machine is made up: what the agent takes there depends on what it sheds.
type machine struct {
	*limiter
	at      time.Duration
	usage   Usage
	base    int64 // memory that is for nobody
	parties []party
	changes int
}

// shedOf is what is shed of a process.
func (m *machine) shedOf(c probes.Consumer) probes.Shed {
	level := probes.ShedNothing
	for _, of := range []probes.Consumer{c, {User: c.User}} {
		if s := m.of[of]; s != nil {
			level = max(level, m.steps[s.step])
		}
	}
	return level
}

// run has the agent go on for a while.
func (m *machine) run(t *testing.T, d time.Duration, b Bounds) {
	t.Helper()
	for end := m.at + d; m.at < end; {
		m.at += usageInterval
		m.usage.Memory = m.base
		users := map[uint32]*Cost{}
		var costs []Cost
		for _, p := range m.parties {
			load, memory := p.load, p.memory
			if m.shedOf(p.Consumer) == probes.ShedAll {
				load = p.bare
			}
			if p.of != nil {
				load, memory = p.of(m.shedOf(p.Consumer))
			}
			cpu := time.Duration(load * float64(usageInterval))
			if users[p.User] == nil {
				users[p.User] = &Cost{Consumer: probes.Consumer{User: p.User}}
			}
			users[p.User].CPU += cpu
			users[p.User].Memory += memory
			if p.PID != 0 { // else it has ended
				costs = append(costs, Cost{Consumer: p.Consumer, Name: "p", CPU: cpu, Memory: memory})
			}
			m.usage.CPU += cpu
			m.usage.Memory += memory
		}
		for _, u := range users {
			costs = append(costs, *u)
		}
		for _, c := range m.observe(m.at, m.usage, b, costs) {
			m.changes++
			if (c.why == "") != (c.shed == probes.ShedNothing) {
				t.Fatalf("shed %d: %q", c.shed, c.why)
			}
		}
	}
}

// want checks of whom something is shed.
func (m *machine) want(t *testing.T, want map[probes.Consumer]probes.Shed) {
	t.Helper()
	got := map[probes.Consumer]probes.Shed{}
	for c, s := range m.of {
		if s.step > 0 {
			got[c] = m.steps[s.step]
		}
	}
	if !maps.Equal(got, want) {
		t.Fatalf("shed %v, want %v", got, want)
	}
	if len(m.why()) != len(want) {
		t.Fatalf("told %q", m.why())
	}
}

// alone is a machine with one process, which takes what it is told.
func alone(load func(probes.Shed) float64, memory func(probes.Shed) int64) *machine {
	return &machine{limiter: newLimiter(true), parties: []party{{Consumer: one, of: func(s probes.Shed) (float64, int64) { return load(s), memory(s) }}}}
}

func always[T any](v T) func(probes.Shed) T { return func(probes.Shed) T { return v } }

var (
	one    = probes.Consumer{User: 1, PID: 11}
	nobody map[probes.Consumer]probes.Shed
)

const mib = 1 << 20

// Above a limit it sheds step by step, and what was shed comes back when there is room.
func TestLimits(t *testing.T) {
	b := Bounds{Memory: 400 * mib, CPU: 0.05}
	load, memory := 0.049, int64(279*mib)
	m := alone(func(probes.Shed) float64 { return load }, func(probes.Shed) int64 { return memory })
	m.run(t, time.Hour, b)
	m.want(t, nobody)
	load, memory = 0.01, 281*mib
	m.run(t, usageInterval, b)
	m.want(t, map[probes.Consumer]probes.Shed{one: probes.ShedTensors})
	if why := m.why()[0]; !strings.Contains(why, "needs 281 MiB of memory, and may have 400 MiB") || !strings.Contains(why, "process 11 (p) of user 1") || !strings.Contains(why, "new tensors") {
		t.Fatalf("%q", why)
	}
	memory = 240 * mib // neither full nor well
	m.run(t, time.Hour, b)
	m.want(t, map[probes.Consumer]probes.Shed{one: probes.ShedTensors})
	memory = 500 * mib
	m.run(t, usageInterval, b)
	m.want(t, map[probes.Consumer]probes.Shed{one: probes.ShedAll})
	m.run(t, time.Hour, b) // no more to shed
	memory = 200 * mib
	m.run(t, restMin, b)
	m.want(t, map[probes.Consumer]probes.Shed{one: probes.ShedAll})
	m.run(t, 2*usageInterval+restMin, b)
	m.want(t, nobody)
}

// One busy moment is no reason to shed, two in a row are.
func TestProcessorLimit(t *testing.T) {
	b := Bounds{CPU: 0.05}
	load := 0.0
	m := alone(func(probes.Shed) float64 { return load }, always[int64](1<<40))
	for range 10 {
		load = 0.5
		m.run(t, usageInterval, b)
		load = 0.04
		m.run(t, usageInterval, b)
	}
	m.want(t, nobody)
	load = 0.5
	m.run(t, 2*usageInterval, b)
	m.want(t, map[probes.Consumer]probes.Shed{one: probes.ShedTensors})
	if why := m.why()[0]; !strings.Contains(why, "used 50.0 % of a core, and may use 5.0 %") {
		t.Fatalf("%q", why)
	}
}

// Where what is shed is what takes the time, it does not go back and forth all the time.
func TestHysteresis(t *testing.T) {
	calm := false
	m := alone(func(s probes.Shed) float64 {
		if s == probes.ShedAll || calm {
			return 0.01
		}
		return 0.3
	}, always[int64](0))
	b := Bounds{CPU: 0.05}
	m.run(t, 24*time.Hour, b)
	if m.changes < 10 || m.changes > 120 {
		t.Errorf("%d changes in a day", m.changes)
	}
	// Rest again after a calm day.
	calm = true
	m.run(t, 24*time.Hour, b)
	calm = false
	m.run(t, 10*usageInterval, b)
	m.want(t, map[probes.Consumer]probes.Shed{one: probes.ShedAll})
	calm = true
	m.run(t, 3*restMax, b)
	m.want(t, nobody)
}

// The rest of a process ends with it: who has its number next begins anew.
func TestShedEndsWithProcess(t *testing.T) {
	m := alone(always(0.3), always[int64](0))
	b := Bounds{CPU: 0.05}
	m.run(t, time.Hour, b)
	m.want(t, map[probes.Consumer]probes.Shed{one: probes.ShedAll})
	held := m.parties
	m.parties = nil
	m.run(t, usageInterval, b)
	m.want(t, nobody)
	m.parties = held
	m.run(t, usageInterval, b)
	m.want(t, nobody)
}

// Where no tensors are traced there are none to shed first.
func TestLimitWithoutTensors(t *testing.T) {
	memory := int64(mib)
	m := alone(always(0.0), func(probes.Shed) int64 { return memory })
	m.limiter = newLimiter(false)
	b := Bounds{Memory: mib}
	m.run(t, usageInterval, b)
	m.want(t, map[probes.Consumer]probes.Shed{one: probes.ShedAll})
	if why := m.why()[0]; !strings.Contains(why, "new allocations get no call stack") {
		t.Fatalf("%q", why)
	}
	memory = 0
	m.run(t, 2*usageInterval+restMin, b)
	m.want(t, nobody)
}

// Without limits nothing is shed, and with one that is taken away all comes back.
func TestNoLimits(t *testing.T) {
	m := alone(always(7.0), always[int64](1<<50))
	m.run(t, time.Hour, Bounds{})
	m.want(t, nobody)
	m.run(t, time.Hour, Bounds{Memory: mib})
	m.want(t, map[probes.Consumer]probes.Shed{one: probes.ShedAll})
	m.run(t, 4*restMin, Bounds{})
	m.want(t, nobody)
}

// Who exceeds a share loses detail first, alone: of processes the fewest that are enough,
// of a crowd the user, and never who takes less.
func TestLimitChoice(t *testing.T) {
	process := func(user uint32, pid int, load float64) party {
		return party{Consumer: probes.Consumer{User: user, PID: pid}, load: load, bare: load / 2, memory: int64(load * 1000 * mib)}
	}
	crowd := func(user uint32, n int, load float64) (out []party) {
		for i := range n {
			out = append(out, process(user, int(user)*10000+i+1, load/float64(n)))
		}
		return out
	}
	for name, c := range map[string]struct {
		parties []party
		want    map[probes.Consumer]probes.Shed
	}{
		"one process of many users": {
			slices.Concat([]party{process(1, 11, 2), process(1, 12, 0.01)}, crowd(2, 10, 0.05), crowd(3, 1, 0.1)),
			map[probes.Consumer]probes.Shed{one: probes.ShedAll},
		},
		"one process of one user": {
			append(crowd(1, 20, 0.1), process(1, 11, 0.9)),
			map[probes.Consumer]probes.Shed{one: probes.ShedAll},
		},
		"two processes": {
			append(crowd(1, 20, 0.1), process(1, 11, 0.9), process(1, 12, 0.8)),
			map[probes.Consumer]probes.Shed{one: probes.ShedAll, {User: 1, PID: 12}: probes.ShedAll},
		},
		"a crowd": {
			append(crowd(7, 1000, 3), process(2, 21, 0.2), process(3, 31, 0.01)),
			map[probes.Consumer]probes.Shed{{User: 7}: probes.ShedAll},
		},
		"a crowd that has ended": {
			[]party{{Consumer: probes.Consumer{User: 7}, load: 3, bare: 1.5, memory: 3000 * mib}, process(7, 71, 0.01), process(2, 21, 0.2)},
			map[probes.Consumer]probes.Shed{{User: 7}: probes.ShedAll},
		},
		"two strangers": {
			slices.Concat(crowd(7, 100, 3), crowd(8, 100, 2), []party{process(2, 21, 0.15)}),
			map[probes.Consumer]probes.Shed{{User: 7}: probes.ShedAll, {User: 8}: probes.ShedAll},
		},
	} {
		for _, b := range []Bounds{{CPU: 0.5}, {Memory: 800 * mib}} {
			m := &machine{limiter: newLimiter(false), base: 50 * mib, parties: c.parties}
			m.run(t, 5*time.Minute, b)
			t.Logf("%s, %+v: %q", name, b, m.why())
			m.want(t, c.want)
		}
	}
}

// Where what is for nobody fills the limit, who takes little keeps all.
func TestLimitWithoutRoom(t *testing.T) {
	m := &machine{limiter: newLimiter(false), base: 900 * mib, parties: []party{
		{Consumer: one, memory: 100 * mib}, {Consumer: probes.Consumer{User: 2, PID: 21}, memory: mib},
	}}
	m.run(t, time.Minute, Bounds{Memory: 800 * mib})
	m.want(t, map[probes.Consumer]probes.Shed{one: probes.ShedAll})
}

// A share leaves to others what somebody does not take.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		taken []float64
		room  float64
		want  float64
	}{
		{[]float64{10, 10}, 10, 5}, {[]float64{100, 1, 2}, 10, 7}, {[]float64{4, 100, 100}, 10, 10. / 3}, {[]float64{1}, 0, 0}, {nil, 3, 3}, {[]float64{1, 2}, 10, 7},
	} {
		if got := share(c.taken, c.room); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("share(%v, %v) = %v, want %v", c.taken, c.room, got, c.want)
		}
	}
}

// Reading is shared out by the bytes of events; other work is its user's, and among the
// user's processes likewise. What began counts from its beginning.
func TestCosts(t *testing.T) {
	var c costs
	cost := func(user uint32, pid int, bytes uint64, work time.Duration) session.Cost {
		return session.Cost{Cost: probes.Cost{Consumer: probes.Consumer{User: user, PID: pid}, Bytes: bytes, Work: work}, Live: int64(pid)}
	}
	c.since([]session.Cost{cost(1, 0, 500, time.Second), cost(1, 11, 400, 0)}, time.Minute/2, 2)
	all, worked := c.since([]session.Cost{
		cost(1, 0, 800, 2*time.Second), cost(1, 11, 550, 0), cost(1, 12, 75, 0),
		cost(2, 0, 100, 0), cost(2, 21, 100, 0), cost(3, 0, 0, 0), cost(3, 31, 0, 0),
	}, time.Minute/2+4*time.Second, 1)
	if worked != time.Minute+7*time.Second {
		t.Errorf("worked %v", worked)
	}
	want := map[probes.Consumer]time.Duration{
		{User: 1}: 4 * time.Second, one: 2 * time.Second, {User: 1, PID: 12}: time.Second,
		{User: 2}: time.Second, {User: 2, PID: 21}: time.Second, {User: 3}: 0, {User: 3, PID: 31}: 0,
	}
	got := map[probes.Consumer]time.Duration{}
	for _, x := range all {
		got[x.Consumer] = x.CPU.Round(time.Millisecond)
		if x.Memory != int64(x.PID)*bytesPerLive {
			t.Errorf("%+v", x)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	// A process that sheds all stacks costs the reading of its events alone: the other one made
	// the work, with a tenth of the bytes.
	shed := cost(1, 11, 1450, 0)
	shed.Shed = probes.ShedAll
	all, _ = c.since([]session.Cost{cost(1, 0, 1800, 3*time.Second), shed, cost(1, 12, 175, 0)}, time.Minute/2+5*time.Second, 1)
	want = map[probes.Consumer]time.Duration{{User: 1}: 2 * time.Second, one: 900 * time.Millisecond, {User: 1, PID: 12}: 1100 * time.Millisecond}
	clear(got)
	for _, x := range all {
		got[x.Consumer] = x.CPU.Round(time.Millisecond)
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// What is held counts, and neither garbage nor what Go keeps for later does. When there is garbage is
// for Go to decide, so the figures are made up.
func TestOwnMemory(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		resident      int64
		numbers       [goNumbers]int64
		needed, other int64
	}{
		"all is held":                 {100 * mib, [goNumbers]int64{goTotal: 90 * mib, goObjects: 60 * mib, goLive: 60 * mib}, 100 * mib, 10 * mib},
		"garbage":                     {100 * mib, [goNumbers]int64{goTotal: 90 * mib, goObjects: 60 * mib, goLive: 20 * mib}, 60 * mib, 10 * mib},
		"garbage, and kept for later": {100 * mib, [goNumbers]int64{goTotal: 90 * mib, goObjects: 60 * mib, goLive: 20 * mib, goFree: 15 * mib}, 45 * mib, 10 * mib},
		"given back":                  {60 * mib, [goNumbers]int64{goTotal: 90 * mib, goReleased: 40 * mib, goObjects: 30 * mib, goLive: 30 * mib}, 60 * mib, 10 * mib},
		"made since the collection":   {100 * mib, [goNumbers]int64{goTotal: 90 * mib, goObjects: 60 * mib, goLive: 70 * mib}, 100 * mib, 10 * mib},
		"read at different moments":   {30 * mib, [goNumbers]int64{goTotal: 90 * mib, goObjects: 60 * mib, goLive: 20 * mib}, 0, 0},
	} {
		if m := memoryOf(c.resident, c.numbers); m.needed() != c.needed || m.other != c.other {
			t.Errorf("%s: %d needed, %d not Go's; want %d, %d", name, m.needed(), m.other, c.needed, c.other)
		}
	}
	m, err := readMemory()
	if err != nil {
		t.Fatal(err)
	}
	if m.resident < mib || m.needed() > m.resident || m.other > m.resident {
		t.Errorf("of this process: %+v", m)
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

// While the processor is above its limit collection is rare, and it stays so until the load is well
// below. What GOGC asks for is never made less.
func TestRareCollection(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(25))
	const limit = 0.4
	var c collecting
	for _, step := range []struct {
		load, limit float64
		want        int
	}{
		{math.NaN(), limit, 25}, {0.39, limit, 25}, {0.41, limit, rareCollection}, {0.9, limit, rareCollection},
		{0.21, limit, rareCollection}, {math.NaN(), limit, rareCollection}, {0.19, limit, 25}, {9, 0, 25},
		{9, limit, rareCollection}, {9, 0, 25},
	} {
		c.spare(step.load, step.limit)
		got := debug.SetGCPercent(25)
		if debug.SetGCPercent(got); got != step.want {
			t.Errorf("at %v of %v: %d %%, want %d %%", step.load, step.limit, got, step.want)
		}
	}
	for _, usual := range []int{-1, 400} {
		debug.SetGCPercent(usual)
		c.spare(9, limit)
		if got := debug.SetGCPercent(usual); got != usual {
			t.Errorf("GOGC=%d became %d", usual, got)
		}
	}
}
