package ledger

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

func lossOf(l *Ledger, name string) uint64 {
	for _, c := range l.Loss() {
		if c.Name == name {
			return c.Value
		}
	}
	panic("no loss named " + name)
}

// TestTotalsBeyondMaxLive: with far fewer rows than allocations, and far
// fewer sites than stacks, every total equals the unbounded model's, and the
// sites still add up to them. What has a row and a stack has them as in the model, and
// TakeExtents told of each place at the site that it has.
func TestTotalsBeyondMaxLive(t *testing.T) {
	for _, opt := range []Options{{MaxLive: 20, MaxSites: 10}, {MaxLive: 40, MaxSites: 6}, {MaxLive: 60, MaxSites: 30}} {
		t.Run(fmt.Sprintf("%d rows, %d sites", opt.MaxLive, opt.MaxSites), func(t *testing.T) { testTotalsBeyond(t, opt) })
	}
}

func testTotalsBeyond(t *testing.T, opt Options) {
	g := newGenerator(randomChooser{rand.New(rand.NewPCG(3, 3))})
	g.calm = true // beyond MaxLive a stale free cannot be told
	w := watcher{}
	opt.MaxUnattributed, opt.Changed, opt.Extents = 1<<20, w.hear, func(event.Process) bool { return true }
	l, m, heard := New(opt), newModel(), places{}
	unattributed := false
	for i := range 40_000 {
		e := g.next()
		switch e.Op {
		case event.OpExit:
			continue // ended processes give their rows up
		case event.OpPrimaryReset:
			continue // beyond MaxLive the site's device is not known
		case event.OpGraphDestroy, event.OpCaptureEnd:
			continue // beyond MaxLive the graph is not known
		}
		if e.Size == 0 && e.Op == event.OpHandleCreate {
			e.Size = 1
		}
		l.Apply(e)
		m.apply(e)
		heard.take(l)
		w.compare(t, l, e.Proc, fmt.Sprintf("operation %d", i))
		if i%500 != 0 {
			continue
		}
		want, got := map[event.Process]ProcessTotals{}, map[event.Process]ProcessTotals{}
		for id, p := range m.procs {
			want[id] = p.totals()
		}
		type sums struct{ Inuse, Peak, Objects int64 }
		bySite := map[event.Process]sums{}
		for s := range l.Sites {
			b := bySite[s.Proc]
			b.Objects += s.InuseObjects
			if s.Kind.Class() == event.ClassDevice {
				b.Inuse += s.InuseBytes
				b.Peak += s.PeakBytes
			}
			bySite[s.Proc] = b
		}
		for id := range m.procs {
			compareSums(t, l, id)
		}
		compareRows(t, l, m, i)
		heard.compare(t, l, i)
		for p := range l.Processes {
			got[p.Proc] = p
			unattributed = unattributed || p.Unattributed > 0
			if diff := cmp.Diff(sums{p.Inuse, p.Peak, p.LiveObjects}, bySite[p.Proc]); diff != "" {
				t.Fatalf("operation %d: sites do not add up (-totals +sites):\n%s", i, diff)
			}
		}
		// One pool stands for all there, which only bounds the reserve.
		rest := cmpopts.IgnoreFields(ProcessTotals{}, "Unattributed", "AsyncHigh")
		if diff := cmp.Diff(want, got, rest); diff != "" {
			t.Fatalf("operation %d: totals differ (-model +ledger):\n%s", i, diff)
		}
	}
	if !unattributed || lossOf(l, "allocations_unattributed") == 0 || lossOf(l, "sites_full") == 0 || lossOf(l, "sites_folded") == 0 {
		t.Errorf("the bounds were never reached: %+v", l.Loss())
	}
}

// compareRows fails t where something that has a row and a stack is not what the model has. For
// memory of a pool it does not compare the device: a pool that was destroyed is forgotten with
// its last row, though allocations without one may still be in it. A later allocation of the same
// handle is then not known to be in that pool, and its device is the calling thread's.
func compareRows(t *testing.T, l *Ledger, m *model, at int) {
	t.Helper()
	withoutPlace := func(r liveRow) liveRow {
		if r.site.Kind.Async() {
			r.site.Device, r.site.Ctx = 0, 0
		}
		return r
	}
	want := map[liveRow]bool{}
	for r := range m.live() {
		want[withoutPlace(r)] = true
	}
	for a := range l.Live {
		row := liveRow{a.Proc, a.Handle, a.Space, a.Addr, a.Size, a.Time, a.Site.SiteKey}
		if !want[withoutPlace(row)] && !a.Site.Synthetic {
			t.Fatalf("operation %d: the model has no %+v", at, row)
		}
	}
}

// places are the address ranges of each process, by where they begin and end. They come from TakeExtents.
type places map[event.Process]map[[2]uint64]*Site

