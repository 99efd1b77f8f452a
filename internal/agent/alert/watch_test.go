package alert

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/leaks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

const gib = int64(1) << 30

// totals are of one GPU of 100 GiB, of which so much is used, and a process that has so much.
func totals(used, live int64) *state.Totals {
	t := &state.Totals{
		GPUs:      []state.GPUFigures{{GPUMemory: snapshot.GPUMemory{GPU: "0", Total: 100 * gib, Used: used, Free: 100*gib - used}, Held: live, Known: true}},
		Processes: []snapshot.Process{{PID: 7, Name: "train"}},
		Uses:      []state.Use{{PID: 7, GPU: "0", Live: live}},
		Accounts:  []snapshot.Account{{PID: 7, GPU: "0", Total: live + gib, Known: true}},
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
	renamed := live(30 * gib)
	renamed.Processes[0].Name = "pt_main_thread"
	unread := used(0)
	unread.GPUs[0].GPUMemory = snapshot.GPUMemory{GPU: "0"}
	for _, tt := range []struct {
		name    string
		rule    string
		moments []*state.Totals
		want    []string
	}{
		{"at the limit nothing is told, beyond it once, and it is over after five minutes a twentieth below", "gpu.used > 80%", moments(used, 80, 81, 90, 79, 81, 77, 76, 75, 75, 75, 75, 75, 75, 82),
			[]string{"1 GPU 0: gpu.used is 81.0 GiB, 81.0% of 100 GiB (gpu.used > 80%)",
				"11 resolved: GPU 0: gpu.used is 75.0 GiB, 75.0% of 100 GiB (gpu.used > 80%)",
				"13 GPU 0: gpu.used is 82.0 GiB, 82.0% of 100 GiB (gpu.used > 80%)"}},
		{"what swings about the limit is told once", "gpu.used > 80%", moments(used, 50, 90, 20, 90, 90, 10, 10, 10, 10, 85, 10, 90, 50, 50, 50, 50, 50, 50),
			[]string{"1 GPU 0: gpu.used is 90.0 GiB, 90.0% of 100 GiB (gpu.used > 80%)",
				"17 resolved: GPU 0: gpu.used is 50.0 GiB, 50.0% of 100 GiB (gpu.used > 80%)"}},
		{"a reading that fails ends nothing", "gpu.used > 80%", append(append(moments(used, 90), unread, unread, unread, unread), moments(used, 90, 90)...),
			[]string{"0 GPU 0: gpu.used is 90.0 GiB, 90.0% of 100 GiB (gpu.used > 80%)"}},
		{"readings that fail for long do", "gpu.used > 80%", append(moments(used, 90), unread, unread, unread, unread, unread, unread),
			[]string{"0 GPU 0: gpu.used is 90.0 GiB, 90.0% of 100 GiB (gpu.used > 80%)",
				"5 resolved: GPU 0 is gone, or not known any more (gpu.used > 80%)"}},
		{"what must last, and a reading fails", "gpu.used > 79% for 2m", append(append(moments(used, 80, 80), unread), moments(used, 80, 80)...), nil},
		{"a process that changes its name", "process.live > 20GiB", append(moments(live, 30), renamed),
			[]string{"0 process 7 (train): process.live is 30.0 GiB, 30.0% of 100 GiB (process.live > 20GiB)"}},
		{"what must last", "gpu.used > 79% for 2m", moments(used, 80, 80, 10, 80, 90, 85, 10, 10, 10, 10, 10, 10),
			[]string{"5 GPU 0: gpu.used is 85.0 GiB, 85.0% of 100 GiB (gpu.used > 79% for 2m)", "11 resolved: GPU 0: gpu.used is 10.0 GiB, 10.0% of 100 GiB (gpu.used > 79% for 2m)"}},
		{"held", "process.held > 20%", moments(live, 10, 20), []string{"1 process 7 (train): process.held is 21.0 GiB, 21.0% of 100 GiB (process.held > 20%)"}},
		{"a process that is gone", "process.live > 20GiB", append(moments(live, 30), gone, gone),
			[]string{"0 process 7 (train): process.live is 30.0 GiB, 30.0% of 100 GiB (process.live > 20GiB)",
				"1 resolved: process 7 (train) is gone, or not known any more (process.live > 20GiB)"}},
		{"a process that has ended", "process.live > 20GiB", []*state.Totals{exited}, nil},
		{"what NVML does not tell", "gpu.used > 1%", []*state.Totals{unread}, nil},
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
			m.Latest = append(m.Latest, state.FailureSummary{Number: int64(1 + j), PID: 7 + j%2, Process: "train", GPU: "0", Requested: uint64(3 * gib), Time: m.Meta.Start.Add(time.Duration(1+j) * time.Minute)})
		}
		all = append(all, m)
	}
	want := []string{
		"1 process 7 (train) on GPU 0 ran out of memory: it requested 3.00 GiB (oom)",
		"2 process 8 (train) on GPU 0 ran out of memory: it requested 3.00 GiB (oom)",
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
		m.Latest = append(m.Latest, state.FailureSummary{Number: int64(1 + len(m.Latest)), PID: 8 + len(m.Latest), GPU: "0"})
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
	w := NewWatch([]Rule{parsed(t, "process.live > 1GiB"), parsed(t, "process.live > 1KiB")})
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
}

// A real program that ran out of memory on an NVIDIA H200 is told of, by name.
func TestRealOutOfMemory(t *testing.T) {
	r, err := record.Open("../../../test/recordings/out_of_memory.gmt")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w := NewWatch([]Rule{parsed(t, "oom"), parsed(t, "process.live > 100GiB")})
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

// A leak is told once for each process, with the program's own line and the stack, and not
// while the process starts. Its end is told when nothing was found for five minutes.
func TestWatchLeaks(t *testing.T) {
	w := NewWatch([]Rule{parsed(t, "leak")})
	m := totals(0, gib)
	one := func(growth int64, over time.Duration) leaks.Leak {
		return leaks.Leak{PID: 7, Process: "train", GPU: "0", Growth: growth, Over: over, Now: true, Line: "step train.py:41", Brief: "at::empty < step train.py:41", Frames: []string{"at::empty", "step /home/me/train.py:41"}}
	}
	starting, earlier, gone := one(gib, time.Minute), one(gib, time.Minute), one(gib, time.Minute)
	starting.Starting, earlier.Now, gone.PID = true, false, 99
	small := one(gib/2, 2*time.Minute)
	small.Frames, small.Brief = nil, "other"
	var got []string
	for i, found := range [][]leaks.Leak{
		0: {starting, earlier, gone}, 1: {one(gib, time.Minute)}, 2: {one(3*gib, 2*time.Minute), small}, 3: {one(3*gib, 3*time.Minute), small},
		4: {earlier}, 5: {one(4*gib, 5*time.Minute)}, 11: {starting},
	} {
		m.Meta.Duration = time.Duration(i) * time.Minute
		w.Leaks(found)
		for _, a := range w.Observe(m.Meta.Duration, m) {
			got = append(got, fmt.Sprintf("%d %s", i, a.Text))
			if want := one(0, 0).Frames; !slices.Equal(a.Stack, want) || a.Subject != (Subject{PID: 7, Process: "train"}) {
				t.Errorf("%+v", a)
			}
		}
		if i == 2 {
			if f := w.Firing(); len(f) != 1 || f[0].Value != 3*gib+gib/2 || !f[0].Since.Equal(m.Meta.Start.Add(time.Minute)) {
				t.Errorf("%+v", f)
			}
		}
	}
	want := []string{
		"1 process 7 (train): memory of a stack grew by 1.00 GiB in 1m and is still held, allocated at step train.py:41, by at::empty < step train.py:41 (leak)",
		"11 resolved: process 7 (train): no stack grows any more (leak)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}
