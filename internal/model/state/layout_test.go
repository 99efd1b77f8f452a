package state

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/memoryviz"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/viewertest"
)

// remembering is begun, with room for n steps.
func remembering(n int, t record.Trace) *State {
	s := New()
	s.Remember(n)
	t.Start = time.Unix(0, 0)
	t.Boot, t.APIs = t.Start, apis
	s.Apply(&t)
	s.Apply(&record.Process{Process: prog, Target: true, Name: "prog", FromStart: true})
	return s
}

func layoutOf(s *State) *snapshot.Layout { return s.View(Want{Layout: true}).Snapshot().Layout }

// told writes what a layout says, a line for each thing.
func told(l *snapshot.Layout) (out []string) {
	who := func(source int) string {
		if source < 0 {
			return "-"
		}
		s := ""
		for _, frame := range l.Sources[source].Stack {
			s += frame.Lines[0].Function + ";"
		}
		return s
	}
	for i := range l.Segments {
		g := &l.Segments[i]
		line := fmt.Sprintf("%d: %x+%x", g.Place, g.Address, g.Size)
		for _, x := range []struct {
			is   bool
			text string
		}{{g.Pool, " pool"}, {g.Expandable, " expandable"}, {g.Small, " small"}} {
			if x.is {
				line += x.text
			}
		}
		line += " " + who(g.Source)
		for _, b := range g.Blocks {
			line += fmt.Sprintf(" %x+%x %s", b.Address, b.Size, who(b.Source))
		}
		out = append(out, line)
	}
	for i := range l.Changes {
		s := l.Change(i)
		name := [...]string{"block came", "block ended", "segment came", "segment ended", "lacked"}[s.Action]
		if s.Pool {
			name += ", pool"
		}
		if s.Expandable {
			name += ", page"
		}
		out = append(out, fmt.Sprintf("%d %s %d: %x+%x %s", s.Time.UnixNano(), name, s.Place, s.Address, s.Size, who(s.Source)))
	}
	return out
}

func compareTold(t *testing.T, l *snapshot.Layout, want ...string) {
	t.Helper()
	if got := told(l); !slices.Equal(got, want) {
		t.Errorf("got %d lines", len(got))
		for i := range max(len(got), len(want)) {
			x, y := "", ""
			if i < len(got) {
				x = got[i]
			}
			if i < len(want) {
				y = want[i]
			}
			if x != y {
				t.Errorf("line %d: %s\nwant %s", i, x, y)
			}
		}
	}
}

// A segment has the tensors that lie in it. Memory of which no tensor was handed out is
// one block, by who asked for it. A step shows who made it.
func TestLayout(t *testing.T) {
	s := remembering(100, record.Trace{})
	for id, f := range []string{"load", "forward", "nccl"} {
		stack(s, uint64(id+1), " ", f)
	}
	grow, outside := alloc(prog, 10, 0x1000000, 20*mib), alloc(prog, 11, 0x9000000, 7*mib)
	grow.Stack, outside.Stack = 1, 3
	for _, e := range []*event.Event{
		grow, outside,
		tensor(12, 0x1000000, 8*mib, 2, 8*mib), tensor(13, 0x1000000+8*mib, 2*mib, 2, 10*mib), tensorEnd(14, 0x1000000, 8*mib, 2*mib),
		free(prog, 15, 0x9000000), alloc(prog, 16, 0x9000000, 4096),
	} {
		s.Apply(e)
	}
	compareTold(t, layoutOf(s),
		"0: 1000000+1400000 pool cuMemAlloc_v2;;[load]; 1800000+200000 [forward];",
		"0: 9000000+1000 cuMemAlloc_v2; 9000000+1000 cuMemAlloc_v2;",
		"10 segment came, pool 0: 1000000+1400000 cuMemAlloc_v2;;[load];",
		"11 segment came 0: 9000000+700000 cuMemAlloc_v2;;[nccl];",
		"12 block came 0: 1000000+800000 [forward];",
		"13 block came 0: 1800000+200000 [forward];",
		"14 block ended 0: 1000000+800000 -",
		"15 segment ended 0: 9000000+700000 cuMemFree_v2;",
		"16 segment came 0: 9000000+1000 cuMemAlloc_v2;",
	)
	l := layoutOf(s)
	if want := []snapshot.Place{{PID: 17, Process: "prog", Device: 0, GPU: "cuda:0"}}; !reflect.DeepEqual(l.Places, want) {
		t.Errorf("places %+v", l.Places)
	}
	if x := l.Sources[l.Segments[0].Blocks[0].Source]; x.Kind != "tensor" || x.GPU != "cuda:0" || x.PID != 17 {
		t.Errorf("a tensor's labels are %+v", x.Labels)
	}
}