func (x places) take(l *Ledger) {
	for e := range l.TakeExtents {
		for place := range x[e.Proc] {
			if place[0] < e.To && place[1] > e.From {
				delete(x[e.Proc], place)
			}
		}
		if e.Site != nil {
			if x[e.Proc] == nil {
				x[e.Proc] = map[[2]uint64]*Site{}
			}
			x[e.Proc][[2]uint64{e.From, e.To}] = e.Site
		}
	}
}

// compare fails t where a place is not at the site of what lies there. What lies over
// something else that was not seen to end has taken its place.
func (x places) compare(t *testing.T, l *Ledger, step int) {
	t.Helper()
	check := func(id event.Process, from, to uint64, at *Site) {
		if heard := x[id][[2]uint64{from, to}]; heard != nil && heard != at {
			t.Fatalf("operation %d: %v has %#x to %#x at %+v, and it was heard to be at %+v", step, id, from, to, at.SiteKey, heard.SiteKey)
		}
	}
	for a := range l.Live {
		if a.Handle == 0 && a.Space == event.SpacePointer && a.Site.Kind.Class() == event.ClassDevice {
			check(a.Proc, a.Addr, a.Addr+a.Size, a.Site)
		}
	}
	for _, p := range l.procs {
		for addr, r := range p.allocs.extra[event.SpacePointer] {
			if r.kind().Class() == event.ClassDevice {
				_, s := p.sites.synthetic(r.kind())
				check(p.id, addr, addr+r.size(), s)
			}
		}
		p.vmm.eachMapping(func(m *mapping) {
			if m.ph != nil && !m.ph.dead {
				check(p.id, m.addr, m.end, p.sites.all[m.ph.site])
			}
		})
	}
}

// compareSums fails t where a process's holdings are not the sums of its sites.
func compareSums(t *testing.T, l *Ledger, id event.Process) {
	t.Helper()
	want := map[int32]int64{}
	for s := range l.Sites {
		if class := s.Kind.Class(); s.Proc == id && (class == event.ClassDevice || class == event.ClassDriver) {
			want[s.Device] += s.InuseBytes
		}
	}
	for h := range l.UseByDevice(id) {
		if h.Bytes != want[h.Device] {
			t.Fatalf("%v: %d bytes on device %d, its sites have %d", id, h.Bytes, h.Device, want[h.Device])
		}
		delete(want, h.Device)
	}
	for device, bytes := range want {
		if bytes != 0 {
			t.Fatalf("%v: no holding on device %d of %d bytes", id, device, bytes)
		}
	}
}

func TestUnattributed(t *testing.T) {
	l := New(Options{MaxLive: 1, MaxUnattributed: 1})
	for i := range uint64(3) {
		l.Apply(ev(i+1, alloc, at(16*(i+1), 100), stack(i+1)))
	}
	var got ProcessTotals
	for got = range l.Processes {
	}
	want := ProcessTotals{
		Proc: proc, Inuse: 200, Peak: 200, Allocated: 300, LiveObjects: 2,
		Unattributed: 100, UnknownBytes: 100,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("totals differ (-want +got):\n%s", diff)
	}
	for i := range uint64(3) {
		l.Apply(ev(10, free, at(16*(i+1), 0)))
	}
	for got = range l.Processes {
	}
	if got.Inuse != 0 || got.Unattributed != 0 || got.LiveObjects != 0 || got.UnmatchedFrees != 0 {
		t.Errorf("after all frees: %+v", got)
	}
}

// TestUnattributedKinds: beyond MaxLive each kind counts in its class, and ends there.
func TestUnattributedKinds(t *testing.T) {
	for k := event.KindNone + 1; k < event.NumKinds; k++ {
		l := New(Options{MaxLive: 1})
		l.Apply(ev(1, alloc, at(16, 1), kind(event.KindHost)))
		l.Apply(ev(2, alloc, at(32, 1<<46), kind(k), ctx(3)))
		want := map[int32]int64{}
		if onDevice(k) {
			want = map[int32]int64{0: 0, event.NoDevice: 1 << 46}
		}
		if diff := cmp.Diff(want, bytesByDevice(l, proc)); diff != "" {
			t.Errorf("%v: holdings differ (-want +got):\n%s", k, diff)
		}
		l.Apply(ev(3, free, at(32, 0)))
		if got := bytesByDevice(l, proc); got[event.NoDevice] != 0 {
			t.Errorf("%v: holds %v after its end", k, got)
		}
	}
}

func TestMaxMappings(t *testing.T) {
	l := New(Options{MaxMappings: 1})
	l.Apply(ev(1, create, vmm, handle(1), size(10)))
	l.Apply(ev(2, mapped, handle(1), at(4096, 10)))
	l.Apply(ev(3, mapped, handle(1), at(8192, 10))) // no room
	l.Apply(ev(4, release, handle(1)))
	l.Apply(ev(5, unmap, at(4096, 10))) // the second mapping keeps it alive
	for p := range l.Processes {
		if p.Inuse != 0 || p.UnknownBytes != 10 || lossOf(l, "mappings_full") != 1 {
			t.Errorf("in use %d, unknown %d", p.Inuse, p.UnknownBytes)
		}
	}
}

