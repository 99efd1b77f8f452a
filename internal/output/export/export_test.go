package export

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

var snapshots = map[string]func() *snapshot.Snapshot{
	"training":      snapshottest.Training,
	"two_processes": snapshottest.TwoProcesses,
	"hostile":       snapshottest.Hostile,
	"tensors":       snapshottest.Tensors,
	"empty":         func() *snapshot.Snapshot { return &snapshot.Snapshot{} },
}

type writeFunc = func(io.Writer, *snapshot.Snapshot, Options) error

func write(t testing.TB, f writeFunc, s *snapshot.Snapshot, o Options) string {
	t.Helper()
	var b bytes.Buffer
	if err := f(&b, s, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	for _, f := range Builtin() {
		for name, s := range snapshots {
			t.Run(f.Name+"/"+name, func(t *testing.T) {
				snapshottest.Golden(t, name+f.Extensions[0], []byte(write(t, f.Write, s(), Options{})))
			})
		}
	}
	t.Run("table/narrow", func(t *testing.T) {
		snapshottest.Golden(t, "training.narrow.txt", []byte(write(t, Table, snapshottest.Training(), Options{Width: 40, Top: 2})))
	})
}

// TestSafe: no format lets a terminal escape or invalid UTF-8 through.
func TestSafe(t *testing.T) {
	for _, f := range Builtin() {
		out := write(t, f.Write, snapshottest.Hostile(), Options{})
		if !utf8.ValidString(out) {
			t.Errorf("%s is not UTF-8", f.Name)
		}
		if i := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) }); i >= 0 {
			t.Errorf("%s has control character %q", f.Name, out[i])
		}
	}
}

func TestWriteErrors(t *testing.T) {
	full := errors.New("disk full")
	for _, f := range Builtin() {
		if err := f.Write(limitedWriter{full}, snapshottest.Training(), Options{}); !errors.Is(err, full) {
			t.Errorf("%s: got %v, want %v", f.Name, err, full)
		}
	}
	bad := &snapshot.Snapshot{Live: []snapshot.Allocation{{Sample: 0}}}
	for _, f := range []writeFunc{CSV, JSON} {
		if err := f(io.Discard, bad, Options{}); err == nil {
			t.Error("a live allocation of no sample is no error")
		}
	}
}

type limitedWriter struct{ err error }

func (w limitedWriter) Write([]byte) (int, error) { return 0, w.err }

// TestFoldedTotals: the lines add up to what the snapshot has in use.
func TestFoldedTotals(t *testing.T) {
	for name, s := range snapshots {
		var want, got int64
		snap := s()
		for i := range snap.Samples {
			want += snap.Samples[i].InuseBytes
		}
		for line := range strings.Lines(write(t, Folded, snap, Options{})) {
			var v int64
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &v); err != nil {
				t.Errorf("%s: %q: %v", name, line, err)
			}
			got += v
		}
		if got != want {
			t.Errorf("%s: it adds up to %d, want %d", name, got, want)
		}
	}
}

// What a sample's estimates are too much by is in no flame graph.
func TestFoldedBelowZero(t *testing.T) {
	s := snapshottest.Training()
	s.Samples[0].InuseBytes = -5
	var want int64
	for i := range s.Samples {
		want += max(s.Samples[i].InuseBytes, 0)
	}
	var got int64
	for line := range strings.Lines(write(t, Folded, s, Options{})) {
		v, err := strconv.ParseInt(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 10, 64)
		if err != nil || v <= 0 {
			t.Errorf("%q: %v", line, err)
		}
		got += v
	}
	if got != want {
		t.Errorf("it adds up to %d, want %d", got, want)
	}
}

