package ledger

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

var seedFlag = flag.Uint64("seed", 1, "seed of the random tests; 0 takes one from the clock, as make fuzz does")

// randomSeed returns the seed of the random tests.
func randomSeed(t *testing.T) uint64 {
	if *seedFlag == 0 {
		*seedFlag = uint64(time.Now().UnixNano())
	}
	t.Logf("repeat with -seed=%d", *seedFlag)
	return *seedFlag
}

// A chooser picks one of n numbers: from a random source, or from a fuzzer's
// bytes.
type chooser interface{ choose(n int) int }

type randomChooser struct{ *rand.Rand }

func (r randomChooser) choose(n int) int { return r.IntN(n) }

type byteChooser struct{ data []byte }

func (b *byteChooser) choose(n int) int {
	if len(b.data) == 0 {
		return 0
	}
	v := int(b.data[0])
	b.data = b.data[1:]
	return v % n
}

// weights are how often each Op comes up.
var weights = []struct {
	op event.Op
	n  int
}{
	{event.OpAlloc, 60}, {event.OpOpen, 6}, {event.OpFree, 44},
	{event.OpHandleCreate, 16}, {event.OpHandleRetain, 6}, {event.OpHandleImport, 5},
	{event.OpHandleRelease, 20}, {event.OpMap, 22}, {event.OpUnmap, 12},
	{event.OpMapArray, 8}, {event.OpUnmapArray, 5}, {event.OpReserve, 2}, {event.OpUnreserve, 2},
	{event.OpCaptureBegin, 4}, {event.OpCaptureEnd, 4}, {event.OpGraphInstantiate, 2},
	{event.OpGraphMove, 1}, {event.OpGraphDestroy, 3}, {event.OpPoolCreate, 2}, {event.OpPoolDestroy, 2}, {event.OpPoolTrim, 3},
	{event.OpContextSeen, 3}, {event.OpContextCreate, 2}, {event.OpContextDestroy, 2}, {event.OpPrimaryReset, 1},
	{event.OpPrimaryRelease, 1}, {event.OpFork, 2}, {event.OpExec, 1}, {event.OpExit, 1},
}

// A generator makes sequences that a hostile world could: few addresses,
// handles and contexts, so that they collide; times that jump back a little,
// so that events overtake each other.
type generator struct {
	chooser
	now   uint64
	procs [4]event.Process
	pids  uint32
	wheel []event.Op
	calm  bool // strictly in time order
}

func newGenerator(c chooser) *generator {
	g := &generator{chooser: c, now: 1000}
	for _, w := range weights {
		for range w.n {
			g.wheel = append(g.wheel, w.op)
		}
	}
	for i := range g.procs {
		g.renew(i)
	}
	return g
}

// renew puts a new process in a slot: often under a PID used before.
func (g *generator) renew(i int) {
	g.pids++
	g.procs[i] = event.Process{PID: uint32(i) + g.pids%3, Start: uint64(g.pids)}
}

