package ledger

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

const (
	benchLive   = 1_000_000
	benchStacks = 10_000
)

var benchProc = event.Process{PID: 4711, Start: 1}

// perEvent reports the rate of n events applied in the benchmark's time.
func perEvent(b *testing.B, n int) {
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkApply has allocations of several kinds and sizes from ten thousand
// stacks, some used far more often than others, on two devices, with 100,000
// live, ended in random order.
func BenchmarkApply(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	l := New(Options{})
	kinds := []event.Kind{event.KindDevice, event.KindDevice, event.KindAsync, event.KindManaged, event.KindHost}
	stacks := rand.NewZipf(r, 1.1, 10, benchStacks-1)
	var live []uint64
	next := uint64(1 << 20)
	events := make([]event.Event, 1<<20)
	for i := range events {
		e := &events[i]
		*e = event.Event{Proc: benchProc, Ctx: 1, API: 3}
		if len(live) < 100_000 || r.IntN(2) == 0 {
			next += 512
			e.Op, e.Addr, e.Size = event.OpAlloc, next, uint64(512+r.IntN(1<<21))
			e.Stack = 1 + stacks.Uint64()
			e.Kind, e.Device = kinds[e.Stack%5], int32(e.Stack>>4&1)
			e.Ctx = 1 + uint64(e.Device)
			live = append(live, next)
		} else {
			j := r.IntN(len(live))
			e.Op, e.Addr = event.OpFree, live[j]
			live[j] = live[len(live)-1]
			live = live[:len(live)-1]
		}
	}
	runEvents(b, l, events)
}

// BenchmarkApplyVMM is PyTorch's expandable segments: create, map, release,
// and later an unmap, with 20,000 mappings live.
func BenchmarkApplyVMM(b *testing.B) {
	const live = 20_000
	r := rand.New(rand.NewPCG(1, 1))
	l := New(Options{})
	var events []event.Event
	slots := r.Perm(2 * live)
	for i := 0; len(events) < 1<<20; i++ {
		e := event.Event{Proc: benchProc, Ctx: 1, Handle: uint64(i + 1), Size: 2 << 20, Kind: event.KindVMM, Stack: 1 + r.Uint64N(100)}
		addr := uint64(1<<40) + uint64(slots[i%len(slots)])<<21
		old := uint64(1<<40) + uint64(slots[(i+live)%len(slots)])<<21
		for _, op := range []event.Op{event.OpHandleCreate, event.OpMap, event.OpHandleRelease, event.OpUnmap} {
			e.Op, e.Addr = op, addr
			if op == event.OpUnmap {
				e.Addr = old
			}
			events = append(events, e)
		}
	}
	runEvents(b, l, events)
}

// BenchmarkApplyPyTorch is a training process on two devices: 200 call sites
// whose segments come and go, 20,000 of them live, and beside them expandable
// segments by create, map, release and unmap, 5,000 of them live. It ends as it
// began, so that each round of it is the same.
func BenchmarkApplyPyTorch(b *testing.B) {
	const linear, expandable = 20_000, 5_000
	r := rand.New(rand.NewPCG(1, 1))
	var events []event.Event
	var ptrs, chunks []uint64
	next := uint64(0)
	site := func(e event.Event) event.Event {
		e.Proc, e.API = benchProc, 3
		e.Stack = 1 + r.Uint64N(200)
		e.Device = int32(e.Stack & 1)
		e.Ctx = 1 + uint64(e.Device)
		return e
	}
	allocate := func() {
		next++
		size := uint64(2<<20) * (1 + r.Uint64N(10))
		if r.IntN(4) == 0 {
			size = 512 + r.Uint64N(1<<20)
		}
		ptrs = append(ptrs, next<<21)
		events = append(events, site(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Addr: next << 21, Size: size}))
	}
	free := func() {
		i := r.IntN(len(ptrs))
		events = append(events, site(event.Event{Op: event.OpFree, Addr: ptrs[i]}))
		ptrs[i] = ptrs[len(ptrs)-1]
		ptrs = ptrs[:len(ptrs)-1]
	}
	grow := func() {
		next++
		chunks = append(chunks, next)
		e := site(event.Event{Op: event.OpHandleCreate, Kind: event.KindVMM, Handle: next, Addr: 1<<46 + next<<21, Size: 2 << 20})
		for _, op := range []event.Op{event.OpHandleCreate, event.OpMap, event.OpHandleRelease} {
			e.Op = op
			events = append(events, e)
		}
	}
	shrink := func() {
		events = append(events, site(event.Event{Op: event.OpUnmap, Addr: 1<<46 + chunks[0]<<21, Size: 2 << 20}))
		chunks = chunks[1:]
	}
	for len(events) < 1<<20 {
		allocate()
		if len(ptrs) > linear {
			free()
		}
		if r.IntN(8) == 0 {
			grow()
		}
		if len(chunks) > expandable {
			shrink()
		}
	}
	for len(ptrs) > 0 {
		free()
	}
	for len(chunks) > 0 {
		shrink()
	}
	runEvents(b, New(Options{}), events)
}