// Pages of an expandable segment that lie side by side are one.
func TestLayoutOfPages(t *testing.T) {
	s := remembering(100, record.Trace{})
	at := uint64(0)
	page := func(handle, addr, size uint64) {
		at += 2
		s.Apply(&event.Event{Op: event.OpHandleCreate, Kind: event.KindVMM, Proc: prog, Time: at, Handle: handle, Size: size})
		s.Apply(&event.Event{Op: event.OpMap, Proc: prog, Time: at + 1, Handle: handle, Addr: addr, Size: size})
	}
	page(1, 0x40000000, 2*mib)
	page(2, 0x40000000+2*mib, 2*mib)
	page(3, 0x80000000, 20*mib)
	page(4, 0x80000000+40*mib, 20*mib)
	s.Apply(tensor(20, 0x40000000+mib, 2*mib, 0, 0))
	s.Apply(tensor(21, 0x80000000+40*mib, mib, 0, 0))
	s.Apply(&event.Event{Op: event.OpUnmap, Proc: prog, Time: 22, Addr: 0x80000000, Size: 20 * mib})
	l := layoutOf(s)
	if g := l.Segments; len(g) != 2 || g[0].Size != 4*mib || !g[0].Expandable || !g[0].Small || len(g[0].Blocks) != 1 || g[0].Blocks[0].Size != 2*mib ||
		g[1].Address != 0x80000000+40*mib || !g[1].Expandable || g[1].Small || len(g[1].Blocks) != 1 {
		t.Errorf("segments %+v", g)
	}
	for i := range 4 {
		if step := l.Change(i); step.Action != snapshot.SegmentCame || !step.Pool || !step.Expandable {
			t.Errorf("step %d is %+v", i, step)
		}
	}
}

// Of memory from before the trace the tensors are known that came since.
func TestLayoutOfOlder(t *testing.T) {
	s := remembering(100, record.Trace{})
	s.Apply(alloc(prog, 1, 0x1000000, 2*mib))
	for i, addr := range []uint64{0x500000, 0x500200, 0x500800, 0x1000000 - 512, 0x1000000} {
		s.Apply(tensor(uint64(10+i), addr, 512, 0, 0))
	}
	s.Apply(tensor(20, 0x1000000+2*mib-512, 1024, 0, 0)) // beyond what is known of its segment
	compareTold(t, &snapshot.Layout{Segments: layoutOf(s).Segments, Sources: layoutOf(s).Sources},
		"0: 500000+400 pool - 500000+200  500200+200 ",
		"0: 500800+200 pool - 500800+200 ",
		"0: fffe00+200 pool - fffe00+200 ",
		"0: 1000000+200000 pool small cuMemAlloc_v2; 1000000+200  11ffe00+200 ",
		"0: 1200000+200 pool - 1200000+200 ",
	)
}

// A process that ended, and is shown no more, ended all that it held.
func TestLayoutOfEnded(t *testing.T) {
	child := event.Process{PID: 18, Start: 2 * event.StartUnit}
	for _, all := range []bool{false, true} {
		s := remembering(100, record.Trace{All: all})
		s.Apply(&event.Event{Op: event.OpFork, Proc: prog, Child: child, Name: "child", Time: 1})
		s.Apply(alloc(child, 2, 0x1000000, 2*mib))
		made := tensor(3, 0x1000000, 512, 0, 0)
		made.Proc = child
		s.Apply(made)
		s.Apply(exit(child, 4))
		if all {
			s.Apply(&record.Reported{})
		}
		l := layoutOf(s)
		if len(l.Segments) != 0 || l.Changes != 4 {
			t.Fatalf("all %v: %q", all, told(l))
		}
		for i, want := range []snapshot.Action{snapshot.SegmentCame, snapshot.BlockCame, snapshot.BlockEnded, snapshot.SegmentEnded} {
			if x := l.Change(i); x.Action != want || !x.Time.Equal(s.Wall(min(2+uint64(i), 4))) {
				t.Errorf("all %v: step %d is %+v", all, i, x)
			}
		}
	}
}

// A device that is not known is the process's one.
func TestLayoutPlaces(t *testing.T) {
	for _, test := range []struct {
		devices []int32
		want    []int
	}{
		{[]int32{event.NoDevice}, []int{-1}},
		{[]int32{1, event.NoDevice}, []int{1}},
		{[]int32{0, 1}, []int{0, 1}},
		{[]int32{2, event.NoDevice, 0, 1}, []int{0, 1, 2, -1}},
	} {
		s := remembering(100, record.Trace{})
		for i, device := range test.devices {
			e := alloc(prog, uint64(i+1), uint64(i+1)<<24, 4096)
			e.Device = device
			s.Apply(e)
		}
		var got []int
		for _, p := range layoutOf(s).Places {
			got = append(got, p.Device)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("of %v: %v, want %v", test.devices, got, test.want)
		}
	}
}

// What a keyframe says was live is no step, and the steps from before it are gone.
func TestLayoutAfterCut(t *testing.T) {
	s := remembering(100, record.Trace{})
	s.Apply(alloc(prog, 10, 0x1000000, 2*mib))
	s.Apply(tensor(11, 0x1000000, 512, 0, 0))
	s.Apply(tensorEnd(12, 0x1000000, 512, 0))
	s.Apply(tensor(13, 0x1000000, 1024, 0, 0))
	var live []record.Record
	s.Keyframe(func(r record.Record) {
		if e, ok := r.(*event.Event); ok {
			kept := *e
			r = &kept
		}
		live = append(live, r)
	})
	s.Apply(&record.Cut{Time: 14})
	for _, r := range live {
		s.Apply(r)
	}
	s.Apply(tensorEnd(15, 0x1000000, 1024, 0))
	l := layoutOf(s)
	if l.Changes != 1 || l.Change(0).Action != snapshot.BlockEnded || len(l.Segments) != 1 || !l.Segments[0].Pool {
		t.Errorf("%q", told(l))
	}
}

