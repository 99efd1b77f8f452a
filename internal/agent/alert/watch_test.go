package alert

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

const gib = int64(1) << 30

// totals are of one GPU of 100 GiB, of which so much is used, and a process that has so much.
func totals(used, live int64) *state.Totals {
	t := &state.Totals{
		GPUs:      []state.GPUTotals{{GPUMemory: snapshot.GPUMemory{GPU: "0", Total: 100 * gib, Used: used, Free: 100*gib - used}, Held: live, Known: true, Residual: used - live, ResidualKnown: true}},
		Processes: []snapshot.Process{{PID: 7, Name: "train"}},
		Uses:      []state.Use{{PID: 7, GPU: "0", Live: live}},
		Accounts:  []snapshot.Account{{PID: 7, GPU: "0", Total: live + gib, Known: true}},
		Groups: []state.GroupTotals{
			{Group: state.Group{GPU: "0", Kind: event.KindDevice, Owner: "pytorch"}, LiveBytes: live},
			{Group: state.Group{GPU: "", Kind: event.KindHost, Owner: "pytorch"}, LiveBytes: 50 * gib},
		},
		Loss: []loss.Counter{{Name: "events_ring_full", Value: uint64(live / gib)}},
	}
	t.Meta.Start = time.Unix(1_700_000_000, 0).UTC()
	return t
}

// told are the texts of what is told of rules at one moment after another, a minute apart,
// each with the minute.
func told(t *testing.T, rules []string, moments ...*state.Totals) (out []string) {
	t.Helper()
	var all []Rule
	for _, text := range rules {
		all = append(all, parsed(t, text))
	}
	w := NewWatch(all)
	for i, m := range moments {
		m.Meta.Duration = time.Duration(i) * time.Minute
		for _, a := range w.Observe(m.Meta.Duration, m) {
			if !a.Time.Equal(m.Meta.Start.Add(m.Meta.Duration)) || a.Resolved != strings.HasPrefix(a.Text, "resolved: ") || !slices.Contains(rules, a.Rule) {
				t.Errorf("%+v", a)
			}
			out = append(out, fmt.Sprintf("%d %s", i, a.Text))
		}
	}
	return out
}

func moments(of func(int64) *state.Totals, gibs ...int64) (out []*state.Totals) {
	for _, n := range gibs {
		out = append(out, of(n*gib))
	}
	return out
}

