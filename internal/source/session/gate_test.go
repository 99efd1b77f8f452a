package session

import (
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// tenants are the processes of several tenants, whose events enter a store.
type tenants struct {
	*store
	now uint64
}

func newTenants(maxLive int) *tenants {
	x := &tenants{store: newStore(record.Trace{})}
	x.apply(&record.Trace{All: true, MaxLive: maxLive})
	return x
}

// perTenant is how many processes each tenant has.
const perTenant = 100

// process returns one of a tenant's processes.
func process(tenant uint16, i int) event.Process {
	return event.Process{PID: uint32(tenant)*1000 + uint32(i%perTenant), Start: event.StartUnit}
}

// event applies an event of one of a tenant's processes.
func (x *tenants) event(tenant uint16, i int, e event.Event) {
	x.now++
	e.Proc, e.Time, e.Tenant = process(tenant, i), x.now, tenant
	e.TID = e.Proc.PID
	x.apply(&e)
}

func (x *tenants) allocate(tenant uint16, i int, stack uint64) {
	x.event(tenant, i, event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Addr: uint64(i+1) << 12, Size: 1, API: 1, Stack: stack})
}

func (x *tenants) free(tenant uint16, i int) {
	x.event(tenant, i, event.Event{Op: event.OpFree, Addr: uint64(i+1) << 12})
}

func (x *tenants) exit(tenant uint16) {
	for i := range perTenant {
		x.event(tenant, i, event.Event{Op: event.OpExit})
	}
}

// stack tells the frames of a stack of a tenant's.
func (x *tenants) stack(tenant uint16, i int, id uint64, frames int) {
	x.apply(&record.Stack{ID: id, Process: process(tenant, i), Frames: slices.Repeat([]*record.Place{{}}, frames)})
}

// A tableCase is one table, and how a tenant fills it.
type tableCase struct {
	name    string
	maxLive int
	size    int // entries of one
	of      func(*state.Filled) int
	one     func(x *tenants, tenant uint16, i int)
}

func ofDetail(l state.Layer, table int) func(*state.Filled) int {
	return func(f *state.Filled) int { return f.Detail(l)[table] }
}

func ofSizes(l state.Layer, table int) func(*state.Filled) int {
	return func(f *state.Filled) int { return f.Sizes(l)[table] }
}

var tableCases = []tableCase{
	{"rows", 20_000, 1, ofDetail(state.Driver, 0), func(x *tenants, tenant uint16, i int) { x.allocate(tenant, i, 1) }},
	{"call sites", 1 << 20, 1, ofDetail(state.Driver, 1), func(x *tenants, tenant uint16, i int) { x.allocate(tenant, i, uint64(i)) }},
	{"sizes without a row", 20_000, 1, ofSizes(state.Driver, 0), func(x *tenants, tenant uint16, i int) {
		x.allocate(tenant, 2*i, 1) // some get rows
		x.allocate(tenant, 2*i+1, 1)
	}},
	{"mappings", 10_000, 1, ofSizes(state.Driver, 1), func(x *tenants, tenant uint16, i int) {
		x.event(tenant, i, event.Event{Op: event.OpMap, Handle: 1, Addr: uint64(i+1) << 21, Size: 1 << 21})
	}},
	{"tensors", 20_000, 1, ofDetail(state.Tensors, 0), func(x *tenants, tenant uint16, i int) { x.tensor(tenant, i) }},
	{"call sites of the kernel driver's", 1 << 20, 1, ofDetail(state.Physical, 1), func(x *tenants, tenant uint16, i int) {
		c := uint64(tenant)<<48 | uint64(i%perTenant)<<32
		x.event(tenant, i, event.Event{Op: event.OpObjectMemory, Kind: event.KindDriver, Handle: c | uint64(i+10), Part: c | 1, Size: 4096, API: 1, Stack: uint64(i + 1)})
	}},
	{"stacks in windows", 1 << 20, 1, ofDetail(state.Tensors, 2), func(x *tenants, tenant uint16, i int) {
		if x.now == 0 {
			x.apply(&record.Tensors{Window: record.Window{Length: 1, Every: 2, Open: true}})
		}
		x.tensor(tenant, i)
	}},
	{"frames", 0, 1004, func(f *state.Filled) int { return *f.Frames() }, func(x *tenants, tenant uint16, i int) {
		x.allocate(tenant, i, 1)
		x.stack(tenant, i, uint64(tenant)<<32+uint64(i), 1000)
	}},
}

