package holders_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/output/holders"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/holdertest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

func report(by holders.By) *holders.Report {
	x := holdertest.Training()
	x.Allocators = []holder.Allocator{{Blocks: []holder.Block{{Size: 227 << 20, Requested: 227 << 20, State: holder.Allocated}, {Address: 227 << 20, Size: 33 << 20}}}}
	return &holders.Report{PID: 4711, Process: "python3", OnGPUs: 842 << 20, Reading: x, By: by}
}

func between(by holders.By) *holders.Report {
	return &holders.Report{PID: 4711, Process: "python3", Before: holdertest.Training(), Reading: holdertest.Later(), By: by}
}

func TestTable(t *testing.T) {
	for _, by := range holders.Names() {
		for name, r := range map[string]*holders.Report{by: report(holders.By(by)), by + "-between": between(holders.By(by))} {
			t.Run(name, func(t *testing.T) {
				var b bytes.Buffer
				if err := r.Table(&b, export.Options{}); err != nil {
					t.Fatal(err)
				}
				snapshottest.Golden(t, name+".txt", b.Bytes())
				b.Reset()
				if err := r.CSV(&b); err != nil {
					t.Fatal(err)
				}
				snapshottest.Golden(t, name+".csv", b.Bytes())
			})
		}
	}
}

// What no garbage collector frees says so, and how to break each kind of cycle.
func TestStuck(t *testing.T) {
	const gradient, function = "set .grad to None", "ctx.save_for_backward()"
	for name, want := range map[string][]string{
		"reference cycle: Parameter" + holder.GradientCycle:                {"that no garbage collector frees: 1.00 KiB in 1 storage", gradient},
		"reference cycle: ScaleBackward.scaled (class Scale, scale.py:12)": {"that no garbage collector frees: 1.00 KiB in 1 storage", function},
		"model.weight": nil,
	} {
		r := &holders.Report{Reading: &holder.Reading{Storages: []holder.Storage{{Bytes: 1024, Holder: name}}}, By: holders.Path}
		var b bytes.Buffer
		if err := r.Table(&b, export.Options{}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), name) {
			t.Errorf("no %s in\n%s", name, b.String())
		}
		for _, s := range []string{"that no garbage collector frees: 1.00 KiB in 1 storage", gradient, function} {
			if strings.Contains(b.String(), s) != slices.Contains(want, s) {
				t.Errorf("%s: %q in\n%s", name, s, b.String())
			}
		}
	}
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	r := report(holders.Shape)
	if err := r.JSON(&b); err != nil {
		t.Fatal(err)
	}
	snapshottest.Golden(t, "shape.json", b.Bytes())
	var out struct {
		Bytes    int64
		Rows     []struct{ Bytes int64 }
		Storages []struct {
			Bytes int64
			Role  string
		}
	}
	if err := json.Unmarshal(b.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	var rows, storages int64
	for _, r := range out.Rows {
		rows += r.Bytes
	}
	for _, s := range out.Storages {
		storages += s.Bytes
	}
	if rows != out.Bytes || storages != out.Bytes || out.Bytes == 0 {
		t.Errorf("rows have %d bytes and storages %d, want %d", rows, storages, out.Bytes)
	}
	if out.Storages[0].Role != "parameter" {
		t.Errorf("the first storage's role is %q", out.Storages[0].Role)
	}
}

func TestFolded(t *testing.T) {
	var b bytes.Buffer
	if err := report(holders.Path).Folded(&b); err != nil {
		t.Fatal(err)
	}
	snapshottest.Golden(t, "path.folded", b.Bytes())
}

// The segments of PyTorch's allocator are shown as those of a trace.
func TestSegments(t *testing.T) {
	r := report(holders.Path)
	r.Divided = true
	r.Reading.Allocators[0].Blocks = append(r.Reading.Allocators[0].Blocks,
		holder.Block{Address: 1 << 40, Size: 20 << 20, First: true, Private: holder.PoolID{First: 1}},
		holder.Block{Address: 2 << 40, Size: 2 << 20, First: true, Private: holder.UnknownPool, Small: true})
	var b bytes.Buffer
	if err := export.Report(&b, r.Segments("1.0", "gpumemtrace holders -p 4711 --segments", snapshottest.Start), export.Options{Segments: true}); err != nil {
		t.Fatal(err)
	}
	snapshottest.Golden(t, "segments.txt", b.Bytes())
}

