package export

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshottest"
)

func by(t *testing.T, names ...string) By {
	t.Helper()
	out, err := ParseBy(names...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestReportBy(t *testing.T) {
	for name, s := range map[string]*snapshot.Snapshot{
		"driver":   snapshottest.Driver(),
		"training": snapshottest.Training(),
		"hostile":  snapshottest.Hostile(),
		"empty":    {},
	} {
		snapshottest.Golden(t, "report/by_cause."+name+".txt", []byte(report(t, s, Options{By: by(t, "cause")})))
	}
	// A recording has accounts too.
	var b strings.Builder
	if err := Report(&b, snapshottest.Driver(), Options{By: by(t, "cause"), Top: 1}); err != nil {
		t.Fatal(err)
	}
	snapshottest.Golden(t, "report/by_cause.accounts.txt", []byte(b.String()))
	for _, names := range [][]string{{"owner", "kind"}, {"gpu"}, {"process"}, {"process", "gpu"}, {"pid", "api"}} {
		snapshottest.Golden(t, "report/by_"+strings.Join(names, "_")+".txt", []byte(report(t, snapshottest.Driver(), Options{By: by(t, names...), Top: 1})))
	}
	full := errors.New("disk full")
	if err := Report(limitedWriter{full}, snapshottest.Driver(), Options{By: by(t, "cause")}); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
}

// By whatever samples are put together, nothing is left out and nothing counted
// twice.
func TestByAddsUp(t *testing.T) {
	s := snapshottest.Driver()
	want := map[string]int64{"": 0}
	for i := range s.Samples {
		x := By(nil).sectionOf(&s.Samples[i])
		want[x.class] += s.Samples[i].InuseBytes
	}
	for _, name := range ByNames() {
		got := map[string]int64{}
		for x, g := range by(t, name).sections(pointers(s.Samples)) {
			for _, group := range by(t, name).groups(g.samples) {
				got[x.class] += group.InuseBytes
			}
		}
		for class := range want {
			if got[class] != want[class] {
				t.Errorf("by %s: %d bytes of class %q, want %d", name, got[class], class, want[class])
			}
		}
	}
}

func TestEach(t *testing.T) {
	object := func(objects, bytes int64) *snapshot.Sample {
		return &snapshot.Sample{Values: snapshot.Values{InuseObjects: objects, InuseBytes: bytes}}
	}
	for _, c := range []struct {
		samples []*snapshot.Sample
		want    string
	}{
		{nil, ""},
		{[]*snapshot.Sample{object(0, 5)}, ""},
		{[]*snapshot.Sample{object(2, 8), object(1, 4)}, "4 B"},
		{[]*snapshot.Sample{object(2, 8), object(1, 4), object(0, 0)}, "4 B"},
		{[]*snapshot.Sample{object(2, 8), object(1, 5)}, "~4 B"},
		{[]*snapshot.Sample{object(2, 9)}, "~4 B"},
		{[]*snapshot.Sample{object(1, 2), object(1, 6)}, "~4 B"},
		{[]*snapshot.Sample{object(2, 8), object(0, 100)}, "4 B"},
		{[]*snapshot.Sample{object(-1, 2)}, ""},
		{[]*snapshot.Sample{object(1, math.MinInt64)}, "-8.0 EiB"},
	} {
		g := &gathered{}
		for _, s := range c.samples {
			g.add(s)
		}
		if got := g.each(); got != c.want {
			t.Errorf("%+v: %q, want %q", g.Values, got, c.want)
		}
	}
}

func TestParseBy(t *testing.T) {
	for names, want := range map[string]string{
		"cause": "cause api", "api cause": "api cause", "cause api": "cause api", "process": "process pid",
		"gpu": "gpu", "owner kind owner": "owner kind", "runtime": "runtime", "pid process": "pid process",
	} {
		var got []string
		for _, c := range by(t, strings.Fields(names)...) {
			got = append(got, c.name)
		}
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: %q, want %q", names, got, want)
		}
	}
	if got, err := ParseBy(); got != nil || err != nil {
		t.Errorf("nothing: %v, %v", got, err)
	}
	for _, name := range []string{"", "Cause", "stack", "cause,api"} {
		if _, err := ParseBy("gpu", name); err == nil || !strings.Contains(err.Error(), "cause, kind, api") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
