package export

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
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
	// A recording has accounts too, which are of what is held.
	for name, o := range map[string]Options{"size": {By: by(t, "size")}, "cause": {By: by(t, "cause"), Turnover: true}} {
		var page strings.Builder
		if err := Report(&page, snapshottest.Driver(), o); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(page.String(), "as nvidia-smi says"); got != (name == "size") {
			t.Errorf("by %s, the driver's figure is there: %t\n%s", name, got, page.String())
		}
	}
	// Top bounds rows and the stacks under each.
	if page := report(t, snapshottest.Tensors(), Options{By: by(t, "category"), Top: 2}); strings.Count(page, "%  ") != 2 || !strings.Contains(page, " more, with ") || !strings.Contains(page, "  under 1 more\n") {
		t.Errorf("two rows of two stacks:\n%s", page)
	}
	var b strings.Builder
	if err := Report(&b, snapshottest.Driver(), Options{By: by(t, "cause")}); err != nil {
		t.Fatal(err)
	}
	snapshottest.Golden(t, "report/by_cause.accounts.txt", []byte(b.String()))
	for _, names := range [][]string{{"owner", "kind"}, {"gpu"}, {"process"}, {"process", "gpu"}, {"pid", "api"}} {
		snapshottest.Golden(t, "report/by_"+strings.Join(names, "_")+".txt", []byte(report(t, snapshottest.Driver(), Options{By: by(t, names...)})))
	}
	// What came and went, with what was freed again and holds nothing.
	snapshottest.Golden(t, "report/turnover_category.txt", []byte(report(t, snapshottest.Tensors(), Options{By: by(t, "category"), Turnover: true})))
	snapshottest.Golden(t, "report/turnover_module.txt", []byte(report(t, snapshottest.Tensors(), Options{By: by(t, "module"), Turnover: true})))
	snapshottest.Golden(t, "report/turnover_cause.txt", []byte(report(t, snapshottest.Driver(), Options{By: by(t, "cause"), Turnover: true})))
	full := errors.New("disk full")
	if err := Report(limitedWriter{full}, snapshottest.Driver(), Options{By: by(t, "cause")}); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
}

// What is nested has a row for each value, with the total of what is inside.
func TestReportByNested(t *testing.T) {
	for _, names := range [][]string{{"operator"}, {"module"}, {"category"}, {"function"}, {"line"}, {"library-line"}, {"category", "operator"}} {
		name := "report/by_" + strings.Join(names, "_")
		snapshottest.Golden(t, name+".txt", []byte(report(t, snapshottest.Tensors(), Options{By: by(t, names...)})))
		snapshottest.Golden(t, name+".csv", []byte(write(t, reportCSV, snapshottest.Tensors(), Options{By: by(t, names...)})))
	}
	snapshottest.Golden(t, "report/by_process_gpu.csv", []byte(write(t, reportCSV, snapshottest.Driver(), Options{By: by(t, "process", "gpu")})))
	snapshottest.Golden(t, "report/by_line.hostile.csv", []byte(write(t, reportCSV, snapshottest.Hostile(), Options{By: by(t, "line", "api")})))
	full := errors.New("disk full")
	if err := ReportRows(snapshottest.Driver(), Options{By: by(t, "line")}).CSV(limitedWriter{full}); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
}