func TestProfile(t *testing.T) {
	r := report(holders.Path)
	r.CPU = true
	s := r.Snapshot("1.0", "gpumemtrace holders -p 4711", snapshottest.Start)
	var b bytes.Buffer
	if err := pprof.Write(&b, s); err != nil {
		t.Fatal(err)
	}
	back, err := pprof.Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	var want, got int64
	for _, s := range holdertest.Training().Storages {
		want += int64(s.Bytes)
	}
	paths := map[string]bool{}
	for i := range back.Samples {
		got += back.Samples[i].InuseBytes
		paths[back.Samples[i].Frames()[0].Lines[0].Function] = true
	}
	if got != want {
		t.Errorf("the profile has %d bytes, want %d", got, want)
	}
	for _, path := range []string{"model.layers[2].weight.grad", "trainer.history[3].grad_fn", holder.NoHolder, "dataset.images"} {
		if !paths[path] {
			t.Errorf("no sample of the profile ends at %s", path)
		}
	}
}

// A view of rows that have a sum leaves nothing out, and counts nothing twice.
func TestSums(t *testing.T) {
	for _, by := range []holders.By{holders.Path, holders.Parameter, holders.Shape} {
		for name, r := range map[string]*holders.Report{"one": report(by), "between": between(by)} {
			var b bytes.Buffer
			if err := r.CSV(&b); err != nil {
				t.Fatal(err)
			}
			rows, err := csv.NewReader(&b).ReadAll()
			if err != nil {
				t.Fatal(err)
			}
			var got int64
			for _, row := range rows[1:] {
				for i, name := range rows[0] {
					if strings.HasSuffix(name, "bytes") {
						var n int64
						if err := json.Unmarshal([]byte(row[i]), &n); err != nil {
							t.Fatal(err)
						}
						got += n
					}
				}
			}
			want := onGPU(r.Reading)
			if r.Before != nil {
				want -= onGPU(r.Before)
			}
			if got != want {
				t.Errorf("by %s, %s: rows have %d bytes, want %d", by, name, got, want)
			}
		}
	}
}

func onGPU(r *holder.Reading) (sum int64) {
	for i := range r.Storages {
		if r.Storages[i].OnGPU() {
			sum += int64(r.Storages[i].Bytes)
		}
	}
	return sum
}

