package physical

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// rebuilt returns a new Ledger that is read from l's keyframe.
func rebuilt(t testing.TB, l *Ledger) *Ledger {
	t.Helper()
	out := New(ledger.Options{})
	if !record.ReadFields(written(l), out.Visit) {
		t.Fatal("what was written does not read")
	}
	return out
}

// written returns the data of all parts of l's keyframe.
func written(l *Ledger) (data []byte) {
	record.WriteFields(record.OfPhysical, l.Visit, func(r record.Record) { data = append(data, r.(*record.Part).Data...) })
	return data
}

// living is what is shown of a process.
type living struct {
	Seen    bool
	Changed uint64
	Sites   map[string][3]int64 // bytes in use, at the peak and ever allocated, by call site
}

func livingOf(l *Ledger, procs ...event.Process) map[event.Process]living {
	out := map[event.Process]living{}
	for _, id := range procs {
		out[id] = living{l.Seen(id), l.Changed(id), map[string][3]int64{}}
	}
	for s := range l.Rows.Sites {
		if x, ok := out[s.Proc]; ok {
			gpu := "none"
			if s.Device != none {
				g := l.GPUs(s.Proc)[s.Device]
				gpu = fmt.Sprint(g.ID, g.Known, g.Instance, g.Ordinal)
			}
			key := fmt.Sprint(gpu, " ", s.Kind, " ", functions[s.API], " ", s.Stack)
			f := x.Sites[key]
			x.Sites[key] = [3]int64{f[0] + s.InuseBytes, f[1] + s.PeakBytes, f[2] + s.AllocBytes}
		}
	}
	return out
}

// TestKeyframe has a row for each thing that is rebuilt: what was called before, and
// what is called after, by the old and the new Ledger alike.
func TestKeyframe(t *testing.T) {
	grown := []*event.Event{makeMemory(10, first, 414*mib), end(11, first, in(inLoad)), makeMemory(12, first, 550*mib, in(inLoad), stack(2)),
		end(13, first, in(inLaunch)), makeMemory(14, first, 600*mib, in(inLaunch), stack(3))}
	b := begun(client2, 6, other)
	tests := []struct {
		name          string
		before, after []*event.Event
	}{
		{"nothing but that the process is seen", []*event.Event{end(9, client)}, nil},
		{"memory", []*event.Event{makeMemory(4, first, mib), makeMemory(5, second, mib, in(inAlloc))}, []*event.Event{end(9, first)}},
		{"system memory", []*event.Event{makeMemory(4, first, mib, kind(event.KindSystem))}, []*event.Event{end(9, first)}},
		{"the tree", []*event.Event{makeMemory(4, first, mib)}, []*event.Event{end(9, device)}},
		{"descriptors", []*event.Event{makeMemory(4, first, mib)}, []*event.Event{ev(9, event.OpDescriptorClose, number(5))}},
		{"GPUs", []*event.Event{tellGPU(4, 1, 7)}, []*event.Event{makeDevice(5, device+9, 1), makeMemory(6, first, mib, name(first, device+9))}},
		{"an instance", []*event.Event{ev(4, event.OpObjectInstance, name(second, device), number(3)), makeMemory(5, first, mib)},
			[]*event.Event{makeMemory(6, first+1, mib, stack(4))}},
		{"ordinals", []*event.Event{makeMemory(4, first, mib), ev(5, event.OpGPU, func(e *event.Event) { e.Handle, e.Device = first, 2 })}, nil},
		{"ordinals of a device of before the trace", []*event.Event{makeMemory(4, shared2, mib, of(other)),
			ev(5, event.OpGPU, of(other), func(e *event.Event) { e.Handle, e.Device = shared2, 2 })}, []*event.Event{end(9, device2, of(other))}},
		{"ordinals of what nothing is on", []*event.Event{makeMemory(4, first, mib), ev(5, event.OpGPU, func(e *event.Event) { e.Handle, e.Device = first, 2 }), end(6, client)},
			[]*event.Event{makeClient(7, client, 5), makeDevice(8, device, 0), makeMemory(9, first, mib)}},
		{"of before the trace too", []*event.Event{makeMemory(4, shared2, mib), ev(5, event.OpGPU, func(e *event.Event) { e.Handle, e.Device = shared2, 2 }), end(6, shared2)},
			[]*event.Event{makeMemory(9, shared2, mib)}},
		{"growth", grown, []*event.Event{end(20, first, in(inLaunch)), makeMemory(21, first, 700*mib, in(inLaunch), stack(4))}},
		{"what may grow", grown[:2], grown[2:]},
		{"what may grow of before the trace", []*event.Event{makeMemory(10, shared2+1, mib), end(11, shared2, in(inLaunch))},
			[]*event.Event{makeMemory(12, shared2, 550*mib, in(inLaunch))}},
		{"shares", append(b, makeMemory(4, first, mib), makeShare(5, shared2, first, of(other))), []*event.Event{end(9, first)}},
		{"the order of shares", append(b, makeMemory(4, first, mib), makeShare(5, shared2, first, of(other)), makeShare(6, second, first)),
			[]*event.Event{end(9, first)}},
		{"what is left of shares", append(b, makeMemory(4, first, mib), makeShare(5, shared2, first, of(other)), end(6, first)),
			[]*event.Event{makeShare(7, second, shared2), end(9, shared2, of(other))}},
		{"what still has to begin", nil, append(b, makeMemory(4, first, mib), makeShare(5, shared2, first, of(other)), end(6, first))},
		{"an export", append(b, makeMemory(4, first, mib), makeExport(5, 100, first)), []*event.Event{makeImport(6, shared2, 100, of(other)), end(9, first)}},
		{"an export whose importer is left", append(b, makeMemory(4, first, mib), makeExport(5, 100, first), makeImport(6, shared2, 100, of(other)), end(7, first)),
			[]*event.Event{end(9, shared2, of(other))}},
		{"an exec", []*event.Event{makeMemory(4, first, mib), ev(5, event.OpExec), makeClient(6, client2, 5), makeMemory(7, shared2, mib)},
			[]*event.Event{makeMemory(5, second, mib), end(9, client2)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			whole := run(tt.before...)
			cut := rebuilt(t, whole)
			for i, e := range append([]*event.Event{nil}, tt.after...) {
				if e != nil {
					apply(whole, e)
					apply(cut, e)
				}
				check(t, cut)
				if d := cmp.Diff(livingOf(whole, proc, other), livingOf(cut, proc, other)); d != "" {
					t.Fatalf("after %d more (-whole +cut):\n%s", i, d)
				}
			}
		})
	}
}