func TestCSVReadsBack(t *testing.T) {
	s := snapshottest.Training()
	rows, err := csv.NewReader(strings.NewReader(write(t, CSV, s, Options{}))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 1+len(s.Live) {
		t.Fatalf("%d rows, want a header and %d", len(rows), len(s.Live))
	}
	for i, a := range s.Live {
		row := rows[i+1]
		when, err := time.Parse(time.RFC3339Nano, row[0])
		if err != nil || !when.Equal(a.Time) {
			t.Errorf("row %d: time %s (%v), want %v", i, row[0], err, a.Time)
		}
		name := func(n uint64) string {
			if n == 0 {
				return ""
			}
			return fmt.Sprintf("0x%x", n)
		}
		own := row[len(row)-4:]
		if want := []string{"4711", "python3", name(a.Address), name(a.Handle), fmt.Sprint(a.Size)}; !slices.Equal([]string{row[1], row[2], own[0], own[1], own[2]}, want) {
			t.Errorf("row %d: %q, want %q", i, row, want)
		}
	}
}

// TestJSONLabels: whatever a label holds, a reader gets it back.
func TestJSONLabels(t *testing.T) {
	for _, text := range []string{"a", `"`, `\`, `\u0041`, "<&>", "\x00", "\x7f", "\n", "é", "\u2028", "\u202e", "\U000e0041"} {
		s := &snapshot.Snapshot{Samples: []snapshot.Sample{{Labels: snapshot.Labels{Owner: text, PID: 7}}}}
		out := write(t, JSON, s, Options{})
		var got struct {
			Samples []struct{ Labels map[string]any }
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%q: %v in\n%s", text, err, out)
		}
		if d := cmp.Diff(map[string]any{"owner": text, "pid": 7.}, got.Samples[0].Labels); d != "" {
			t.Error(d)
		}
		if strings.ContainsFunc(out, func(r rune) bool { return r != '\n' && render.Unsafe(r) }) {
			t.Errorf("%q is in the output as it is", text)
		}
	}
}

// TestJSONReadsBack rebuilds the samples from the JSON.
func TestJSONReadsBack(t *testing.T) {
	for name, build := range snapshots {
		s := build()
		var got struct {
			SchemaVersion int `json:"schema_version"`
			Locations     []jsonLocation
			Mappings      []jsonMapping
			Samples       []struct {
				Stack  []int
				Labels map[string]any
				Values map[string]int64
			}
			Processes  []snapshot.Process
			Accounts   []snapshot.Account
			Allocators []snapshot.Allocator
			Live       []struct {
				Sample  int
				Address string
				Handle  string
				Size    int64 `json:"size_bytes"`
				Time    time.Time
			}
			Loss  []loss.Counter
			Notes []string
			Meta  snapshot.Meta
		}
		d := json.NewDecoder(strings.NewReader(write(t, JSON, s, Options{})))
		d.DisallowUnknownFields()
		if err := d.Decode(&got); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.SchemaVersion != JSONVersion || len(got.Samples) != len(s.Samples) || len(got.Live) != len(s.Live) ||
			len(got.Loss) != len(s.Loss) || len(got.Processes) != len(s.Processes) || len(got.Accounts) != len(s.Accounts) || len(got.Allocators) != len(s.Allocators) || len(got.Notes) != len(s.Notes) {
			t.Errorf("%s: %+v", name, got)
			continue
		}
		if want := strings.ToValidUTF8(s.Meta.CommandLine, "\ufffd"); got.Meta.CommandLine != want {
			t.Errorf("%s: command line %q, want %q", name, got.Meta.CommandLine, want)
		}
		for i, sample := range s.Samples {
			for j := range snapshot.AllValues {
				v := &snapshot.AllValues[j]
				if n, ok := got.Samples[i].Values[v.Key]; !ok || n != *v.Of(&sample.Values) {
					t.Errorf("%s: sample %d: %s is %d, %t", name, i, v.Key, n, ok)
				}
			}
			for j := range snapshot.AllLabels {
				l := &snapshot.AllLabels[j]
				var want any
				if text := l.Get(&sample.Labels); l.Numeric() {
					want = float64(sample.PID)
				} else if text != "" {
					want = strings.ToValidUTF8(text, "\ufffd")
				}
				if d := cmp.Diff(want, got.Samples[i].Labels[l.Name]); d != "" {
					t.Errorf("%s: sample %d: %s: %s", name, i, l.Name, d)
				}
			}
			if len(got.Samples[i].Stack) != len(sample.Stack) {
				t.Fatalf("%s: sample %d has %d frames", name, i, len(got.Samples[i].Stack))
			}
			for j, l := range sample.Stack {
				loc := got.Locations[got.Samples[i].Stack[j]]
				if want := strings.ToValidUTF8(l.Lines[0].Function, "\ufffd"); loc.Lines[0].Function != want {
					t.Errorf("%s: sample %d frame %d is %q, want %q", name, i, j, loc.Lines[0].Function, want)
				}
				if (l.Mapping == nil) != (loc.Mapping == nil) || l.Mapping != nil && uint64(got.Mappings[*loc.Mapping].Start) != l.Mapping.Start {
					t.Errorf("%s: sample %d frame %d has another mapping", name, i, j)
				}
			}
		}
		for i, a := range s.Live {
			if g := got.Live[i]; g.Sample != a.Sample || g.Address != hexCell(a.Address) || g.Handle != hexCell(a.Handle) || g.Size != a.Size || !g.Time.Equal(a.Time) {
				t.Errorf("%s: live %d is %+v, want %+v", name, i, g, a)
			}
		}
	}
}

func TestFormats(t *testing.T) {
	pprof := Format{Name: "pprof", Extensions: []string{".pb.gz", ".pprof"}}
	formats := append(Formats{pprof}, Builtin()...)
	for path, want := range map[string]string{
		"out.pb.gz": "pprof", "dir.csv/out.pprof": "pprof", "a.folded": "folded", "a.CSV": "csv",
		"/tmp/x.y.json": "json", "x.txt": "table", "x": "pprof", ".json": "pprof", "-": "pprof", "json": "pprof", "dir.x/y": "pprof",
		"x.gz": "", "x.pb": "", "x.unknown": "", "x.json.old": "", "x.": "",
	} {
		f, err := formats.ByExtension(path)
		if f.Name != want || (err == nil) != (want != "") {
			t.Errorf("ByExtension(%q) = %q, %v, want %q", path, f.Name, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), ".pb.gz, .pprof, .folded, .collapsed, .csv, .json, .txt") {
			t.Errorf("ByExtension(%q): %v does not list the extensions", path, err)
		}
	}
	for path, want := range map[string]string{
		"out.pb.gz": "out.000012.pb.gz", "/a.b/out": "/a.b/out.000012", "x.y.csv": "x.y.000012.csv",
		"x.dat": "x.000012.dat", ".pb.gz": ".pb.000012.gz", ".hidden": ".hidden.000012", "OUT.PB.GZ": "OUT.000012.PB.GZ",
	} {
		if got := formats.Numbered(path, 12); got != want {
			t.Errorf("Numbered(%q) = %q, want %q", path, got, want)
		}
	}
	for _, name := range formats.Names() {
		if f, err := formats.ByName(name); err != nil || f.Name != name {
			t.Errorf("ByName(%q) = %q, %v", name, f.Name, err)
		}
	}
	if _, err := formats.ByName("xml"); err == nil || !strings.Contains(err.Error(), "pprof, folded, csv, json, table") {
		t.Errorf("ByName(xml): %v does not list the formats", err)
	}
}

// million has a million live allocations over ten thousand stacks.
func million() *snapshot.Snapshot {
	one := snapshottest.Training()
	s := &snapshot.Snapshot{Mappings: one.Mappings}
	for i := range 10_000 {
		sample := one.Samples[0]
		sample.Stack = append(slices.Clone(sample.Stack), snapshottest.Frame(fmt.Sprint("f", i), "", 0))
		s.Samples = append(s.Samples, sample)
	}
	for i := range 1_000_000 {
		s.Live = append(s.Live, snapshot.Allocation{Sample: i % 10_000, Address: uint64(i) << 9, Size: math.MaxInt32, Time: snapshottest.Start})
	}
	return s
}

// BenchmarkMillionLive: no format makes a second copy of the rows.
func BenchmarkMillionLive(b *testing.B) {
	s := million()
	for _, f := range Builtin() {
		b.Run(f.Name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := f.Write(io.Discard, s, Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