func TestRefusal(t *testing.T) {
	cpu := holder.Storage{Bytes: 3 << 20, Device: -1}
	for name, c := range map[string]struct {
		reading holder.Reading
		cpu     bool
		want    string
	}{
		"refused": {holder.Reading{Refused: "CPython 3.14 without the GIL is not supported"}, false, "without the GIL"},
		"forked":  {holder.Reading{Runtime: "CPython 3.11", Objects: 12, NoAllocators: "its tensors are another's"}, false, "no tensor was found among 12 objects of CPython 3.11; its tensors are another's"},
		"nothing": {holder.Reading{Runtime: "CPython 3.11", Objects: 12}, false, "no tensor was found among 12 objects of CPython 3.11"},
		"unread":  {holder.Reading{Runtime: "CPython 3.11", Objects: 12, Loss: []loss.Counter{{Name: "x"}, {Name: "y", Help: "tensors that were odd", Value: 3}}}, false, "no tensor was found among 12 objects of CPython 3.11; 3 tensors that were odd"},
		"cpu":     {holder.Reading{Storages: []holder.Storage{cpu}}, false, "3.00 MiB of tensors lie in the CPU's memory: show them with --cpu"},
		"asked":   {holder.Reading{Storages: []holder.Storage{cpu}}, true, ""},
		"gpu":     {holder.Reading{Storages: []holder.Storage{{Bytes: 1}}}, false, ""},
	} {
		r := holders.Report{Reading: &c.reading, CPU: c.cpu, By: holders.Path}
		if got := r.Refusal(); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// The answer names the object that keeps most, or the innermost one in it that keeps more than half
// of that, and none where none keeps much.
func TestAnswer(t *testing.T) {
	retained := func(bytes uint64, items int, name string) holder.Retainer {
		return holder.Retainer{Holder: name, Class: "list", Items: items, Retained: bytes}
	}
	for name, c := range map[string]struct {
		retainers []holder.Retainer
		want      string
	}{
		"none":     {nil, "; no object alone keeps a tenth of it"},
		"nothing":  {[]holder.Retainer{retained(0, 0, "x")}, "; no object alone keeps a tenth of it"},
		"inner":    {[]holder.Retainer{retained(100, 0, "a"), retained(99, 5, "a.b"), retained(20, 5, "a.b[1]")}, "`a.b` keeps most: 99 B"},
		"one item": {[]holder.Retainer{retained(100, 0, "a"), retained(100, 1, "a.b")}, "`a` keeps most: 100 B"},
		"first":    {[]holder.Retainer{retained(1, 0, "local out"), retained(60, 0, "optimizer")}, "`optimizer` keeps most: 60 B"},
		"largest":  {[]holder.Retainer{retained(40, 9, "leak"), retained(60, 0, "optimizer")}, "`optimizer` keeps most: 60 B"},
		"chain":    {[]holder.Retainer{retained(100, 0, "a"), retained(60, 2, "a.b"), retained(40, 2, "a.b.c")}, "`a.b` keeps most: 60 B"},
		"little":   {[]holder.Retainer{retained(9, 0, "local out")}, "; no object alone keeps a tenth of it"},
		"beside":   {[]holder.Retainer{retained(100, 0, "a"), retained(99, 0, "ab")}, "`a` keeps most: 100 B"},
	} {
		r := holders.Report{PID: 1, By: holders.Path, Reading: &holder.Reading{Retainers: c.retainers, Storages: []holder.Storage{{Bytes: 100}}}}
		if got := r.Answer(); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %q, want %q at its end", name, got, c.want)
		}
	}
}

// What no array has any more is told apart.
func TestAnswerWithPool(t *testing.T) {
	r := holders.Report{PID: 1, By: holders.Path, Reading: &holder.Reading{Storages: []holder.Storage{{Bytes: 100, Holder: "a"}, {Bytes: 30, Holder: holder.FreeInCuPy}, {Bytes: 40, Holder: holder.FreedLater}}}}
	if got, want := r.Answer(), "pid 1: 170 B of CUDA memory in 3 storages, 30 B of it free in CuPy's pool, 40 B of it waits for Numba to free it; no object alone keeps a tenth of it"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// With PyTorch's allocator, the first line divides what the driver says.
func TestAnswerWithAllocator(t *testing.T) {
	const mib = 1 << 20
	blocks := []holder.Block{{Size: 20 * mib, Requested: 20 * mib, State: holder.Allocated}, {Size: 5 * mib, Requested: 5 * mib, State: holder.Allocated},
		{Size: 3 * mib, State: holder.Waiting}, {Size: 12 * mib}, {Size: 100 * mib, State: holder.Unmapped}}
	r := holders.Report{PID: 1, Process: "python3", By: holders.Path, OnGPUs: 640 * mib, Reading: &holder.Reading{Allocators: []holder.Allocator{{Blocks: blocks}},
		Storages:  []holder.Storage{{Address: 512, Bytes: 20 * mib, Holder: "model.weight"}, {Address: 30 * mib, Bytes: 5 * mib}},
		Retainers: []holder.Retainer{{Holder: "model", Retained: 20 * mib}}}}
	want := "pid 1 (python3) holds 640 MiB on GPUs: 40.0 MiB reserved by PyTorch (20.0 MiB held by Python objects, 5.00 MiB by C++ alone, " +
		"3.00 MiB freed, but another stream may still use it, 12.0 MiB cached) and 600 MiB beside it (CUDA context, libraries); `model` keeps most: 20.0 MiB"
	if got := r.Answer(); got != want {
		t.Errorf("\n%s, want\n%s", got, want)
	}
}

// Without rows a table says why: that is not always because nothing changed.
func TestNoRows(t *testing.T) {
	one := func(address uint64, holds string) *holder.Reading {
		return &holder.Reading{Storages: []holder.Storage{{Address: address, Bytes: 8, Holder: holds}}}
	}
	for name, c := range map[string]struct {
		before, now *holder.Reading
		by          holders.By
		want        string
	}{
		"no retainer":       {nil, one(1, "a"), holders.Retainer, "No object alone keeps memory."},
		"same":              {one(1, "a"), one(1, "a"), holders.Path, "Nothing was added, and nothing is gone."},
		"another":           {one(1, "a"), one(2, "a"), holders.Path, "No row differs from before."},
		"another, no owner": {one(1, "a"), one(2, "b"), holders.Retainer, "No row differs from before."},
	} {
		var b bytes.Buffer
		if err := (&holders.Report{PID: 1, Reading: c.now, Before: c.before, By: c.by}).Table(&b, export.Options{}); err != nil {
			t.Fatal(err)
		}
		if lines := strings.Split(strings.TrimSpace(b.String()), "\n"); lines[len(lines)-1] != c.want {
			t.Errorf("%s: %q at the end of\n%s", name, c.want, b.String())
		}
	}
}

// Names and figures that a damaged heap may have end in output, not in a panic, and no
// control character reaches a terminal.
func TestHostile(t *testing.T) {
	r := &holder.Reading{Begin: 9, End: 3, Objects: 1 << 63, Storages: []holder.Storage{
		{Bytes: 1 << 63, Holder: "\x1b[2J[[[", Shape: []int64{-1, 1 << 62}, DType: "\x00", Class: "\n", Role: 200, Node: "\x07"},
		{Bytes: 1<<64 - 1, Holder: "=1+1", Role: holder.Gradient, More: []string{"\x1b"}, Cycle: true},
		{Bytes: 5, Role: holder.OptimizerState, Holder: `x[[[["`},
	}, Retainers: []holder.Retainer{{Holder: "\x1b", Retained: 1<<64 - 1, Graph: 1 << 63}},
		Allocators: []holder.Allocator{{Device: -1, Blocks: []holder.Block{{Address: 9, Size: 1<<64 - 1, Expandable: true}, {Size: 1 << 63, Private: holder.UnknownPool}}}}}
	for _, by := range holders.Names() {
		for _, before := range []*holder.Reading{nil, {}, holdertest.Later()} {
			x := &holders.Report{PID: -1, Process: "\x1b]", Reading: r, Before: before, By: holders.By(by), CPU: true}
			var b bytes.Buffer
			for _, write := range []func() error{
				func() error { return x.Table(&b, export.Options{Width: 40}) },
				func() error { return x.CSV(&b) },
				func() error { return x.JSON(&b) },
				func() error { return x.Folded(&b) },
				func() error {
					return export.Report(&b, x.Segments("", "", time.Time{}), export.Options{Segments: true})
				},
				func() error { return pprof.Write(&bytes.Buffer{}, x.Snapshot("", "", time.Time{})) },
			} {
				if err := write(); err != nil {
					t.Error(err)
				}
			}
			if i := bytes.IndexFunc(b.Bytes(), func(r rune) bool { return r < ' ' && r != '\n' }); i >= 0 {
				t.Errorf("by %s: a control character at %d: %q", by, i, b.Bytes()[max(0, i-20):i+5])
			}
			if by == "path" && !strings.Contains(b.String(), "'=1+1") {
				t.Error("a formula stands in a cell")
			}
		}
	}
}

// Arrays of JAX are shown without --cpu, and what came is told apart by path, for they have
// no address.
func TestArrays(t *testing.T) {
	reading := func(n int) *holder.Reading {
		r := &holder.Reading{Runtime: "CPython 3.12", Framework: "JAX"}
		for i := range n {
			r.Storages = append(r.Storages, holder.Storage{Bytes: 1 << 20, Device: holder.UnknownDevice, Holder: fmt.Sprintf("history[%d]", i), Shape: []int64{512, 512}, DType: "float32", Class: "ArrayImpl"})
		}
		return r
	}
	r := &holders.Report{PID: 4711, Reading: reading(3), By: holders.Shape}
	var b bytes.Buffer
	if err := r.Table(&b, export.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"3.00 MiB of arrays of JAX in 3 storages", "3 arrays of JAX (3.00 MiB) by their shapes", "ArrayImpl"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if s := r.Snapshot("", "", time.Time{}); s.Processes[0].Inuse != 3<<20 || s.Processes[0].Host != 0 {
		t.Errorf("a profile has %+v", s.Processes[0])
	}
	r.Reading = reading(3)
	r.Reading.Storages = append(r.Reading.Storages, holder.Storage{Address: 0x1000, Bytes: 1 << 20, Holder: "x"})
	if got := r.Answer(); !strings.Contains(got, "4.00 MiB of memory in 4 storages") {
		t.Error(got)
	}
	between := &holders.Report{PID: 4711, Before: reading(2), Reading: reading(5), By: holders.Path}
	if got := between.Answer(); !strings.Contains(got, "3 storages came (3.00 MiB), 0 storages went") {
		t.Error(got)
	}
}