// The stacks of the steps stay while there is room for the steps.
func TestLayoutKeepsStacks(t *testing.T) {
	s := remembering(1, record.Trace{})
	stack(s, 1, "first")
	stack(s, 2, "second")
	fails := alloc(prog, 10, 0, 4096)
	fails.Stack, fails.Result = 1, event.OutOfMemory
	s.Apply(fails)
	referred := func() (ids []uint64) {
		for id := range s.history.stacks {
			ids = append(ids, id)
		}
		return ids
	}
	if got := referred(); !slices.Equal(got, []uint64{1}) {
		t.Errorf("stacks %v", got)
	}
	fails.Stack, fails.Time = 2, 11
	s.Apply(fails)
	if got := referred(); !slices.Equal(got, []uint64{2}) {
		t.Errorf("stacks %v", got)
	}
	s.ledger.Forget(prog) // no call site refers to them
	s.Apply(&record.Sweep{})
	s.Apply(&record.Sweep{Drop: true})
	compareTold(t, layoutOf(s), "11 lacked 0: 0+1000 cuMemAlloc_v2;[second];")
	if l := layoutOf(s); l.Dropped != 1 {
		t.Errorf("%d were dropped", l.Dropped)
	}
}

// TestViewer: whatever happens, PyTorch's memory viewer can go through it.
func TestViewer(t *testing.T) {
	for seed := range uint64(16) {
		var files [2][]byte
		for i := range files {
			s := remembering(int(50+seed*20), record.Trace{All: seed%3 == 0})
			anything(seed, s, func() {
				var b bytes.Buffer
				if err := memoryviz.Pickle(&b, s.View(Want{Layout: true}).Snapshot()); err != nil {
					t.Fatal(err)
				}
				seen, err := viewertest.ReadPickle(b.Bytes())
				if err == nil {
					err = seen.Check(false)
				}
				if err != nil {
					t.Fatalf("seed %d, after %d events: %v", seed, s.events, err)
				}
				files[i] = append(files[i], b.Bytes()...)
			})
		}
		if !bytes.Equal(files[0], files[1]) {
			t.Fatalf("seed %d: the same events give other files", seed)
		}
	}
}

// anything puts random events into s, honest ones and others, and calls look now and
// then.
func anything(seed uint64, s *State, look func()) {
	r := rand.New(rand.NewPCG(seed, 3))
	procs := []event.Process{prog, {PID: 18, Start: event.StartUnit}}[:1+seed%2]
	scale := []uint64{512, 1 * mib}[seed/2%2]
	for at := uint64(1); at < 800; at++ {
		p := procs[r.IntN(len(procs))]
		addr, size := (64+uint64(r.IntN(96)))*scale, uint64(1+r.IntN(8))*scale
		e := &event.Event{Time: at, Proc: p, TID: p.PID, Addr: addr, Size: size, Device: int32(r.IntN(3)) - 1, API: uint16(r.IntN(3)), Stack: uint64(r.IntN(3))}
		if seed%4 != 0 {
			e.Device = 0
		}
		handle := uint64(1 + r.IntN(20))
		switch n := r.IntN(300); {
		case n < 90:
			e.Op, e.Kind, e.Handle = event.OpTensorAlloc, event.KindTensor, event.NoTotal
		case n < 160:
			e.Op, e.Handle = event.OpTensorFree, event.NoTotal
		case n < 190:
			e.Op, e.Kind, e.Size = event.OpAlloc, []event.Kind{event.KindDevice, event.KindAsync}[r.IntN(2)], 3*size
		case n < 215:
			e.Op = event.OpFree
		case n < 240:
			e.Op, e.Kind, e.Addr, e.Handle, e.Size = event.OpHandleCreate, event.KindVMM, 0, handle, []uint64{2 * mib, 20 * mib, size}[r.IntN(3)]
		case n < 265:
			e.Op, e.Handle, e.Size = event.OpMap, handle, []uint64{2 * mib, 20 * mib, size}[r.IntN(3)]
		case n < 275:
			e.Op, e.Size = event.OpUnmap, 8*size
		case n < 285:
			e.Op, e.Handle = event.OpHandleRelease, handle
		case n < 290:
			e.Op, e.Handle = event.OpOutOfMemory, size
		case n < 294:
			e.Op, e.Kind, e.Result = event.OpAlloc, event.KindDevice, event.OutOfMemory
		case n < 296:
			e.Op = event.OpExec
		case n < 297:
			e.Op = event.OpExit
		default:
			e.Op, e.Addr = event.OpAlloc, uint64(r.Int64())<<1
			e.Kind = event.KindDevice
		}
		s.Apply(e)
		if r.IntN(100) == 0 {
			look()
		}
	}
	look()
}