// Rows by module say how many modules they have, where paths to these are known.
func TestModulesCounted(t *testing.T) {
	s := snapshottest.Tensors()
	page := func() string {
		var b strings.Builder
		if err := Report(&b, s, Options{By: by(t, "module")}); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	const advice, column = "trace with --holders 30s", "  MODULES  "
	if text := page(); strings.Contains(text, column) || !strings.Contains(text, advice) {
		t.Errorf("without paths: %s", text)
	}
	var at int
	for i := range s.Samples {
		if s.Samples[i].Module == "Net/Block" {
			at++
			s.Samples[i].ModulePath = fmt.Sprintf("net.h[%d]", at)
		}
	}
	g := &group{samples: pointers(s.Samples)}
	if text := page(); at == 0 || g.modules() != int64(at) || strings.Contains(text, advice) || !strings.Contains(text, column) {
		t.Errorf("with paths to %d: %d modules, %s", at, g.modules(), text)
	}
}

// The total of a row is what samples have that are it, or are inside of it, once each.
func TestNestedTotals(t *testing.T) {
	s := snapshottest.Tensors()
	// What calls itself is inside of itself once.
	again := snapshottest.Frame("walk", "/home/me/tree.py", 3)
	s.Samples = append(s.Samples, snapshot.Sample{Stack: []*snapshot.Location{again, again, again}, Labels: s.Samples[0].Labels, Values: snapshot.Values{InuseBytes: 5}})
	for _, module := range []string{"main() in t.py:8: stack [0].h[7]", "model.h[7].mlp", "model.h[7].mlp", "model.h[8]"} {
		s.Samples = append(s.Samples, snapshot.Sample{Labels: snapshot.Labels{Kind: "tensor", ModulePath: module}, Values: snapshot.Values{InuseBytes: 10}})
	}
	for _, c := range []struct {
		by          string
		row         string
		self, total int64
	}{
		{"operator", "aten::linear", 0, 6 * 8 << 20},
		{"operator", "aten::addmm", 6 * 8 << 20, 6 * 8 << 20},
		{"operator", "AddmmBackward0", 0, 12 * 4 << 20},
		{"operator", "aten::to", 5, 50<<20 + 5}, // without frames of its own, by its label
		{"module", "Net", 0, 6 * 12 << 20},
		{"module", "Net/Block", 6 << 20, 6 * 12 << 20},
		{"module", "Net/Block/LayerNorm", 18 << 20, 18 << 20},
		{"module_path", "model", 0, 30},
		{"module_path", "model.h", 0, 30},
		{"module_path", "model.h[7]", 0, 20},
		{"module_path", "model.h[7].mlp", 20, 20},
		{"module_path", "model.h[8]", 10, 10},
		{"module_path", "main() in t.py:8: stack [0]", 0, 10},
		{"module_path", "main() in t.py:8", 0, 10},
		{"category", "gradient", 48 << 20, 48 << 20},
		{"function", "walk", 5, 5},
		{"function", "step", 0, 2<<20 + 6*12<<20 + 96<<20},
		{"line", "me/tree.py:3 walk", 5, 5},
		{"line", "me/block.py:8 Block.forward", 6 * 12 << 20, 6 * 12 << 20},
		{"library-line", "walk tree.py:3", 5, 5},
		{"library-line", "Block.forward block.py:8", 6 << 20, 6 * 12 << 20},
	} {
		by, samples := by(t, c.by).exact().samples(s)
		groups := by.groups(samples)
		g := groups[fmt.Sprintf("%q", []string{c.row})]
		if g == nil {
			t.Errorf("by %s: no row %s", c.by, c.row)
		} else if g.InuseBytes != c.self || g.total.InuseBytes != c.total {
			t.Errorf("by %s: %s has %d, with what is inside %d; want %d and %d", c.by, c.row, g.InuseBytes, g.total.InuseBytes, c.self, c.total)
		}
	}
}

// Rows are those of the program's own lines, where a stack has one, and the largest comes first.
func TestOwnLines(t *testing.T) {
	sample := func(bytes int64, frames ...*snapshot.Location) snapshot.Sample {
		return snapshot.Sample{Stack: frames, Labels: snapshot.Labels{Kind: "device"}, Values: snapshot.Values{InuseBytes: bytes}}
	}
	library := snapshottest.Frame("run", "/venv/lib/python3.12/site-packages/lib/run.py", 5)
	s := &snapshot.Snapshot{Samples: []snapshot.Sample{
		sample(9, library),
		sample(2, library, snapshottest.Frame("step", "/a/train/loop.py", 8), snapshottest.Frame("main", "/a/train/loop.py", 20)),
		sample(3, snapshottest.Frame("step", "/b/train/loop.py", 8)),
	}}
	by, samples := by(t, "line").samples(s)
	var got []string
	groups := by.groups(samples)
	for _, key := range rowsOf(groups, &holdings) {
		got = append(got, groups[key].values[0])
	}
	want := []string{"lib/run.py:5 run", "b/train/loop.py:8 step", "a/train/loop.py:8 step", "a/train/loop.py:20 main"}
	if !slices.Equal(got, want) {
		t.Errorf("rows %q, want %q", got, want)
	}
}

// In C and C++, a row is of the caller of CUDA's runtime, and of a function that allocates for
// several callers; so it is of a profile, which does not know which file a frame is of.
func TestLinesOfC(t *testing.T) {
	program := &snapshot.Mapping{Path: "/a/train"}
	for _, mapping := range []*snapshot.Mapping{program, nil} {
		frame := func(name, file string, line int) *snapshot.Location {
			return &snapshot.Location{Address: uint64(line), Mapping: mapping, Lines: []snapshot.Line{{Function: name, File: file, Line: line}}}
		}
		malloc, helper, main := frame("cudaMalloc", "/cudart.c", 185), frame("tensor_empty", "/a/train.c", 46), frame("main", "/a/train.c", 176)
		s := &snapshot.Snapshot{}
		for _, caller := range []*snapshot.Location{frame("forward", "/a/train.c", 108), frame("log_metrics", "/a/train.c", 146)} {
			s.Samples = append(s.Samples, snapshot.Sample{Stack: []*snapshot.Location{malloc, helper, caller, main}, Labels: snapshot.Labels{Kind: "device"}, Values: snapshot.Values{InuseBytes: int64(caller.Address)}})
		}
		by, samples := by(t, "line").samples(s)
		groups := by.groups(samples)
		var got []string
		for _, key := range rowsOf(groups, &holdings) {
			if groups[key].InuseBytes != 0 {
				got = append(got, groups[key].values[0])
			}
		}
		if want := []string{"a/train.c:146 log_metrics", "a/train.c:108 forward"}; !slices.Equal(got, want) {
			t.Errorf("rows %q, want %q", got, want)
		}
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
		if name == "freed-by" {
			continue // of tensors alone: TestReportByFreed
		}
		got := map[string]int64{}
		columns, samples := by(t, name).samples(s)
		for x, g := range columns.sections(samples, (*amount).isHeld) {
			for _, group := range columns.groups(g.samples) {
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

// By size there is a row for each power of two, of what lives; what has no size is one.
func TestReportBySize(t *testing.T) {
	s := snapshottest.Tensors()
	weights, cached := &s.Samples[0], len(s.Samples)-1
	weights.InuseBytes, weights.InuseObjects = 3<<20+512+511+7, 5
	for _, size := range []int64{1 << 20, 2<<20 - 1, 512, 511} { // one has no row
		s.Live = append(s.Live, snapshot.Allocation{Sample: 0, Address: uint64(size), Size: size})
	}
	s.Live = append(s.Live, snapshot.Allocation{Sample: cached, Address: 7, Size: 64 << 20})
	for _, names := range [][]string{{"size"}, {"category", "size"}} {
		var page strings.Builder
		if err := Report(&page, s, Options{By: by(t, names...), Turnover: true}); err != nil {
			t.Fatal(err)
		}
		name := "report/by_" + strings.Join(names, "_")
		snapshottest.Golden(t, name+".txt", []byte(page.String()))
		snapshottest.Golden(t, name+".csv", []byte(write(t, reportCSV, s, Options{By: by(t, names...)})))
	}
	var got, want snapshot.Values
	_, samples := by(t, "size").samples(s)
	for _, x := range samples {
		got.Add(&x.Values)
	}
	for i := range s.Samples {
		want.Add(&snapshot.Values{InuseBytes: s.Samples[i].InuseBytes, InuseObjects: s.Samples[i].InuseObjects})
	}
	if got != want {
		t.Errorf("parts add up to %+v, want %+v", got, want)
	}
}

// Where tensors were freed is beside what lives, and what was freed elsewhere.
func TestReportByFreed(t *testing.T) {
	s := snapshottest.Tensors()
	zero := snapshottest.Frame("Optimizer.zero_grad", "/venv/lib/python3.12/site-packages/torch/optim/optimizer.py", 970)
	step := snapshottest.Frame("step", "/home/me/train.py", 22)
	engine := &snapshot.Location{Address: 0x77, Lines: []snapshot.Line{{Function: "torch::autograd::Engine::thread_main"}}}
	s.Freed = []snapshot.Freed{
		{Sample: 2, By: []*snapshot.Location{engine}, Objects: 29, Bytes: 29 * 8 << 20},
		{Sample: 6, By: []*snapshot.Location{zero, step}, Objects: 60, Bytes: 60 * 4 << 20},
		{Sample: 3, By: []*snapshot.Location{engine}, Objects: 50, Bytes: 50 * 8 << 20}, // of 36 that the sample has
	}
	for _, names := range [][]string{{"freed-by"}, {"category", "freed-by"}} {
		var page strings.Builder
		if err := Report(&page, s, Options{By: by(t, names...)}); err != nil {
			t.Fatal(err)
		}
		name := "report/by_" + strings.Join(names, "_")
		snapshottest.Golden(t, name+".txt", []byte(page.String()))
		snapshottest.Golden(t, name+".csv", []byte(write(t, reportCSV, s, Options{By: by(t, names...)})))
	}
	var got, want amount
	_, samples := by(t, "freed-by").samples(s)
	for _, x := range samples {
		got.add(x)
	}
	for i := range s.Samples {
		if s.Samples[i].Kind == "tensor" {
			want.add(&s.Samples[i])
		}
	}
	if want.PeakBytes = 0; got != want {
		t.Errorf("parts add up to %+v, want %+v", got, want)
	}
	if _, err := ParseBy("freed-by", "size"); err == nil || !strings.Contains(err.Error(), "freed-by and size together") {
		t.Errorf("both: %v", err)
	}
}

func TestSizeClass(t *testing.T) {
	for size, want := range map[int64]string{
		0: "0 B", 1: "1 B to 2 B", 511: "256 B to 512 B", 512: "512 B to 1.00 KiB", 1 << 20: "1.00 MiB to 2.00 MiB", 2<<20 - 1: "1.00 MiB to 2.00 MiB",
		math.MaxInt64: "4.00 EiB and more",
	} {
		if got := sizeClass(bits.Len64(uint64(size))); got != want {
			t.Errorf("%d: %q, want %q", size, got, want)
		}
	}
}

// What is freed is what was allocated and is not held: not what a remainder lacks.
func TestAmount(t *testing.T) {
	var a amount
	for _, v := range []snapshot.Values{
		{AllocObjects: 5, AllocBytes: 50, InuseObjects: 2, InuseBytes: 20},
		{InuseObjects: 3, InuseBytes: 1000}, // cached
		{InuseBytes: 7},                     // a remainder
		{AllocObjects: 1, AllocBytes: 8},
	} {
		a.add(&snapshot.Sample{Values: v})
	}
	got := map[string]int64{}
	for _, f := range figures() {
		got[f.key] = f.of(&a)
	}
	want := map[string]int64{"inuse_bytes": 1027, "inuse_objects": 5, "peak_bytes": 0, "alloc_bytes": 58, "alloc_objects": 6,
		"freed_bytes": 38, "freed_objects": 4, "net_bytes": 20, "net_objects": 2}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
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
		{[]*snapshot.Sample{object(1, math.MinInt64)}, "-8.00 EiB"},
	} {
		g := &group{}
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
		"cause": "cause api", "api cause": "api cause", "cause api": "cause api", "process": "process pid user command",
		"gpu": "gpu", "owner kind owner": "owner kind", "runtime": "runtime", "pid process": "pid process user command", "pod": "pod namespace", "user": "user",
	} {
		var got []string
		for _, c := range by(t, strings.Fields(names)...) {
			got = append(got, c.name)
		}
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: %q, want %q", names, got, want)
		}
	}
	for names, want := range map[string]int{"module operator": 0, "category function line": 1, "owner": -1} {
		if got := slices.IndexFunc(by(t, strings.Fields(names)...), func(c column) bool { return c.all != nil }); got != want {
			t.Errorf("%s: column %d nests, want %d", names, got, want)
		}
	}
	for i, c := range by(t, "module", "operator", "line") {
		if (c.all != nil) != (i == 0) {
			t.Errorf("column %d nests: %t", i, c.all != nil)
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

// Groups of processes are of all processes on a GPU together.
func TestReportByWho(t *testing.T) {
	for _, names := range [][]string{{"user"}, {"command"}, {"pod"}, {"container"}, {"job"}, {"process"}, {"user", "owner"}} {
		name := "report/who_by_" + strings.Join(names, "_")
		snapshottest.Golden(t, name+".txt", []byte(report(t, snapshottest.Tenants(), Options{By: by(t, names...)})))
	}
	snapshottest.Golden(t, "report/who_by_user.csv", []byte(write(t, reportCSV, snapshottest.Tenants(), Options{By: by(t, "user")})))
	one := snapshottest.Training()
	if got := report(t, one, Options{By: by(t, "user")}); !strings.Contains(got, "This file has no user. A profile of one process has none") {
		t.Error(got)
	}
}

// The first screen says whose memory it is: of several processes in a table, of one in a line. Of
// tensors, it names the command that shows modules.
func TestOverviewOfWho(t *testing.T) {
	several := snapshottest.Tenants()
	one := snapshottest.Tenants()
	one.Samples, one.Processes = one.Samples[:1], one.Processes[:1]
	for name, s := range map[string]*snapshot.Snapshot{"several": several, "one": one, "of_tensors": snapshottest.Tensors()} {
		var b strings.Builder
		if err := Report(&b, s, Options{Width: 120, File: "run.gmt", Moment: &Moment{At: s.Meta.Duration, Peak: s.Meta.Duration, End: s}}); err != nil {
			t.Fatal(err)
		}
		snapshottest.Golden(t, "report/who_"+name+".txt", []byte(b.String()))
	}
}

func reportCSV(w io.Writer, s *snapshot.Snapshot, o Options) error {
	return ReportRows(s, o).CSV(w)
}