func (g *generator) next() *event.Event {
	g.now += uint64(g.choose(3))
	slot := g.choose(len(g.procs))
	e := &event.Event{
		Time: g.now, Proc: g.procs[slot], Op: g.wheel[g.choose(len(g.wheel))],
		Device: int32(g.choose(4)) - 1, Ctx: uint64(g.choose(4)),
		Stack: uint64(g.choose(5)), API: uint16(g.choose(2)), TID: uint32(g.choose(3)),
	}
	if g.calm {
		g.now++
		e.Time = g.now
	} else if g.choose(8) == 0 {
		e.Time -= uint64(g.choose(40)) // overtaken
	}
	if g.choose(30) == 0 {
		e.Result = []int32{2, 1, 801, 709}[g.choose(4)]
	}
	page := func(n int) uint64 { return 4096 * uint64(g.choose(n)) }
	switch e.Op {
	case event.OpAlloc:
		e.Space = event.Space(g.choose(int(event.NumSpaces)))
		e.Kind = event.Kind(1 + g.choose(int(event.NumKinds)-1))
		e.Addr, e.Size = page(40), 1+page(1000)
		if e.Kind.Async() {
			e.Handle, e.Stream = uint64(g.choose(4)), uint64(g.choose(5))
		}
		if e.Kind == event.KindGraph {
			e.Handle = uint64(g.choose(6))
		}
		if g.choose(60) == 0 {
			e.Addr, e.Size = 0, 0
		}
		if g.choose(300) == 0 {
			e.Size = math.MaxUint64 - uint64(g.choose(3))
		}
	case event.OpOpen:
		e.Kind, e.Addr = event.KindImported, page(40)
	case event.OpFree:
		e.Space = event.Space(g.choose(int(event.NumSpaces)))
		e.Addr = page(40)
	case event.OpHandleCreate:
		e.Kind = []event.Kind{event.KindVMM, event.KindVMMHost}[g.choose(2)]
		e.Handle, e.Size = uint64(g.choose(20)), page(1000)
		if g.choose(6) == 0 {
			e.Kind, e.Size = event.KindMulticast, 0
		}
	case event.OpHandleImport:
		e.Kind, e.Handle = event.KindImported, uint64(g.choose(20))
	case event.OpHandleRetain, event.OpHandleRelease:
		e.Handle = uint64(g.choose(20))
	case event.OpMap:
		e.Handle = uint64(g.choose(20))
		e.Addr, e.Size = 1<<40+page(64), page(5)
	case event.OpUnmap:
		e.Addr, e.Size = 1<<40+page(64), page(20)
	case event.OpMapArray:
		e.Handle, e.Addr, e.Part, e.Size = uint64(g.choose(20)), page(40), uint64(g.choose(3)), page(3)
	case event.OpUnmapArray:
		e.Addr, e.Part = page(40), uint64(g.choose(3))
	case event.OpReserve, event.OpUnreserve:
		e.Size = page(100)
	case event.OpCaptureBegin:
		e.Stream = uint64(g.choose(4))
		if g.choose(3) == 0 {
			e.Handle = uint64(g.choose(6))
		}
	case event.OpCaptureEnd:
		e.Stream, e.Handle = uint64(g.choose(4)), uint64(1+g.choose(5))
		if g.choose(4) == 0 {
			e.Result, e.Handle = []int32{901, 904, 908, 999}[g.choose(4)], 0
		}
	case event.OpGraphInstantiate, event.OpGraphMove, event.OpGraphDestroy:
		e.Handle, e.Part = uint64(g.choose(6)), uint64(g.choose(6))
	case event.OpContextSeen, event.OpContextDestroy:
		e.Part = uint64(g.choose(4))
	case event.OpPoolCreate:
		e.Handle, e.Part, e.Kind = uint64(g.choose(4)), uint64(g.choose(3)), []event.Kind{event.KindNone, event.KindNone, event.KindAsyncHost, event.KindAsyncManaged}[g.choose(4)]
	case event.OpPoolDestroy:
		e.Handle = uint64(g.choose(4))
	case event.OpPoolTrim:
		e.Handle, e.Size = uint64(g.choose(6)), page(2000)
	case event.OpFork:
		e.Child = g.procs[g.choose(len(g.procs))]
	case event.OpExec, event.OpExit:
		if g.choose(4) != 0 { // rarer than the wheel allows
			e.Op = event.OpPrimaryRelease
		}
	}
	return e
}

// compareMaps fails t where two maps differ. It looks for the difference only where
// there is one: that sorts their keys.
func compareMaps[K, V comparable](t *testing.T, at, what string, model, ledger map[K]V) {
	t.Helper()
	if !maps.Equal(model, ledger) {
		t.Fatalf("%s: %s differ (-model +ledger):\n%s", at, what, cmp.Diff(model, ledger, cmp.AllowUnexported(liveRow{})))
	}
}

// compare fails t where the ledger's views differ from the model's.
func compare(t *testing.T, l *Ledger, m *model, at string) {
	t.Helper()
	want, got := map[event.Process]ProcessTotals{}, map[event.Process]ProcessTotals{}
	for id, p := range m.procs {
		if p.active {
			want[id] = p.totals()
		}
	}
	for p := range l.Processes {
		got[p.Proc] = p
	}
	compareMaps(t, at, "processes", want, got)

	sites := map[SiteKey]siteFigures{}
	for s := range l.Sites {
		f := sites[s.SiteKey]
		f.add(siteFigures{
			s.AllocObjects, s.AllocBytes, s.PeakBytes, s.InuseObjects, s.InuseBytes,
			s.FailedObjects, s.FailedBytes,
		})
		sites[s.SiteKey] = f
	}
	compareMaps(t, at, "sites", m.sites(), sites)

	live := map[liveRow]int{}
	for a := range l.Live {
		live[liveRow{a.Proc, a.Handle, a.Space, a.Addr, a.Size, a.Time, a.Site.SiteKey}]++
	}
	compareMaps(t, at, "live allocations", m.live(), live)
	for id := range m.procs {
		compareHoldings(t, l, m, id, at)
	}

	loss := map[string]uint64{}
	for _, c := range l.Loss() {
		if c.Value != 0 {
			loss[c.Name] = c.Value
		}
	}
	compareMaps(t, at, "losses", m.loss, loss)
}

// compareHoldings fails t where what the ledger says of id by device differs
// from what adding up all that is live gives.
func compareHoldings(t *testing.T, l *Ledger, m *model, id event.Process, at string) {
	t.Helper()
	want := map[int32]int64{}
	if p := m.procs[id]; p != nil {
		want = p.holdings()
	}
	compareMaps(t, at, "holdings", want, bytesByDevice(l, id))
}