func (x *tenants) tensor(tenant uint16, i int) {
	x.event(tenant, i, event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Addr: uint64(i+1) << 20, Size: 8, Stack: uint64(i + 1), Handle: event.NoTotal, Part: event.NoTotal})
}

// What a tenant may cost the next ones, in each table but the kernel driver's million objects: a lone one has seven eighths, one that comes
// then 7/64, a third 7/512. Nobody loses what it has, and when a tenant has ended, others get what it
// had. Each figure is exact but for what comes in between two looks.
func TestTablesOfTenants(t *testing.T) {
	for _, c := range tableCases {
		t.Run(c.name, func(t *testing.T) {
			x := newTenants(c.maxLive)
			bounds := x.state.Bounds()
			bound := c.of(&bounds)
			held := func(tenant uint16) int {
				if f := x.state.FilledBy()[tenant]; f != nil {
					return c.of(f)
				}
				return 0
			}
			next := 0
			fill := func(tenant uint16, entries int) {
				for range entries / c.size {
					c.one(x, tenant, next)
					next++
				}
			}
			want := func(figures ...int) {
				t.Helper()
				for i, want := range figures {
					if n := held(uint16(i + 1)); n < want-bound/64 || n > want+bound/64 {
						t.Errorf("tenant %d has %d of %d, want %d", i+1, n, bound, want)
					}
				}
			}
			first, second, third := bound*7/8, bound*7/64, bound*7/512
			fill(1, bound)
			want(first)
			fill(2, bound/4)
			want(first, second)
			fill(3, bound/8)
			want(first, second, third)
			x.exit(1)
			fill(3, bound)
			want(0, second, (bound-second)*7/8)
		})
	}
}

// A lone process whose call sites all held memory, and hold nothing any more, soon has call stacks again.
func TestIdleSitesOfOne(t *testing.T) {
	x := newTenants(1 << 20)
	bounds := x.state.Bounds()
	n := *bounds.Sites(state.Driver)
	for i := range n {
		x.allocate(1, i*perTenant, uint64(i)) // of one process
	}
	for i := range n {
		x.free(1, i*perTenant)
	}
	more := 0
	for x.gate.limits[1].detail[state.Driver] || more == 0 {
		if more++; more > n/4 {
			t.Fatalf("no call stacks %d allocations later", more)
		}
		x.allocate(1, (n+more)*perTenant, uint64(n+more))
		x.free(1, (n+more)*perTenant)
	}
}

// A call that fails counts as failed, also where its tenant has no room for anything.
func TestFailuresPassTheGate(t *testing.T) {
	x := newTenants(100)
	for i := range 1000 {
		x.allocate(1, i, 1)
	}
	if !x.gate.limits[1].sizes[state.Driver] {
		t.Fatal("the tenant has room")
	}
	x.event(1, 1000, event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Size: 1 << 20, Result: event.OutOfMemory, Stack: 1})
	var failed int64
	s := x.state.View(state.Want{}).Snapshot()
	for _, p := range s.Processes {
		failed += p.Failed
	}
	if failed != 1 {
		t.Errorf("%d failed calls, want 1", failed)
	}
	x.exit(1)
	if notes := x.gate.notes(x.state); len(notes) != 0 {
		t.Errorf("of a process that has ended: %q", notes)
	}
}

// Allocations for which a tenant has no room count as those for which nobody has: they are unknown,
// and their frees match them.
func TestShutOutIsUnknown(t *testing.T) {
	x := newTenants(100)
	for i := range 1000 {
		x.allocate(1, i*perTenant, 1) // of one process
	}
	if !x.gate.limits[1].sizes[state.Driver] {
		t.Fatal("the tenant has room")
	}
	of := func() snapshot.Process { return x.state.View(state.Want{}).Snapshot().Processes[0] }
	if p := of(); p.Inuse+p.Unknown != 1000 || p.Unknown == 0 {
		t.Errorf("of 1000 bytes %d are in use and %d unknown", p.Inuse, p.Unknown)
	}
	for i := range 1000 {
		x.free(1, i*perTenant)
	}
	if p := of(); p.UnmatchedFrees != 0 || p.Inuse != 0 {
		t.Errorf("after all frees %d bytes are in use, and %d frees are unmatched", p.Inuse, p.UnmatchedFrees)
	}
}

