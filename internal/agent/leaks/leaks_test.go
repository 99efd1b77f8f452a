package leaks

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/leak"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

const mib = 1 << 20

// A machine is a state as a Source.
type machine struct {
	state  *state.State
	at     time.Duration
	next   uint64 // address
	views  int
	locked time.Duration // how long the state could not change
}

var boot = time.Unix(1_700_000_000, 0).UTC()

func newMachine() *machine {
	m := &machine{state: state.New(), at: time.Second, next: 1 << 40}
	m.state.Apply(&record.Trace{Version: "test", Target: "every process", All: true, Boot: boot, Start: boot, APIs: []string{"", "cuMemAlloc_v2"}})
	return m
}

func (m *machine) Read(read func(*state.State)) {
	begun := time.Now()
	read(m.state)
	m.locked += time.Since(begun)
}

func (m *machine) View(w state.Want) *state.View {
	m.views++
	begun := time.Now()
	v := m.state.View(w)
	m.locked += time.Since(begun)
	return v
}

func id(pid uint32) event.Process { return event.Process{PID: pid, Start: event.StartUnit} }

func (m *machine) begin(pid uint32, name string) {
	m.state.Apply(&record.Process{Process: id(pid), Target: true, Name: name, FromStart: true})
}

// alloc allocates at a function of a program's own file.
func (m *machine) alloc(pid uint32, function string, size uint64) {
	m.next += 1 << 32
	stack := uint64(pid)<<32 + uint64(len(function)) + uint64(function[0])<<8
	m.state.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Time: uint64(m.at), Proc: id(pid), TID: pid, API: 1, Stack: stack, Addr: m.next, Size: size})
	place := func(n uint64, path, function string, line int) *record.Place {
		at := 0x1000*n + stack<<20
		return record.NewPlace(at, at, &snapshot.Location{Address: at, Mapping: &snapshot.Mapping{Start: at, Limit: at + 1, Path: path}, Lines: []snapshot.Line{{Function: function, File: path, Line: line}}}, nil)
	}
	m.state.Apply(&record.Stack{ID: stack, Process: id(pid), Frames: []*record.Place{
		place(1, "/usr/lib/libtorch_cuda.so", "at::empty", 0), place(2, "/home/me/train.cc", function, 41), place(3, "/home/me/train.cc", "main", 7)}})
}

// passes lets an interval pass.
func (m *machine) passes(s *Search) {
	m.at += 10 * time.Second
	m.state.Apply(&record.Moment{Time: uint64(m.at), Drained: true})
	s.Look(s.Observe())
}

func TestSearch(t *testing.T) {
	m := newMachine()
	s := New(m)
	m.begin(7, "train")
	m.begin(8, "eval")
	m.alloc(7, "weights", 1000*mib)
	m.alloc(8, "weights", 1000*mib)
	for range 12 {
		m.passes(s)
	}
	if got := s.Found(); len(got) != 0 || m.views != 0 {
		t.Errorf("%d views, found %+v", m.views, got)
	}
	for range 6 {
		m.alloc(7, "leaks", 4*mib)
		m.passes(s)
	}
	got := s.Found()
	if len(got) != 1 {
		t.Fatalf("found %+v", got)
	}
	l := got[0]
	if l.PID != 7 || l.Process != "train" || l.Growth != 24*mib || l.Held != 24*mib || l.Over != time.Minute || !l.Now || l.Starting || l.Line != "leaks train.cc:41" {
		t.Errorf("%+v", l)
	}
	if want := []string{"cuMemAlloc_v2", "at::empty /usr/lib/libtorch_cuda.so", "leaks /home/me/train.cc:41", "main /home/me/train.cc:7"}; !slices.Equal(l.Frames, want) {
		t.Errorf("frames are %q, want %q", l.Frames, want)
	}
	if !strings.Contains(l.Brief, "leaks train.cc:41") {
		t.Errorf("%q", l.Brief)
	}
	// A leak that pauses is no longer one of now, and one that comes back is the same.
	first := l.First
	for range 4 {
		m.passes(s)
	}
	if l = s.Found()[0]; l.Now || !l.Last.After(first) || !l.First.Equal(first) {
		t.Errorf("%+v", l)
	}
	m.alloc(8, "other", mib)
	for range 12 {
		m.alloc(7, "leaks", 4*mib)
		m.alloc(8, "other", mib)
		m.passes(s)
	}
	if got := s.Found(); len(got) != 2 || got[0].PID != 7 || !got[0].Now || !got[0].First.Equal(first) || got[1].PID != 8 {
		t.Errorf("found %+v", got)
	}
}