// BenchmarkApplyFull is a process that has filled all rows and goes on, beside others that
// come, allocate and end: each time the first one gives rows back, and takes them again.
func BenchmarkApplyFull(b *testing.B) {
	const rows = 200_000
	l := New(Options{MaxLive: rows, MaxUnattributed: 100 * rows})
	now, n := uint64(0), 0
	hogs := func() {
		now++
		e := event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: benchProc, Time: now, Addr: now % (4 * rows) << 9, Size: 512, Stack: 1 + now%benchStacks}
		l.Apply(&e)
	}
	for range 2 * rows {
		hogs()
	}
	var longest time.Duration
	for pid := uint32(1); b.Loop(); n++ {
		id := event.Process{PID: 5000 + pid, Start: 1}
		now++
		e := event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: id, Time: now, Addr: now << 9, Size: 512, Stack: 1 + now%100}
		began := time.Now()
		l.Apply(&e)
		longest = max(longest, time.Since(began))
		hogs()
		if n%(rows/4) == rows/4-1 {
			l.Forget(id)
			pid++
		}
	}
	b.ReportMetric(float64(longest.Microseconds()), "longest-us")
	perEvent(b, 2*n)
}

func runEvents(b *testing.B, l *Ledger, events []event.Event) {
	b.ReportAllocs()
	now, n := uint64(0), 0
	for b.Loop() {
		e := &events[n%len(events)]
		now++
		e.Time = now
		l.Apply(e)
		n++
	}
	perEvent(b, n)
}

// filled returns a ledger with benchLive live allocations of one kind over
// benchStacks stacks.
func filled(kind event.Kind) *Ledger {
	l := New(Options{})
	for i := range uint64(benchLive) {
		e := event.Event{
			Time: i + 1, Proc: benchProc, Op: event.OpAlloc, Kind: kind, Addr: 1<<40 + i<<21,
			Size: 2 << 20, Stack: 1 + i%benchStacks, Ctx: 1,
		}
		if kind == event.KindVMM {
			e.Op, e.Handle = event.OpHandleCreate, i+1
			l.Apply(&e)
			e.Op = event.OpMap
			l.Apply(&e)
			e.Op = event.OpHandleRelease
		}
		l.Apply(&e)
	}
	return l
}

// BenchmarkSnapshotSites reads every site and total, as a profile does.
func BenchmarkSnapshotSites(b *testing.B) {
	l := filled(event.KindDevice)
	var sum int64
	for b.Loop() {
		for s := range l.Sites {
			sum += s.InuseBytes + s.PeakBytes
		}
		for p := range l.Processes {
			sum -= 2 * p.Inuse
		}
	}
	if sum != 0 {
		b.Fatal("sites do not add up to their process:", sum)
	}
}

// BenchmarkTotals reads the totals and the holdings of every process, with a
// million live allocations, as the accounts do each second.
func BenchmarkTotals(b *testing.B) {
	l := filled(event.KindDevice)
	for b.Loop() {
		var sum, n int64
		for p := range l.Processes {
			sum -= p.Inuse
			for h := range l.UseByDevice(p.Proc) {
				sum += h.Bytes
				n++
			}
		}
		if sum != 0 || n == 0 {
			b.Fatal("holdings do not add up to their process:", sum)
		}
	}
}

// BenchmarkSnapshotLive reads every live allocation, as a list of them does.
func BenchmarkSnapshotLive(b *testing.B) {
	l := filled(event.KindDevice)
	for b.Loop() {
		n := 0
		for a := range l.Live {
			if a.Site != nil {
				n++
			}
		}
		if n != benchLive {
			b.Fatal("rows:", n)
		}
	}
}

// BenchmarkKeyframe takes a keyframe of a million live allocations.
func BenchmarkKeyframe(b *testing.B) {
	for _, kind := range []event.Kind{event.KindDevice, event.KindVMM} {
		b.Run(kind.String(), func(b *testing.B) {
			l := filled(kind)
			n := 0
			for b.Loop() {
				n += len(written(l))
			}
			b.ReportMetric(float64(n)/float64(b.N)/benchLive, "B/live")
			perEvent(b, b.N*benchLive)
		})
	}
}

// TestBytesPerLive holds the ledger to 60 bytes a live allocation, sites included, and to
// 160 if it is physical memory.
func TestBytesPerLive(t *testing.T) {
	for kind, most := range map[event.Kind]float64{event.KindDevice: 60, event.KindVMM: 160} {
		t.Run(kind.String(), func(t *testing.T) {
			before := heap()
			l := filled(kind)
			got := float64(heap()-before) / benchLive
			runtime.KeepAlive(l)
			t.Logf("%.1f bytes a live allocation", got)
			if got > most {
				t.Errorf("%.1f bytes a live allocation, want at most %.0f", got, most)
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