// At each point of what processes call, the rebuilt Ledger shows the same, and goes on
// to show what the kernel driver has.
func TestKeyframeRandom(t *testing.T) {
	for seed := range uint64(100) {
		ledgers := []*Ledger{New(ledger.Options{})}
		w := newWorld(seed, func(e *event.Event) {
			for _, l := range ledgers {
				apply(l, e)
			}
		})
		for step := range 2000 {
			w.advance()
			if step%200 != 100 {
				continue
			}
			cut := rebuilt(t, ledgers[0])
			check(t, cut)
			if d := cmp.Diff(livingOf(ledgers[0], w.procs[:]...), livingOf(cut, w.procs[:]...)); d != "" {
				t.Fatalf("seed %d, step %d: (-whole +cut):\n%s", seed, step, d)
			}
			ledgers = append(ledgers[:1], cut)
		}
		w.settle()
		for _, p := range w.procs {
			want := w.kernel.taken(p)
			for i, l := range ledgers {
				if d := cmp.Diff(want, taken(l, p)); d != "" {
					t.Fatalf("seed %d: ledger %d at the end (-kernel +ledger):\n%s", seed, i, d)
				}
			}
		}
	}
}

// On an H200: at each point where NVML was read, the rebuilt Ledger has the same, also
// by call site.
func TestKeyframeMeasured(t *testing.T) {
	l := New(ledger.Options{})
	replay(t, filepath.Join("testdata", "h200-driver.txt"), l, func(label string, bytes int64) {
		cut := rebuilt(t, l)
		if d := cmp.Diff(byKind(l, proc), byKind(cut, proc)); d != "" || total(cut, proc) != bytes {
			t.Errorf("%s: %d bytes, want %d (-whole +cut):\n%s", label, total(cut, proc), bytes, d)
		}
	})
}

// TestHostileKeyframe changes bytes of keyframes: what reads goes on whatever comes.
func TestHostileKeyframe(t *testing.T) {
	read := 0
	for seed := range uint64(1500) {
		r := rand.New(rand.NewPCG(seed, 3))
		l := New(ledger.Options{})
		w := newWorld(seed, func(e *event.Event) { apply(l, e) })
		for range r.IntN(500) {
			w.advance()
		}
		data := append(written(l), 0)
		for range 1 + r.IntN(4) {
			data[r.IntN(len(data)-1)] = byte(r.Uint32())
		}
		l = New(ledger.Options{})
		if !record.ReadFields(data[:len(data)-1], l.Visit) {
			l = New(ledger.Options{})
			continue
		}
		read++
		for range 300 {
			w.advance()
		}
		written(l)
		for id := range l.procs {
			l.Forget(id)
		}
		if len(l.objects)+len(l.exports)+l.ObjectCount() != 0 {
			t.Fatalf("seed %d: %d objects, %d exports, %d counted are left", seed, len(l.objects), len(l.exports), l.ObjectCount())
		}
	}
	if read < 100 {
		t.Errorf("%d keyframes were read", read)
	}
}