// A watcher has what each site had in use when it changed last.
type watcher map[*Site]int64

// hear is Options.Changed.
func (w watcher) hear(s *Site) { w[s] = s.InuseBytes }

// compare fails t where what w heard of proc's sites is not what they have in use.
func (w watcher) compare(t *testing.T, l *Ledger, proc event.Process, at string) {
	t.Helper()
	p := l.procs[proc]
	if p == nil {
		return
	}
	for _, s := range p.sites.all {
		if s != nil && w[s] != s.InuseBytes {
			t.Fatalf("%s: the last change of %+v was to %d bytes", at, s, w[s])
		}
	}
}

// bytesByDevice are the Holdings of id.
func bytesByDevice(l *Ledger, id event.Process) map[int32]int64 {
	out := map[int32]int64{}
	for h := range l.UseByDevice(id) {
		out[h.Device] = h.Bytes
	}
	return out
}

// mark is a peak of another ledger's.
func mark(l *Ledger, m *model, id event.Process) {
	l.MarkPeak(id)
	if p := m.procs[id]; p != nil {
		p.mark(onGPU)
	}
}

// TestRandom compares the ledger with the model over many operations.
func TestRandom(t *testing.T) {
	ops, every := 300_000, 5_000
	if testing.Short() {
		ops = 50_000
	}
	seed := randomSeed(t)
	g := newGenerator(randomChooser{rand.New(rand.NewPCG(seed, 0))})
	w := watcher{}
	l, m := New(Options{MaxEnded: math.MaxInt32, Changed: w.hear}), newModel()
	seen := map[event.Op]int{}
	var ended []event.Process
	for i := range ops {
		e := g.next()
		seen[e.Op]++
		if i < 200 {
			compare(t, l, m, fmt.Sprintf("seed %d, before operation %d", seed, i))
		}
		l.Apply(e)
		m.apply(e)
		if g.choose(500) == 0 {
			mark(l, m, e.Proc)
		}
		compareHoldings(t, l, m, e.Proc, fmt.Sprintf("seed %d, after operation %d", seed, i))
		if i%50 == 0 {
			w.compare(t, l, e.Proc, fmt.Sprintf("seed %d, after operation %d", seed, i))
		}
		if e.Op == event.OpExit {
			for slot, id := range g.procs {
				if id == e.Proc && g.choose(3) == 0 { // or let stragglers come first
					g.renew(slot)
					ended = append(ended, id)
				}
			}
		}
		if i%every == every-1 {
			compare(t, l, m, fmt.Sprintf("seed %d, after operation %d", seed, i))
			for len(ended) > 4 {
				l.Forget(ended[0])
				m.forget(ended[0])
				l.Apply(&event.Event{Time: g.now, Proc: ended[0], Op: event.OpFree, Addr: 4096})
				m.apply(&event.Event{Time: g.now, Proc: ended[0], Op: event.OpFree, Addr: 4096})
				ended = ended[1:]
			}
		}
	}
	compare(t, l, m, fmt.Sprintf("seed %d, at the end", seed))
	for _, w := range weights {
		if seen[w.op] == 0 {
			t.Errorf("no operation %d in the sequence", w.op)
		}
	}
	for _, name := range []string{
		"allocations_replaced", "frees_stale", "allocations_without_address", "events_forgotten",
		"unmaps_partial", "handles_unmatched", "unmaps_unmatched", "releases_excess",
		"resets_unknown", "context_owner_unknown", "allocations_during_capture",
		"captures_unmatched", "graph_memory_kept", "events_late", "events_invalid",
	} {
		if m.loss[name] == 0 {
			t.Errorf("the sequence never caused %s", name)
		}
	}
}

// FuzzLedger lets a fuzzer write the sequence. Coverage varies with the order of
// maps, which -fuzzminimizetime=1x keeps from costing all the time.
func FuzzLedger(f *testing.F) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := make([]byte, 2000)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<14 {
			t.Skip("longer than any sequence that shows something new")
		}
		c := &byteChooser{data}
		g := newGenerator(c)
		l, m := New(Options{}), newModel()
		for i := 0; len(c.data) > 0; i++ {
			e := g.next()
			l.Apply(e)
			m.apply(e)
			if g.choose(100) == 1 {
				mark(l, m, e.Proc)
			}
			compareHoldings(t, l, m, e.Proc, fmt.Sprintf("after operation %d", i))
			if i%64 == 0 {
				compare(t, l, m, fmt.Sprintf("after operation %d", i))
			}
		}
		compare(t, l, m, "at the end")
	})
}
