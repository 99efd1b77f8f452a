package push

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

func collecting(w *world, o Options) (*collector, *loss.Set) {
	set := loss.New(causes)
	o.Source = w
	return newCollector(o, set), set
}

func collected(c *collector) []*process { return slices.Collect(c.profiles) }

// What was allocated is that of the interval, what is in use that of its end, and the
// intervals follow each other.
func TestIntervals(t *testing.T) {
	w := newWorld()
	c, set := collecting(w, Options{})
	a := w.start(7, "train")
	first := w.alloc(a, 1000)
	w.pass(time.Minute)
	one := collected(c)
	w.alloc(a, 200)
	w.free(a, first)
	w.pass(time.Minute)
	two := collected(c)
	w.pass(time.Minute)
	again, _ := collecting(w, Options{}) // as when the configuration is read again
	three := collected(again)
	for i, want := range []map[string]int64{
		{"alloc_space": 1000, "alloc_objects": 1, "inuse_space": 1000, "inuse_objects": 1, "peak_space": 1000},
		{"alloc_space": 200, "alloc_objects": 1, "inuse_space": 200, "inuse_objects": 1, "peak_space": 1200},
		{"alloc_space": 0, "alloc_objects": 0, "inuse_space": 200, "inuse_objects": 1, "peak_space": 1200},
	} {
		all := [][]*process{one, two, three}[i]
		if len(all) != 1 {
			t.Fatalf("interval %d: %d profiles", i, len(all))
		}
		got := sums(all[0])
		for name, n := range want {
			if got[name] != n {
				t.Errorf("interval %d: %s is %d, want %d", i, name, got[name], n)
			}
		}
		begin := worldBegan.Add(time.Duration(i) * time.Minute)
		if d := all[0].begin.Sub(begin); d < 0 || d > time.Second {
			t.Errorf("interval %d begins at %v", i, all[0].begin)
		}
		if d := all[0].end.Sub(begin.Add(time.Minute)); d < 0 || d > time.Second {
			t.Errorf("interval %d ends at %v", i, all[0].end)
		}
	}
	if one[0].id == two[0].id || one[0].id == (identity{}) {
		t.Error("profiles have no identities of their own")
	}
	lossless(t, set.Counters())
}

// A process that ended has its last profile, up to its end, and no more. Another one with
// its PID begins from nothing, though both are of one interval.
func TestSamePID(t *testing.T) {
	w := newWorld()
	c, _ := collecting(w, Options{})
	a := w.start(7, "train")
	w.alloc(a, 1000)
	w.pass(time.Minute)
	collected(c)
	w.alloc(a, 30)
	w.pass(time.Second)
	w.exit(a)
	w.pass(time.Second)
	b := w.start(7, "other")
	w.alloc(b, 5)
	w.pass(time.Second)
	all := collected(c)
	if len(all) != 2 {
		t.Fatalf("%d profiles", len(all))
	}
	old, young := all[0], all[1]
	if old.label("process") != "train" {
		old, young = young, old
	}
	if got := sums(old); got["alloc_space"] != 30 || got["inuse_space"] != 0 || got["peak_space"] != 1030 {
		t.Errorf("the ended one %v", got)
	}
	if got := sums(young); got["alloc_space"] != 5 || got["inuse_space"] != 5 || young.label("process") != "other" {
		t.Errorf("the young one %v, %v", got, young.labels)
	}
	if !old.end.Before(young.end) || old.end.Sub(old.begin) > 1100*time.Millisecond {
		t.Errorf("the ended one from %v to %v, the young one to %v", old.begin, old.end, young.end)
	}
	w.pass(time.Minute)
	if all := collected(c); len(all) != 1 || all[0].label("process") != "other" {
		t.Errorf("%d profiles later", len(all))
	}
}

// A process that has no memory on a GPU has no profile.
func TestNothingHeld(t *testing.T) {
	w := newWorld()
	c, _ := collecting(w, Options{})
	w.start(7, "train")
	w.pass(time.Minute)
	if all := collected(c); len(all) != 0 {
		t.Errorf("%d profiles", len(all))
	}
}

// The labels are those of who a process belongs to, as far as that is known by then.
func TestLabelsOfProcess(t *testing.T) {
	w := newWorld()
	c, set := collecting(w, Options{Labels: func(who *snapshot.Who) []Label {
		return []Label{{"pod", who.Pod}, {"service_name", who.Service}, {"__", who.Job}}
	}})
	a := w.start(7, "train")
	w.alloc(a, 1)
	labels := func(service, pod string, cut uint64) {
		t.Helper()
		w.pass(time.Second)
		all := collected(c)
		if len(all) != 1 || all[0].label("service_name") != service || all[0].label("pod") != pod {
			t.Errorf("%v, want %q and %q", all, service, pod)
		}
		if n := set.Counters()[lossLabels].Value; n != cut {
			t.Errorf("%d labels cut, want %d", n, cut)
		}
	}
	labels("train", "", 0)
	w.apply(&record.Process{Process: a, Who: snapshot.Who{Pod: "p-0", Service: "llm"}})
	labels("llm", "p-0", 0)
	w.apply(&record.Process{Process: a, Who: snapshot.Who{Job: "12"}})
	w.exit(a)
	labels("llm", "p-0", 1)
}

func TestSeriesLabels(t *testing.T) {
	long := strings.Repeat("é", 1000)
	more := []Label{{"a-b.c", "1"}, {"9", "2"}, {"__name__", "x"}, {"pid", "1"}, {"a_b_c", "again"}, {"empty", ""}, {"", "nameless"},
		{"long", long}, {"evil", "\x1b[2J\n\xff"}, {strings.Repeat("n", 1000), "x"}, {"é", "x"}, {"_", "y"}}
	for i := range 100 {
		more = append(more, Label{"l" + strings.Repeat("x", i%50), "v"})
	}
	out, cut := SeriesLabels(more, "evil\n\x1b]0;name"+long, 7)
	if len(out) > maxLabels || cut == 0 {
		t.Errorf("%d labels, %d cut", len(out), cut)
	}
	seen := map[string]bool{}
	for i, l := range out {
		if seen[l.Name] || l.Value == "" || len(l.Value) > maxValue || len(l.Name) > maxName+1 || strings.HasPrefix(l.Name, "__") {
			t.Errorf("%q = %q", l.Name, l.Value)
		}
		if strings.ContainsAny(l.Value, "\n\x1b") || !utf8.ValidString(l.Value) || strings.Trim(l.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
			t.Errorf("%q = %q", l.Name, l.Value)
		}
		if i > 0 && out[i-1].Name >= l.Name {
			t.Errorf("%s is not in order", l.Name)
		}
		seen[l.Name] = true
	}
	for _, name := range []string{"pid", "process", "service_name", "a_b_c", "_9"} {
		if !seen[name] {
			t.Errorf("no %s", name)
		}
	}
	if out, cut := SeriesLabels(nil, "", 1); len(out) != 2 || out[1] != (Label{"service_name", "unknown"}) || cut != 0 {
		t.Errorf("%v", out)
	}
	if out, cut := SeriesLabels([]Label{{"service_name", "llm"}}, "", 1); len(out) != 2 || out[1] != (Label{"service_name", "llm"}) || cut != 0 {
		t.Errorf("%v, %d cut", out, cut)
	}
}