func TestWatch(t *testing.T) {
	used := func(n int64) *state.Totals { return totals(n, 0) }
	live := func(n int64) *state.Totals { return totals(50*gib, n) }
	gone := live(gib)
	gone.Processes, gone.Uses, gone.Accounts = nil, nil, nil
	exited := live(60 * gib)
	exited.Processes[0].Exited = true
	unread := used(0)
	unread.GPUs[0].GPUMemory = snapshot.GPUMemory{GPU: "0"}
	for _, tt := range []struct {
		name    string
		rule    string
		moments []*state.Totals
		want    []string
	}{
		{"at the limit nothing is told, beyond it once, and it is over a twentieth below", "gpu.used > 80%", moments(used, 80, 81, 90, 79, 81, 77, 76, 82),
			[]string{"1 GPU 0: gpu.used is 81.0 GiB, 81.0% of 100 GiB (gpu.used > 80%)",
				"6 resolved: GPU 0: gpu.used is 76.0 GiB, 76.0% of 100 GiB (gpu.used > 80%)",
				"7 GPU 0: gpu.used is 82.0 GiB, 82.0% of 100 GiB (gpu.used > 80%)"}},
		{"what must last", "gpu.used >= 80% for 2m", moments(used, 80, 80, 10, 80, 90, 85, 10),
			[]string{"5 GPU 0: gpu.used is 85.0 GiB, 85.0% of 100 GiB (gpu.used >= 80% for 2m)", "6 resolved: GPU 0: gpu.used is 10.0 GiB, 10.0% of 100 GiB (gpu.used >= 80% for 2m)"}},
		{"less", "gpu.free < 20GiB", moments(used, 70, 81, 80, 70),
			[]string{"1 GPU 0: gpu.free is 19.0 GiB, 19.0% of 100 GiB (gpu.free < 20GiB)", "3 resolved: GPU 0: gpu.free is 30.0 GiB, 30.0% of 100 GiB (gpu.free < 20GiB)"}},
		{"no limit to pass", "loss > 0", moments(live, 0, 3, 4),
			[]string{"1 loss events_ring_full: loss is 3 (loss > 0)"}},
		{"residual", "residual > 30GiB", moments(live, 40, 10), []string{"1 GPU 0: residual is 40.0 GiB, 40.0% of 100 GiB (residual > 30GiB)"}},
		{"held", "process.held > 20%", moments(live, 10, 20), []string{"1 process 7 (train): process.held is 21.0 GiB, 21.0% of 100 GiB (process.held > 20%)"}},
		{"an owner, on GPUs alone", "owner.live > 20GiB", moments(live, 10, 21), []string{"1 owner pytorch: owner.live is 21.0 GiB (owner.live > 20GiB)"}},
		{"a process that is gone", "process.live > 20GiB", append(moments(live, 30), gone, gone),
			[]string{"0 process 7 (train): process.live is 30.0 GiB, 30.0% of 100 GiB (process.live > 20GiB)",
				"1 resolved: process 7 (train) is gone, or not known any more (process.live > 20GiB)"}},
		{"a process that has ended", "process.live > 20GiB", []*state.Totals{exited}, nil},
		{"what NVML does not tell", "gpu.used < 1%", []*state.Totals{unread}, nil},
		{"growth is from so long ago", "process.live grows 10GiB in 3m", moments(live, 50, 55, 58, 60, 60, 60, 62, 63),
			[]string{"3 process 7 (train): process.live grew by 10.0 GiB in 3m, to 60.0 GiB, 60.0% of 100 GiB (process.live grows 10GiB in 3m)",
				"4 resolved: process 7 (train): process.live grew by 5.0 GiB in 3m, to 60.0 GiB, 60.0% of 100 GiB (process.live grows 10GiB in 3m)"}},
		{"a young process has not grown", "process.live grows 10GiB in 10m", moments(live, 0, 90, 90, 90), nil},
		{"what shrinks", "process.live grows 10% in 1m", moments(live, 20, 30, 5),
			[]string{"1 process 7 (train): process.live grew by 10.0 GiB in 1m, to 30.0 GiB, 30.0% of 100 GiB (process.live grows 10% in 1m)",
				"2 resolved: process 7 (train): process.live shrank by 25.0 GiB in 1m, to 5.0 GiB, 5.0% of 100 GiB (process.live grows 10% in 1m)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := told(t, []string{tt.rule}, tt.moments...); !slices.Equal(got, tt.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// A failure is told once for each process, and is over when there was none for ten minutes.
func TestWatchOutOfMemory(t *testing.T) {
	var all []*state.Totals
	for i := range 30 {
		m := totals(0, 0)
		for j := range min(i, 5) { // one a minute, of two processes
			m.Latest = append(m.Latest, state.LatestFailure{Number: int64(1 + j), PID: 7 + j%2, Process: "train", GPU: "0", Requested: uint64(3 * gib), Time: m.Meta.Start.Add(time.Duration(1+j) * time.Minute)})
		}
		all = append(all, m)
	}
	want := []string{
		"1 process 7 (train) on GPU 0 ran out of memory: 3.0 GiB were asked for (oom)",
		"2 process 8 (train) on GPU 0 ran out of memory: 3.0 GiB were asked for (oom)",
		"14 resolved: process 8 (train) on GPU 0 has not run out of memory for 10m (oom)",
		"15 resolved: process 7 (train) on GPU 0 has not run out of memory for 10m (oom)",
	}
	if got := told(t, []string{"oom"}, all...); !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

// Rules that change: one that stays tells nothing again, a new one of nothing old, and one
// that went tells nothing more.
func TestWatchChanges(t *testing.T) {
	used, failure := parsed(t, "gpu.used > 80%"), parsed(t, oom)
	m := totals(90*gib, 0)
	fail := func() {
		m.Latest = append(m.Latest, state.LatestFailure{Number: int64(1 + len(m.Latest)), PID: 8 + len(m.Latest), GPU: "0"})
	}
	w := NewWatch([]Rule{used})
	at := time.Duration(0)
	look := func(want int) {
		t.Helper()
		at += time.Second
		if got := w.Observe(at, m); len(got) != want {
			t.Errorf("told %+v, want %d", got, want)
		}
	}
	fail()
	look(1)
	w.Change([]Rule{failure, used})
	look(0)
	fail()
	look(1)
	w.Change([]Rule{used, failure, failure})
	look(0)
	fail()
	look(2)
	w.Change([]Rule{failure})
	m.GPUs[0].Used = 0
	look(0)
	if c := lost(w.Loss()); len(c) != 0 {
		t.Errorf("lost %v", c)
	}
	for range 10 {
		fail()
	}
	m.Latest = m.Latest[8:] // of 13, of which 3 were told
	look(5)
	if c := lost(w.Loss()); c["alert_failures_missed"] != 5 {
		t.Errorf("lost %v", c)
	}
	if n := len(w.Firing()); n != 7 {
		t.Errorf("%d are firing", n)
	}
}

// What is known of subjects is bounded, and what finds no room is counted.
func TestWatchIsBounded(t *testing.T) {
	w := NewWatch([]Rule{parsed(t, "process.live grows 1GiB in 1h"), parsed(t, "process.live > 1B")})
	m := totals(0, gib)
	m.Processes, m.Uses = nil, nil
	for i := range maxSubjects + 10 {
		m.Processes = append(m.Processes, snapshot.Process{PID: 1 + i, Name: "x"})
		if i%500 == 0 {
			m.Processes[i].Name = strings.Repeat("\x1b", 1000)
		}
		m.Uses = append(m.Uses, state.Use{PID: 1 + i, Live: gib})
	}
	for i := range 4 {
		for _, a := range w.Observe(time.Duration(i)*time.Hour, m) {
			if len(a.Text) > 10*maxName || strings.Contains(a.Text, "\x1b") {
				t.Fatalf("%q", a.Text)
			}
		}
	}
	if n := len(w.Firing()); n != maxSubjects {
		t.Errorf("%d are firing", n)
	}
	if c := w.Loss()[0]; c.Value != 2*4*10 {
		t.Errorf("%+v", c)
	}
	r := parsed(t, "process.live grows 1GiB in 1h")
	c, x := &condition{}, watched{Rule: r}
	for i := range 100_000 {
		x.observe(c, time.Duration(i)*time.Second, measure{})
		if len(c.samples) > maxSamples || cap(c.samples) > 4*maxSamples {
			t.Fatalf("%d samples, room for %d", len(c.samples), cap(c.samples))
		}
	}
}

// A real program that ran out of memory on an NVIDIA H200 is told of, by name.
func TestRealOutOfMemory(t *testing.T) {
	r, err := record.Open("../../../test/recordings/out_of_memory.gmt")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w := NewWatch([]Rule{parsed(t, "oom"), parsed(t, "process.live > 100GB")})
	s := state.New()
	var got []Alert
	for n := 0; ; n++ {
		x, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		s.Apply(x)
		if _, ok := x.(*record.Moment); ok && n%50 == 0 {
			v := s.View(state.Want{Totals: true}).Totals()
			got = append(got, w.Observe(v.Meta.Duration, v)...)
		}
	}
	v := s.View(state.Want{Totals: true}).Totals()
	got = append(got, w.Observe(v.Meta.Duration, v)...)
	i := slices.IndexFunc(got, func(a Alert) bool { return a.Rule == oom })
	if i < 0 || !strings.Contains(got[i].Text, "(python3) on GPU 0 ran out of memory") || got[i].Value == 0 {
		t.Errorf("%+v", got)
	}
	var failures int64
	for _, n := range v.OutOfMemory {
		failures += n
	}
	if failures == 0 || failures != v.Latest[len(v.Latest)-1].Number {
		t.Errorf("%d failures, %+v", failures, v.Latest)
	}
}