// Weights that come slowly, from one stack, are found as a leak is, and said to be of a start.
// All memory that leaks evenly is one after ten minutes.
func TestStarting(t *testing.T) {
	m := newMachine()
	s := New(m)
	m.begin(7, "train")
	for minute := range 12 {
		for range 6 {
			m.alloc(7, "loads", 100*mib)
			m.passes(s)
		}
		got := s.Found()
		if len(got) != 1 || got[0].Starting != (minute < 10) {
			t.Fatalf("in minute %d: %+v", minute, got)
		}
	}
	for range 4 {
		m.passes(s)
	}
	if got := s.Found(); got[0].Now {
		t.Errorf("found %+v", got)
	}
}

// Real programs start on NVIDIA H200s, in intervals of which a start has 6, 12 and 30. No
// stack of theirs is a leak, unless it is said to be of a start.
func TestRealStarts(t *testing.T) {
	for _, name := range []string{"accelerate", "fsdp", "jax", "nccl", "pools", "torch_native", "allocator/bert", "allocator/peft_8"} {
		path := "../../../test/recordings/" + name + ".gmt"
		end, err := replay.Play(path, replay.Options{At: replay.End})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []time.Duration{6, 12, 30} {
			m := &machine{}
			s := New(m)
			interval := end.Time().Sub(end.Start()) / n
			s.detector = leak.New(leak.Options{Interval: interval})
			var next time.Time
			looks, found := 0, 0
			look := func(st *state.State) {
				if next.IsZero() {
					next = st.Start().Add(interval)
				}
				if now := st.Time(); now.Before(next) {
					return
				}
				next = st.Time().Add(interval)
				m.state = st
				looks++
				s.Look(s.Observe())
				for _, l := range s.Found() {
					if found++; !l.Starting {
						t.Errorf("%s in %d intervals: %+v", name, n, l)
					}
				}
			}
			if _, err := replay.Play(path, replay.Options{At: replay.End, Moment: look}); err != nil {
				t.Fatal(err)
			}
			if looks < int(n)/2 {
				t.Errorf("%s: %d looks of %d", name, looks, n)
			}
			t.Logf("%s in %d intervals: %d stacks of a start", name, n, found)
		}
	}
}

// What is kept is bounded.
func TestFoundIsBounded(t *testing.T) {
	m := newMachine()
	s := New(m)
	for pid := range uint32(400) {
		m.begin(100+pid, fmt.Sprintf("\x1b[31m%d", pid))
	}
	for n := range 30 {
		for pid := range uint32(400) {
			if (n < 15) == (pid < 200) {
				m.alloc(100+pid, "leaks", mib)
			}
		}
		m.passes(s)
	}
	got := s.Found()
	if len(got) != maxLeaks || !got[0].Now || got[maxLeaks-1].Now || strings.Contains(got[0].Process, "\x1b") {
		t.Errorf("%d found: %+v", len(got), got[0])
	}
}

// BenchmarkObserve is the end of an interval with 10,000 stacks of 500 processes of which
// none grows, and BenchmarkLook what a stack that grows costs then.
func BenchmarkObserve(b *testing.B) {
	m, s := crowd(b)
	b.ReportAllocs()
	m.locked = 0
	for b.Loop() {
		m.at += 10 * time.Second
		s.Observe()
	}
	b.ReportMetric(float64(m.locked)/float64(b.N), "locked-ns/op")
}

func BenchmarkLook(b *testing.B) {
	m, s := crowd(b)
	for range 10 {
		m.alloc(7, "leaks", mib)
		m.passes(s)
	}
	growing := s.Observe()
	if len(growing) != 1 {
		b.Fatal(growing)
	}
	b.ReportAllocs()
	m.locked = 0
	for b.Loop() {
		s.Look(growing)
	}
	b.ReportMetric(float64(m.locked)/float64(b.N), "locked-ns/op")
}

func crowd(b *testing.B) (*machine, *Search) {
	b.Helper()
	m := &machine{state: state.New(), next: 1 << 40, at: 2 * time.Hour}
	recordtest.Crowd(500, 2000, 20, m.state.Apply)
	m.begin(7, "train")
	m.alloc(7, "weights", 1000*mib)
	s := New(m)
	m.passes(s)
	return m, s
}
