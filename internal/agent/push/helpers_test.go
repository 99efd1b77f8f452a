package push

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/outbox"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// A world is a trace of every process, made up.
type world struct {
	mu    sync.Mutex
	state *state.State
	now   uint64
	next  uint64 // address
}

var worldBegan = time.Unix(1_700_000_000, 0).UTC()

func newWorld() *world {
	w := &world{state: state.New(), now: uint64(time.Hour), next: 1 << 40}
	w.apply(&record.Trace{Version: "1", All: true, Boot: worldBegan.Add(-time.Hour), Start: worldBegan, APIs: []string{"", "cuMemAlloc_v2", "cuMemFree_v2"}})
	return w
}

func (w *world) Report(want state.Want) *state.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.state.View(want)
	w.state.Apply(&record.Reported{})
	return v
}

func (w *world) apply(r record.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.Apply(r)
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	w.now += uint64(d)
	w.apply(&record.Moment{Time: w.now, Drained: true})
}

// start begins a process, with a stack of its own.
func (w *world) start(pid uint32, name string) event.Process {
	id := event.Process{PID: pid, Start: w.now / event.StartUnit * event.StartUnit}
	program := &snapshot.Mapping{Start: 0x400000, Limit: 0x800000, Path: "/bin/" + name, BuildID: "ab"}
	w.apply(&record.Process{Process: id, Target: true, FromStart: true, Name: name, Program: program})
	frames := []*record.Place{
		record.NewPlace(uint64(pid)<<1|1, 0x401000, &snapshot.Location{Address: 0x401000, Mapping: program, Lines: []snapshot.Line{{Function: "allocate", File: "a.c", Line: 3}}}, nil),
		record.NewPlace(uint64(pid)<<1+2, 0, &snapshot.Location{Lines: []snapshot.Line{{Function: "train", File: "train.py", Line: int(pid)}}}, nil),
	}
	w.apply(&record.Stack{ID: uint64(pid), Process: id, Frames: frames})
	return id
}

func (w *world) alloc(id event.Process, size uint64) (address uint64) {
	w.next += 1 << 30
	w.now++
	w.apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: id, TID: id.PID, Time: w.now, API: 1, Stack: uint64(id.PID), Addr: w.next, Size: size})
	return w.next
}

func (w *world) free(id event.Process, address uint64) {
	w.now++
	w.apply(&event.Event{Op: event.OpFree, Proc: id, TID: id.PID, Time: w.now, API: 2, Addr: address})
}

func (w *world) exit(id event.Process) {
	w.now++
	w.apply(&event.Event{Op: event.OpExit, Proc: id, Time: w.now})
}

func batchOf(n int, body string) *outbox.Message {
	return &outbox.Message{Parts: n, Body: []byte(body)}
}

// lossOf returns one counter.
func lossOf(t *testing.T, all []loss.Counter, name string) uint64 {
	t.Helper()
	for _, c := range all {
		if c.Name == name {
			return c.Value
		}
	}
	t.Fatalf("no counter %s", name)
	return 0
}

// lossless fails if any counter but those named is not zero.
func lossless(t testing.TB, all []loss.Counter, but ...string) {
	t.Helper()
	for _, c := range all {
		if c.Value != 0 && !slices.Contains(but, c.Name) {
			t.Errorf("%s = %d", c.Name, c.Value)
		}
	}
}

// sums returns what the samples of a profile add up to, by type.
func sums(x *process) map[string]int64 {
	out := map[string]int64{}
	for _, s := range x.profile.Sample {
		for i, t := range x.profile.SampleType {
			out[t.Type] += s.Value[i]
		}
	}
	return out
}

func (x *process) label(name string) string {
	for _, l := range x.labels {
		if l.Name == name {
			return l.Value
		}
	}
	return ""
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for begin := time.Now(); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > 5*time.Minute {
			t.Fatalf("not so after five minutes: %s", what)
		}
	}
}
