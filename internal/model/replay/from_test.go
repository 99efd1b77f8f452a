package replay

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// What was allocated, and the peak, count from a moment on; what was in use then is.
func TestFrom(t *testing.T) {
	sized := func(after time.Duration, stack, addr, size uint64) *event.Event {
		e := alloc(after, addr)
		e.Stack, e.Size = stack, size
		return e
	}
	freed := func(after time.Duration, addr uint64) *event.Event {
		return &event.Event{Op: event.OpFree, Time: at(after), Proc: proc, TID: 7, API: 1, Addr: addr}
	}
	const second = time.Second
	failed := sized(3*second, 1, 0, 9)
	failed.Result = event.OutOfMemory
	path := recordtest.File(t, traceOf(), moment(0),
		sized(second, 1, 16, 100), freed(second, 16), sized(second, 2, 32, 10), moment(second), failed, moment(3*second),
		sized(4*second, 1, 48, 30), freed(4*second, 48), sized(4*second, 3, 64, 5), moment(5*second),
		sized(6*second, 1, 80, 1000), moment(7*second), freed(8*second, 80))
	at := func(d time.Duration) *Start { return &Start{At: d} }
	for _, c := range []struct {
		name                                       string
		from                                       *Start
		to                                         time.Duration
		before, allocated, after, peak, failed, of int64 // of: samples
	}{
		{"all", nil, End, 0, 1145, 15, 1015, 1, 3},
		{"from the beginning", at(0), End, 0, 1145, 15, 1015, 1, 3},
		{"the middle", at(3 * second), 5 * second, 10, 35, 15, 40, 0, 3},
		{"between moments", at(4*second - 1), 6*second - 1, 10, 35, 15, 40, 0, 3},
		{"from one event to another", at(4 * second), 6 * second, 15, 1000, 1015, 1015, 0, 3},
		{"what follows it", at(5 * second), End, 15, 1000, 15, 1015, 0, 3},
		{"nothing", at(5 * second), 5 * second, 15, 0, 15, 15, 0, 2},
		{"its end", at(8 * second), End, 15, 0, 15, 15, 0, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before int64
			opts := Options{At: c.to}
			if c.from != nil {
				from := *c.from
				from.State = func(s *state.State) {
					for _, p := range s.Processes() {
						before += p.Inuse
					}
				}
				opts.From = &from
			}
			s, err := Play(path, opts)
			if err != nil {
				t.Fatal(err)
			}
			snap := s.View(state.Want{Driver: true}).Snapshot()
			p := snap.Processes[0]
			if before != c.before || p.Allocated != c.allocated || p.Inuse != c.after || p.Peak != c.peak || p.Failed != c.failed || len(snap.Samples) != int(c.of) {
				t.Errorf("%d before, %+v, %d samples, want %+v", before, p, len(snap.Samples), c)
			}
			var sum snapshot.Values
			for i := range snap.Samples {
				sum.Add(&snap.Samples[i].Values)
			}
			if sum.AllocBytes != c.allocated || sum.InuseBytes != c.after || sum.PeakBytes != c.peak || sum.FailedObjects != c.failed {
				t.Errorf("samples %+v, want %+v", sum, c)
			}
		})
	}
	for name, from := range map[string]*Start{"it ends at": at(9 * second), "it begins at": at(-second)} {
		from.State = func(*state.State) {}
		if _, err := Play(path, Options{At: End, From: from}); !errors.Is(err, ErrNoMoment) || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
	}
}

// A process that ended before is shown no more, and one that ends in between is.
func TestFromAfterAnExit(t *testing.T) {
	late := event.Process{PID: 8, Start: event.StartUnit}
	other := alloc(time.Second, 16)
	other.Proc = late
	exit := func(id event.Process, after time.Duration) *event.Event {
		return &event.Event{Op: event.OpExit, Time: at(after), Proc: id}
	}
	path := recordtest.File(t, traceOf(), moment(0), alloc(time.Second, 16), other, exit(proc, 2*time.Second), moment(3*time.Second),
		exit(late, 4*time.Second), moment(5*time.Second))
	s, err := Play(path, Options{At: End, From: &Start{At: 3 * time.Second, State: func(*state.State) {}}})
	if err != nil {
		t.Fatal(err)
	}
	snap := s.View(state.Want{}).Snapshot()
	if len(snap.Processes) != 1 || snap.Processes[0].PID != 8 || snap.Processes[0].Peak != 1 {
		t.Errorf("%+v", snap.Processes)
	}
}

// Records of the stretch that were not kept: it begins where what was live is told again,
// because what came and went before that is not known.
func TestFromBeforeACut(t *testing.T) {
	const second = time.Second
	sized := func(after time.Duration, addr, size uint64) *event.Event {
		e := alloc(after, addr)
		e.Size = size
		return e
	}
	path := recordtest.File(t, traceOf(), moment(0), sized(second, 16, 100), moment(second), sized(2*second, 32, 10), moment(3*second),
		&record.Cut{Time: at(5 * second)}, traceOf(), sized(second, 16, 100), sized(2*second, 32, 10), sized(4*second, 48, 1), moment(5*second),
		sized(6*second, 64, 7), moment(7*second))
	var before, began []int64
	s, err := Play(path, Options{At: End, From: &Start{At: second, State: func(s *state.State) {
		before = append(before, s.Processes()[0].Inuse)
		began = append(began, int64(s.Time().Sub(s.Start())/second))
	}}})
	if err != nil {
		t.Fatal(err)
	}
	p := s.View(state.Want{}).Snapshot().Processes[0]
	if !slices.Equal(before, []int64{100, 111}) || !slices.Equal(began, []int64{1, 5}) || p.Allocated != 7 || p.Inuse != 118 || p.Peak != 118 {
		t.Errorf("%d before, from %d s on, %+v", before, began, p)
	}
}

// What was allocated in parts of a recording adds up to all, in each layer.
func TestFromAddsUp(t *testing.T) {
	for name, path := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			sums := func(opts Options) map[string]int64 {
				t.Helper()
				s, err := Play(path, opts)
				if err != nil {
					t.Fatal(err)
				}
				out := map[string]int64{}
				snap := s.View(state.Want{Driver: true}).Snapshot()
				for i := range snap.Samples {
					x := &snap.Samples[i]
					out[x.Kind] += x.AllocBytes
				}
				for _, p := range snap.Processes {
					out["processes"] += p.Allocated
				}
				delete(out, "device") // what tensors are handed out of counts elsewhere
				return out
			}
			end, err := Play(path, Options{At: End})
			if err != nil {
				t.Fatal(err)
			}
			half := end.Time().Sub(end.Start()) / 2
			all := sums(Options{At: End})
			first := sums(Options{At: half})
			second := sums(Options{At: End, From: &Start{At: half, State: func(*state.State) {}}})
			for kind, bytes := range all {
				if kind != "cached" && first[kind]+second[kind] != bytes {
					t.Errorf("%s: %d and %d, together %d", kind, first[kind], second[kind], bytes)
				}
			}
		})
	}
}
