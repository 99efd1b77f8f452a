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
	c, _ := collecting(w, Options{Node: "node7"})
	a := w.start(7, "train")
	w.alloc(a, 1)
	labels := func(want ...Label) {
		t.Helper()
		w.pass(time.Second)
		if all := collected(c); len(all) != 1 || !slices.Equal(all[0].labels, want) {
			t.Errorf("%v, want %v", all, want)
		}
	}
	node, pid, process := Label{"node", "node7"}, Label{"pid", "7"}, Label{"process", "train"}
	labels(node, pid, process, Label{"service_name", "train"})
	w.apply(&record.Process{Process: a, Who: snapshot.Who{Pod: "p-0", Service: "llm"}})
	labels(node, pid, Label{"pod", "p-0"}, process, Label{"service_name", "llm"})
	w.apply(&record.Process{Process: a, Who: snapshot.Who{ContainerID: "main"}})
	w.exit(a)
	labels(Label{"container_id", "main"}, node, pid, Label{"pod", "p-0"}, process, Label{"service_name", "llm"})
}

// Labels are in order, and their values are bounded and print.
func TestSeriesLabels(t *testing.T) {
	var w snapshot.Who
	for _, field := range w.Fields() {
		*field = "\x1b[2J\n\xff" + strings.Repeat("é", 1000)
	}
	all := SeriesLabels("node7", &w, "evil\n\x1b]0;name", 7)
	if len(all) != 11 {
		t.Errorf("%d labels", len(all))
	}
	for i, l := range all {
		if l.Value == "" || len(l.Value) > maxValue || strings.ContainsAny(l.Value, "\n\x1b") || !utf8.ValidString(l.Value) {
			t.Errorf("%q = %q", l.Name, l.Value)
		}
		if i > 0 && all[i-1].Name >= l.Name {
			t.Errorf("%s is not in order", l.Name)
		}
	}
	if all := SeriesLabels("", &snapshot.Who{}, "", 1); !slices.Equal(all, []Label{{"pid", "1"}, {"service_name", "unknown"}}) {
		t.Errorf("%v", all)
	}
}
