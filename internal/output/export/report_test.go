package export

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// saved returns s as it comes back from a file.
func saved(t testing.TB, s *snapshot.Snapshot) *snapshot.Snapshot {
	t.Helper()
	var b bytes.Buffer
	if err := pprof.Write(&b, s); err != nil {
		t.Fatal(err)
	}
	back, err := pprof.Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	return back
}

func report(t testing.TB, s *snapshot.Snapshot, o Options) string {
	t.Helper()
	var b strings.Builder
	if err := Report(&b, saved(t, s), o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func diff(t testing.TB, a, b *snapshot.Snapshot, o Options) string {
	t.Helper()
	var out strings.Builder
	if err := Diff(&out, Side{saved(t, a), "a"}, Side{saved(t, b), "b"}, o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// later is Training after a while, in another run: the same stacks at other
// addresses and another pid.
func later() *snapshot.Snapshot {
	s := snapshottest.Training()
	for _, m := range s.Mappings {
		m.Start += 1 << 32
		m.Limit += 1 << 32
	}
	for i := range s.Samples {
		s.Samples[i].PID = 4712
		for _, l := range s.Samples[i].Stack {
			if l.Address != 0 && l.Address < 1<<47 {
				l.Address |= 1 << 47
			}
		}
	}
	s.Processes[0].PID = 4712
	s.Samples[0].InuseBytes += 40 << 20
	s.Samples[0].InuseObjects += 2
	s.Samples[0].AllocBytes += 60 << 20
	s.Samples[0].AllocObjects += 3
	s.Samples[1].InuseBytes, s.Samples[1].InuseObjects = 0, 0
	s.Samples[2].PeakBytes = 8 << 20
	return s
}

func TestReport(t *testing.T) {
	for name, s := range map[string]*snapshot.Snapshot{
		"training":      snapshottest.Training(),
		"two_processes": snapshottest.TwoProcesses(),
		"hostile":       snapshottest.Hostile(),
		"empty":         {},
	} {
		snapshottest.Golden(t, "report/"+name+".txt", []byte(report(t, s, Options{})))
	}
	snapshottest.Golden(t, "report/top1_narrow.txt", []byte(report(t, snapshottest.Training(), Options{Top: 1, Width: 50})))
}

func TestDiff(t *testing.T) {
	before := snapshottest.Training
	snapshottest.Golden(t, "diff/inuse.txt", []byte(diff(t, before(), later(), Options{})))
	snapshottest.Golden(t, "diff/inuse_back.txt", []byte(diff(t, later(), before(), Options{Top: 1})))
	snapshottest.Golden(t, "diff/other_program.txt", []byte(diff(t, before(), snapshottest.TwoProcesses(), Options{Top: -1})))
}

// TestDiffOfDriver: what the driver took for itself grows too, and remainders shrink.
func TestDiffOfDriver(t *testing.T) {
	grown := snapshottest.Driver()
	for i := range grown.Samples {
		switch s := &grown.Samples[i]; {
		case s.Kind == "stream" && s.InuseObjects == 4:
			s.InuseObjects, s.InuseBytes = 36, 72<<20
		case s.Kind == "local_memory":
			s.InuseObjects, s.InuseBytes = 1, 90<<20
		case s.Stack[0].Lines[0].Function == "[allocated before attach]":
			s.InuseBytes -= 100 << 20
		case s.Kind == "context" && s.GPU == "1":
			s.InuseObjects, s.InuseBytes = 0, 0
		}
	}
	snapshottest.Golden(t, "diff/driver.txt", []byte(diff(t, snapshottest.Driver(), grown, Options{Top: 2})))
}

// What a tensor is for may be told otherwise later: it stays one stack.
func TestDiffOfCategories(t *testing.T) {
	at := func(category string, bytes int64) *snapshot.Snapshot {
		return &snapshot.Snapshot{Samples: []snapshot.Sample{{
			Labels: snapshot.Labels{Kind: "tensor", Category: category, PID: 7}, Values: snapshot.Values{InuseBytes: bytes, InuseObjects: 1},
		}}}
	}
	by, rows := changedStacks(at("gradient", 5), at("temporary", 8))
	if len(rows) != 1 || rows[0].change() != 3 || rows[0].values[by.index("category")] != "temporary" {
		t.Errorf("%d rows, first %+v", len(rows), rows[0])
	}
}

func TestDiffOfEqualProfiles(t *testing.T) {
	if out := diff(t, snapshottest.Training(), snapshottest.Training(), Options{}); !strings.Contains(out, "No stack changed") {
		t.Errorf("got:\n%s", out)
	}
}

func TestReportWriteErrors(t *testing.T) {
	full := errors.New("disk full")
	s := snapshottest.Training()
	if err := Report(limitedWriter{full}, s, Options{}); !errors.Is(err, full) {
		t.Errorf("Report: %v", err)
	}
	if err := Diff(limitedWriter{full}, Side{Snapshot: s}, Side{Snapshot: s}, Options{}); !errors.Is(err, full) {
		t.Errorf("Diff: %v", err)
	}
}

// FuzzRead: whatever is read can be reported and compared, and nothing of it
// reaches the terminal unescaped.
func FuzzRead(f *testing.F) {
	for _, s := range []*snapshot.Snapshot{snapshottest.Training(), snapshottest.Driver(), snapshottest.Hostile(), {}} {
		p, err := pprof.Profile(s)
		if err != nil {
			f.Fatal(err)
		}
		var b bytes.Buffer
		if err := p.WriteUncompressed(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := pprof.Read(bytes.NewReader(data))
		if err != nil {
			return
		}
		var out strings.Builder
		if err := Report(&out, s, Options{}); err != nil {
			t.Error(err)
		}
		most := slices.DeleteFunc(allColumns(), func(c column) bool { return c.parts == &ofFreers }) // parts are of one column
		if err := Report(&out, s, Options{By: most, Top: -1}); err != nil {
			t.Error(err)
		}
		other := *s
		other.Meta.Start = other.Meta.Start.Add(1)
		if err := Diff(&out, Side{Snapshot: s}, Side{Snapshot: &other}, Options{}); err != nil {
			t.Error(err)
		}
		if err := Ranks(&out, append(Split(s), Side{Snapshot: s}), "", Options{}); err != nil {
			t.Error(err)
		}
		if strings.ContainsFunc(out.String(), func(r rune) bool { return r != '\n' && unicode.IsControl(r) }) {
			t.Errorf("control characters in %q", out.String())
		}
	})
}
