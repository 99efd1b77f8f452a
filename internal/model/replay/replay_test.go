package replay

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// played returns what a recording shows.
func played(t *testing.T, opts Options, records ...record.Record) *snapshot.Snapshot {
	t.Helper()
	s, err := Play(recordtest.File(t, records...), opts)
	if err != nil {
		t.Fatal(err)
	}
	return s.View(state.Want{Live: true, Driver: true}).Snapshot()
}

// A recording whose lacks what came before begins with a Cut, after which it says
// what is traced: that holds.
func TestCutAtTheBeginning(t *testing.T) {
	for _, after := range []time.Duration{2 * time.Second, End} {
		snap := played(t, Options{At: after}, &record.Cut{Time: at(time.Second)}, traceOf(), &record.Process{Process: proc, Target: true},
			alloc(time.Second, 16), moment(2*time.Second), alloc(3*time.Second, 32), moment(4*time.Second))
		if snap.Meta.Version != "1" || snap.Samples[0].API != "cuMemAlloc_v2" {
			t.Errorf("%+v, %+v", snap.Meta, snap.Samples[0].Labels)
		}
		if !slices.ContainsFunc(snap.Notes, func(n string) bool { return strings.Contains(n, "lacks what came before") }) {
			t.Errorf("notes %q", snap.Notes)
		}
	}
}

// What the last report of a trace of every process showed is shown, whatever a
// source told after it.
func TestReportedAtTheEnd(t *testing.T) {
	all := traceOf(func(t *record.Trace) { t.All = true })
	exit := &event.Event{Op: event.OpExit, Time: at(2 * time.Second), Proc: proc}
	records := []record.Record{all, alloc(time.Second, 16), exit, moment(3 * time.Second), &record.Reported{}, &record.Loss{}}
	if snap := played(t, Options{At: End}, records...); len(snap.Processes) != 1 {
		t.Errorf("processes %+v", snap.Processes)
	}
	if snap := played(t, Options{At: End}, append(records, moment(4*time.Second))...); len(snap.Processes) != 0 {
		t.Errorf("processes %+v after the report", snap.Processes)
	}
}

// A moment that the recording does not have is an error that says which it has.
func TestNoMoment(t *testing.T) {
	whole := []record.Record{traceOf(), moment(10 * time.Millisecond), alloc(time.Second, 16), moment(2 * time.Second), alloc(3*time.Second, 32)}
	ring := append([]record.Record{&record.Cut{}}, whole...)
	for _, c := range []struct {
		name    string
		records []record.Record
		opts    Options
		says    string
	}{
		{"its beginning", whole, Options{}, ""},
		{"its end", whole, Options{At: 3 * time.Second}, ""},
		{"beyond its end", whole, Options{At: 3*time.Second + 1}, "it ends at 2023-11-14T22:13:24Z (3s)"},
		{"long after", whole, Options{At: time.Hour}, "it ends at"},
		{"before it", whole, Options{At: -1}, "it begins at 2023-11-14T22:13:21Z (0s)"},
		{"what was dropped", ring, Options{At: time.Millisecond}, "it begins at 2023-11-14T22:13:21.01Z (10ms)"},
		{"what was not dropped", ring, Options{At: 10 * time.Millisecond}, ""},
		{"no moments", whole[:1], Options{At: time.Second}, "it ends at"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := Play(recordtest.File(t, c.records...), c.opts)
			switch {
			case c.says == "" && err != nil:
				t.Error(err)
			case c.says == "":
				if snap := s.View(state.Want{}).Snapshot(); snap.Meta.Version != "1" || snap.Meta.Duration < 0 {
					t.Errorf("%+v", snap.Meta)
				}
			case !errors.Is(err, ErrNoMoment) || !strings.Contains(err.Error(), c.says):
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

// What a recording lacks is among what was lost.
func TestLossOfTheRecording(t *testing.T) {
	records := []record.Record{traceOf(), moment(time.Second), &record.Loss{Counters: []loss.Counter{{Name: "events_lost", Value: 3}, {Name: "records_not_recorded"}}}}
	for i := range 8 { // more than one block
		records = append(records, &record.Note{Text: strings.Repeat(string(rune('a'+i)), 60<<10)})
	}
	path := recordtest.File(t, records...)
	text := bytesOf(t, path)
	for name, c := range map[string]struct {
		text []byte
		want loss.Counter
	}{
		"whole":     {text, loss.Counter{Name: "recording_cut_short"}},
		"cut short": {text[:len(text)-1], loss.Counter{Name: "recording_cut_short", Value: 1}},
	} {
		if err := os.WriteFile(path, c.text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Play(path, Options{At: End})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]uint64{}
		for _, l := range s.View(state.Want{}).Snapshot().Loss {
			if _, twice := got[l.Name]; twice {
				t.Errorf("%s: %s comes twice", name, l.Name)
			}
			got[l.Name] = l.Value
		}
		if got["events_lost"] != 3 || got[c.want.Name] != c.want.Value {
			t.Errorf("%s: %v, want %+v", name, got, c.want)
		}
	}
}

// A stack that was told soon after the moment is that of an event before.
func TestStackAfterTheMoment(t *testing.T) {
	line := snapshot.Line{Function: "f"}
	stack := &record.Stack{ID: 1, Process: proc, Frames: []*record.Place{record.NewPlace(1, 0, &snapshot.Location{Lines: []snapshot.Line{line}}, nil)}}
	for name, after := range map[string][]record.Record{
		"before the next moment": {stack, moment(2 * time.Second)},
		"after the next moment":  {moment(2 * time.Second), stack},
	} {
		snap := played(t, Options{At: time.Second}, append([]record.Record{traceOf(), alloc(time.Second, 16), moment(time.Second)}, after...)...)
		if st := snap.Samples[0].Stack; len(st) != 2 || st[1].Lines[0] != line {
			t.Errorf("%s: %v", name, st)
		}
	}
}

// However many incidents there are, all come, in order, and few wait for their
// names.
func TestManyIncidents(t *testing.T) {
	var got []uint64
	p := &player{state: state.New(), opts: Options{At: End, OutOfMemory: func(in *state.Incident) {
		got = append(got, uint64(in.OutOfMemory(state.Want{}).Requested))
	}}}
	p.add(traceOf(func(t *record.Trace) { t.Incidents = 100 }))
	for i := range uint64(100) {
		e := alloc(time.Duration(i)*2*time.Second, 0)
		e.Result, e.Size = event.OutOfMemory, i
		p.add(e)
		p.add(moment(time.Duration(i)*2*time.Second + time.Second))
		p.add(&record.Loss{})
		p.add(moment(time.Duration(i)*2*time.Second + time.Second + 1))
		if len(p.incidents) > maxIncidents {
			t.Fatalf("%d incidents wait", len(p.incidents))
		}
	}
	p.reportIncidents(p.state.Incidents(true), 0)
	if len(got) != 100 || !slices.IsSorted(got) {
		t.Errorf("%d: %v", len(got), got)
	}
}
