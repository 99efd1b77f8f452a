package live

import (
	"slices"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

const mib = 1 << 20

// Rates are of the last interval, growth of the window; what is new grew from nothing,
// and the first Picture has neither.
func TestTracker(t *testing.T) {
	tr := NewTracker()
	p := tr.Add(sizedLook(0, "a", 10*mib))
	if s := p.Stacks[0]; p.Interval != 0 || p.Window != 0 || s.Grown != 0 || s.Rate != 0 || p.Processes[0].Grown != 0 {
		t.Errorf("the first: %v %v %+v %+v", p.Interval, p.Window, s, p.Processes[0])
	}
	for i := 1; i <= 30; i++ {
		held := []int64{int64(10+i) * mib}
		if i >= 5 {
			held = append(held, 3*mib)
		}
		p = tr.Add(sizedLook(i, "a", held...))
		back := int64(min(i, Window))
		if p.Interval != time.Second || p.Window != time.Duration(back)*time.Second {
			t.Fatalf("%d: interval %v, window %v", i, p.Interval, p.Window)
		}
		if s := p.Stacks[0]; s.Grown != back*mib || s.Rate != 2*mib {
			t.Fatalf("%d: grew %d in %d, %f a second", i, s.Grown, back, s.Rate)
		}
		if i >= 5 {
			want := int64(3 * mib)
			if i >= 5+Window {
				want = 0
			}
			if got := p.Stacks[1].Grown; got != want {
				t.Fatalf("%d: the second grew %d, want %d", i, got, want)
			}
		}
		if p.EventRate != 100 {
			t.Fatalf("%f events a second", p.EventRate)
		}
	}
	if x := p.Processes[0]; x.Held != x.Inuse+5*mib || x.Unexplained != 5*mib || !x.Known || x.Rate != 2*mib || x.Grown != Window*mib {
		t.Errorf("the process: %+v", x)
	}
	if g := p.GPUs[0]; len(p.GPUs) != 1 || g.Total != 80<<30 || g.Held != 48*mib || g.Others != 1 || g.Traced != 1 || g.Highest != 48*mib {
		t.Errorf("the GPU: %+v", g)
	}
	p = p.Select(&Scope{}, "", ByInuse, false)
	if o := p.Owners[0]; len(p.Owners) != 1 || o.Inuse != 43*mib || o.Grown != Window*mib {
		t.Errorf("the owner: %+v", o)
	}
	if len(p.Lost) != 1 || p.Lost[0].Value != 3 {
		t.Errorf("lost: %+v", p.Lost)
	}
	tr.Add(sizedLook(31, "a", 40*mib)) // the second is gone
	if len(tr.stack) != 1 {
		t.Errorf("%d stacks are kept, 1 is there", len(tr.stack))
	}
	tr.Forget()
	if p = tr.Add(sizedLook(2, "a", 10*mib)); p.Window != 0 || p.Stacks[0].Grown != 0 || p.Stacks[0].Rate != 0 {
		t.Errorf("after another time: %v, %+v", p.Window, p.Stacks[0])
	}
}

// Two samples of one call site are one stack, whose figures add up.
func TestTrackerOneSiteTwice(t *testing.T) {
	l := sizedLook(0, "a", 10*mib, 20*mib, 1*mib)
	l.Sites[2] = l.Sites[0]
	p := NewTracker().Add(l)
	if len(p.Stacks) != 2 || p.Stacks[0].Sample.InuseBytes != 11*mib || p.Select(&Scope{}, "", ByInuse, false).OnGPUs.Inuse != 31*mib {
		t.Errorf("%d stacks, %d, all %d", len(p.Stacks), p.Stacks[0].Sample.InuseBytes, p.Select(&Scope{}, "", ByInuse, false).OnGPUs.Inuse)
	}
	if l.Snapshot.Samples[0].InuseBytes != 10*mib {
		t.Error("the snapshot was changed")
	}
}

// The memory of one call site stays one row, however many holders divide it, and the row names
// the holder of most of it. Memory without a call site has a row for each of its names. A
// snapshot without holders changes nothing.
func TestTrackerHolders(t *testing.T) {
	tr := NewTracker()
	for second, divided := range []bool{true, false} {
		l := sizedLook(second, "a", 10*mib, 20*mib)
		if divided {
			old := &snapshot.Location{Lines: []snapshot.Line{{Function: state.LineOldTensors}}}
			for _, path := range []string{"", "model.weight"} {
				x := snapshot.Sample{Stack: []*snapshot.Location{old}, Labels: snapshot.Labels{Kind: "tensor", PID: 7, GPU: "0", Holder: path}, Values: snapshot.Values{InuseBytes: mib}}
				if path != "" {
					x.Stack = append(x.Stack, &snapshot.Location{Lines: []snapshot.Line{{Function: path}}})
				}
				l.Snapshot.Samples, l.Sites = append(l.Snapshot.Samples, x), append(l.Sites, ledger.SiteKey{})
			}
			for path, bytes := range map[string]int64{"losses[*]": 5 * mib, "cache": mib} {
				x := l.Snapshot.Samples[0]
				x.Holder, x.Values = path, snapshot.Values{InuseBytes: bytes}
				l.Snapshot.Samples, l.Sites = append(l.Snapshot.Samples, x), append(l.Sites, l.Sites[0])
			}
		}
		p := tr.Add(l)
		if x := p.Stacks[0]; x.Holder() != "losses[*] and 1 more" || divided && x.Sample.InuseBytes != 16*mib {
			t.Errorf("%d bytes held by %q", x.Sample.InuseBytes, x.Holder())
		}
		if p.Stacks[1].Holder() != "" || divided && (len(p.Stacks) != 4 || p.Stacks[2].Holder() != "" || p.Stacks[3].Holder() != "model.weight") {
			t.Errorf("%d stacks", len(p.Stacks))
		}
	}
}

// A process that has another's PID has not allocated what that had.
func TestTrackerOfAnotherProcess(t *testing.T) {
	tr := NewTracker()
	tr.Add(sizedLook(0, "a", 100*mib))
	p := tr.Add(sizedLook(1, "b", 10*mib))
	if x := p.Processes[0]; x.Rate != 20*mib {
		t.Errorf("%f a second, want %d", x.Rate, 20*mib)
	}
}

// What has no call site is told from others by its names, and keeps its figures.
func TestTrackerWithoutSite(t *testing.T) {
	tr := NewTracker()
	make := func(second int, bytes int64) *Snapshot {
		l := sizedLook(second, "a")
		for i, name := range []string{"[context]", "[code]"} {
			l.Snapshot.Samples = append(l.Snapshot.Samples, snapshot.Sample{Stack: []*snapshot.Location{{Lines: []snapshot.Line{{Function: name}}}},
				Labels: snapshot.Labels{Kind: "driver", PID: 7, GPU: "0"}, Values: snapshot.Values{InuseBytes: bytes * int64(i+1)}})
		}
		return l
	}
	tr.Add(make(0, 1))
	p := tr.Add(make(1, 10))
	if len(p.Stacks) != 2 || p.Stacks[0].Grown != 9 || p.Stacks[1].Grown != 18 {
		t.Errorf("%d stacks: %+v", len(p.Stacks), p.Stacks)
	}
	if p.Stacks[0].ID.HasSite() || p.Stacks[0].ID == p.Stacks[1].ID {
		t.Errorf("%+v, %+v", p.Stacks[0].ID, p.Stacks[1].ID)
	}
}

// A process that ended grows no more, whatever is shown of it.
func TestEndedProcess(t *testing.T) {
	tr := NewTracker()
	for i := range 5 {
		l := sizedLook(i, "a", 10*mib)
		l.Snapshot.Processes[0].Exited = i > 1
		if p := tr.Add(l); p.Processes[0].Grown != 0 {
			t.Fatalf("%d: it grew by %d", i, p.Processes[0].Grown)
		}
	}
}

// What a call site counts is another thing while its memory is a caching allocator's: then
// what is handed out of it counts. An interval in which nothing was allocated has no rate.
func TestTrackerOfSegmentsThatGo(t *testing.T) {
	s, tr, at := state.New(), NewTracker(), uint64(0)
	s.Apply(&record.Trace{Start: time.Unix(1_700_000_000, 0), Boot: time.Unix(1_700_000_000, 0), APIs: []string{"", "cuMemAlloc_v2"}})
	id := event.Process{PID: 1, Start: event.StartUnit}
	s.Apply(&record.Process{Process: id, Target: true, Name: "python3", FromStart: true})
	apply := func(op event.Op, addr, size, stack uint64) {
		e := &event.Event{Op: op, Proc: id, TID: 1, Time: at + 1, Addr: addr, Size: size, Stack: stack, Handle: event.NoTotal, Part: event.NoTotal}
		switch op {
		case event.OpTensorAlloc:
			e.Kind = event.KindTensor
		case event.OpAlloc:
			e.Kind, e.API, e.Handle, e.Part = event.KindDevice, 1, 0, 0
		}
		s.Apply(e)
	}
	look := func() *Status {
		at += uint64(time.Second)
		s.Apply(&record.Moment{Time: at, Drained: true})
		v := s.View(state.Want{Driver: true})
		return tr.Add(&Snapshot{Snapshot: v.Snapshot(), Sites: slices.Collect(v.Sites)})
	}
	still := func(what string) {
		t.Helper()
		for _, x := range look().Stacks {
			if x.Rate != 0 {
				t.Errorf("%s: %s is allocated at %.0f bytes a second", what, x.Sample.Kind, x.Rate)
			}
		}
	}
	const segment, tensor = uint64(1 << 32), uint64(1 << 32)
	for i := range uint64(10) {
		apply(event.OpAlloc, segment+i*20*mib, 20*mib, 1)
	}
	look()
	apply(event.OpTensorFree, tensor, mib, 0) // from before
	still("tensors were there")
	for i := range uint64(10) {
		apply(event.OpFree, segment+i*20*mib, 0, 0)
	}
	still("the segments are given back")
}