func TestEndedProcesses(t *testing.T) {
	id := func(i int) event.Process { return event.Process{PID: uint32(i), Start: 9} }
	l := New(Options{MaxEnded: 2, MaxLive: 3, MaxProcesses: 4})
	for i := range 3 {
		l.Apply(ev(1, alloc, at(16, 100), of(id(i))))
		l.Apply(ev(2, event.OpExit, of(id(i))))
		l.Apply(ev(1, event.OpExit, of(id(100+i)))) // never touched a GPU: crowds nobody out
	}
	pids := func() (out []uint32) {
		for p := range l.Processes {
			out = append(out, p.Proc.PID)
		}
		return out
	}
	if diff := cmp.Diff([]uint32{1, 2}, pids()); diff != "" {
		t.Errorf("kept processes differ (-want +got):\n%s", diff)
	}
	if n := lossOf(l, "processes_dropped"); n != 1 {
		t.Errorf("%d processes dropped, want 1", n)
	}
	l.Apply(ev(1, alloc, at(32, 1), of(id(0))))
	if lossOf(l, "events_forgotten") != 1 {
		t.Error("a straggler brought its process back to life")
	}

	// A living process takes the rows of ended ones, whose figures stay.
	for i := range uint64(3) {
		l.Apply(ev(5+i, alloc, at(16*(i+1), 1), of(id(7))))
	}
	live := map[uint32]int{}
	for a := range l.Live {
		live[a.Proc.PID]++
	}
	if diff := cmp.Diff(map[uint32]int{7: 3}, live); diff != "" {
		t.Errorf("rows by process differ (-want +got):\n%s", diff)
	}
	for p := range l.Processes {
		if p.Exited && p.Inuse != 100 {
			t.Errorf("process %d ended with %d bytes, want 100", p.Proc.PID, p.Inuse)
		}
	}
	if n := lossOf(l, "ended_rows_dropped"); n != 2 {
		t.Errorf("rows dropped: %d, want 2", n)
	}

	for i := 20; i < 25; i++ {
		l.Apply(ev(9, alloc, at(16, 1), of(id(i))))
	}
	if diff := cmp.Diff([]uint32{7, 20, 21, 22}, pids()); diff != "" {
		t.Errorf("processes at the bound differ (-want +got):\n%s", diff)
	}
	if n := lossOf(l, "processes_full"); n != 2 {
		t.Errorf("events refused: %d, want 2", n)
	}
}

// TestForgetReleasesAll: after each process is forgotten nothing is held.
func TestForgetReleasesAll(t *testing.T) {
	g := newGenerator(randomChooser{rand.New(rand.NewPCG(9, 9))})
	l := New(Options{MaxLive: 50, MaxSites: 40})
	for range 50_000 {
		l.Apply(g.next())
	}
	for p := range l.procs {
		l.Forget(p)
	}
	if l.held != (Held{}) {
		t.Errorf("entries of the tables held after all was forgotten: %v", l.held)
	}
	if l.endedRows != 0 || len(l.order) != 0 || len(l.ended) != 0 || len(l.idle) != 0 {
		t.Errorf("held after all was forgotten: %d rows of ended processes", l.endedRows)
	}
}

// TestContextsAndPoolsFull: beyond their bounds nothing is told apart and
// nothing is wrong.
func TestContextsAndPoolsFull(t *testing.T) {
	l := New(Options{})
	for i := range uint64(2 * maxPools) {
		l.Apply(ev(i+1, alloc, at(16*(i+1), 1), async, handle(i+1), ctx(i+1)))
	}
	if lossOf(l, "contexts_full") == 0 || lossOf(l, "pools_full") == 0 {
		t.Errorf("the bounds were never reached: %+v", l.Loss())
	}
	for i := range uint64(2 * maxPools) {
		l.Apply(ev(1<<20, free, at(16*(i+1), 0)))
	}
	for p := range l.Processes {
		if p.AsyncInuse != 0 || p.AsyncHigh != 2*maxPools || p.Inuse != 0 {
			t.Errorf("totals: %+v", p)
		}
	}
}

// TestGraphsFull: beyond the bound graphs are not told apart, and their ranges
// are kept.
func TestGraphsFull(t *testing.T) {
	l := New(Options{})
	for i := range uint64(maxGraphs + 5) {
		l.Apply(ev(i+1, alloc, at(16*(i+1), 1), node, handle(i+1)))
	}
	for i := range uint64(maxCaptures + 5) {
		l.Apply(ev(1<<20, begin, stream(i+10)))
	}
	if n := lossOf(l, "graphs_full"); n < 10 {
		t.Errorf("graphs_full = %d, want at least 10", n)
	}
	for i := range uint64(5) {
		l.Apply(ev(1<<20, destroy, handle(maxGraphs-2+i)))
	}
	for p := range l.Processes {
		if p.Graph != maxGraphs+2 {
			t.Errorf("%d bytes of graph memory, want those of all but three graphs", p.Graph)
		}
	}
}