// A tenant that comes when another has filled a table gets as much of it as the other has, as that one
// frees and allocates.
func TestTenantsBecomeEqual(t *testing.T) {
	const bound = 20_000
	x := newTenants(bound)
	for i := range bound {
		x.allocate(1, i, 1)
	}
	freed, first, second := 0, bound, 0
	for range bound {
		x.free(1, freed)
		x.allocate(1, first, 1)
		x.allocate(2, second, 1)
		freed, first, second = freed+1, first+1, second+1
	}
	by := x.state.FilledBy()
	for tenant := range uint16(2) {
		if n := by[1+tenant].Detail(state.Driver)[0]; n < bound*7/15-bound/64 || n > bound*7/15+bound/64 {
			t.Errorf("tenant %d has %d rows of %d, want %d", 1+tenant, n, bound, bound*7/15)
		}
	}
}

// Beside one small tenant another has the rest but an eighth.
func TestSmallTenantCostsLittle(t *testing.T) {
	const bound, small = 20_000, 100
	x := newTenants(bound)
	for i := range small {
		x.allocate(2, i, 1)
	}
	for i := range bound {
		x.allocate(1, i, 1)
	}
	if n := x.state.FilledBy()[1].Detail(state.Driver)[0]; n < (bound-small)*7/8-1 {
		t.Errorf("%d rows of %d", n, bound)
	}
}

// A lone tenant whose call sites hold nothing any more makes room for others by them: its new
// allocations keep their stacks.
func TestIdleSitesMakeRoom(t *testing.T) {
	x := newTenants(1 << 20)
	bounds := x.state.Bounds()
	for i := range 2 * *bounds.Sites(state.Driver) {
		x.allocate(1, i, uint64(1+i))
		x.free(1, i)
	}
	for _, l := range x.state.View(state.Want{}).Snapshot().Loss {
		if l.Name == "sites_full" && l.Value != 0 {
			t.Errorf("%d allocations have no call site", l.Value)
		}
	}
}

// A tenant of a hundred processes that fills every table takes no stack of another tenant's. All
// totals stay exact, its own too until it has its part of the sizes. When it has ended, it is named
// no more.
func TestHostileTenant(t *testing.T) {
	const hostile, other, most = 1, 2, 30_000
	x := newTenants(most)
	made := 0
	attack := func(n int) {
		for range n {
			x.allocate(hostile, made, 1<<40+uint64(made))
			x.stack(hostile, made, 1<<40+uint64(made), 300)
			made++
		}
	}
	attack(most)
	x.stack(other, 0, 1, 100)
	for i := range most / 10 {
		x.allocate(other, i*perTenant, 1)
	}
	attack(most / 10)
	check := func(when string, want int64) {
		t.Helper()
		mine, sum := int64(0), int64(0)
		x.Read(func(st *state.State) {
			snap := st.View(state.Want{}).Snapshot()
			for i := range snap.Samples {
				s := &snap.Samples[i]
				if s.PID != int(process(other, 0).PID) {
					sum += s.InuseBytes
				} else if len(s.Stack) > 1 {
					mine += s.InuseObjects
				}
			}
		})
		if mine != most/10 || sum != want && want != 0 {
			t.Errorf("%s: %d allocations of the neighbour have their stack, want %d; the hostile tenant has %d bytes, want %d", when, mine, most/10, sum, want)
		}
	}
	check("beyond its part of stacks", most+most/10)
	attack(2 * most)
	check("beyond its part of sizes", 0)
	if counters, notes := x.gateLosses(); counters[0].Value == 0 || len(notes) != 1 {
		t.Errorf("lost %v, notes %q", counters, notes)
	}
	x.exit(hostile)
	for i := range most / 50 {
		x.allocate(other, i*perTenant, 1)
	}
	if _, notes := x.gateLosses(); len(notes) != 0 {
		t.Errorf("after the end of the hostile tenant: %q", notes)
	}
}
