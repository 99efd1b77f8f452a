package export

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// A place is a line of a program that holds a tensor.
type place struct {
	file, function string
	line           int
	bytes          int64
}

// run is what a run of a program holds, which began at a second.
func run(start int64, places ...place) *snapshot.Snapshot {
	s := &snapshot.Snapshot{Meta: snapshot.Meta{Start: time.Unix(start, 0), Target: fmt.Sprintf("pid %d (python3)", start)}}
	for _, p := range places {
		s.Samples = append(s.Samples, snapshot.Sample{
			Stack: []*snapshot.Location{
				{Address: uint64(start) << 20, Lines: []snapshot.Line{{Function: "empty", File: fmt.Sprintf("/venv%d/lib/python3.11/site-packages/torch/functional.py", start), Line: int(start)}}},
				{Lines: []snapshot.Line{{Function: p.function, File: p.file, Line: p.line}}},
				{Lines: []snapshot.Line{{Function: "main", File: p.file, Line: p.line + 100}}},
			},
			Labels: snapshot.Labels{Kind: "tensor", GPU: fmt.Sprint(start), Process: "python3", PID: int(start)},
			Values: snapshot.Values{InuseObjects: 1, InuseBytes: p.bytes},
		})
	}
	return s
}

func compared(t *testing.T, o Options, a, b *snapshot.Snapshot) string {
	t.Helper()
	var out strings.Builder
	if err := Diff(&out, Side{a, "a"}, Side{b, "b"}, o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A comment that moves all lines, another file name, another version of a library, another GPU
// and another PID are no change.
func TestDiffOfMovedLines(t *testing.T) {
	a := run(1, place{"/a/train.py", "step", 10, 100}, place{"/a/train.py", "step", 12, 200}, place{"/a/model.py", "forward", 5, 400})
	b := run(2, place{"/b/train_v2.py", "step", 12, 100}, place{"/b/train_v2.py", "step", 14, 200}, place{"/b/model.py", "forward", 9, 400})
	out := compared(t, Options{}, a, b)
	for _, want := range []string{"As much memory on GPUs: 700 B", "What for: nothing changed", "Lines of the program: nothing changed", "No stack changed"} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
}

// A line that is there twice in one run is told from one that moved only by its order. Where that
// does not tell, its functions are compared as a whole.
func TestDiffOfChangedLines(t *testing.T) {
	a := run(1, place{"/train.py", "step", 10, 100}, place{"/train.py", "step", 12, 200}, place{"/train.py", "gone", 40, 7})
	for _, x := range []struct {
		b    *snapshot.Snapshot
		want string
	}{
		{run(2, place{"/train.py", "step", 12, 100}, place{"/train.py", "step", 14, 250}), "+50 B   200 B  250 B        0  /train.py:14 step"},
		{run(2, place{"/train.py", "step", 12, 100}, place{"/train.py", "step", 14, 200}, place{"/train.py", "step", 15, 30}), "+30 B   300 B  330 B       +1  /train.py:12 step"},
		{run(2, place{"/train.py", "step", 12, 300}), " 0 B   300 B  300 B       -1  /train.py:12 step"},
	} {
		out := compared(t, Options{By: by(t, "line")}, a, x.b)
		if !strings.Contains(out, x.want) || !strings.Contains(out, "1 is gone") || !strings.Contains(out, "-7 B     7 B    0 B       -1  /train.py:40 gone") {
			t.Errorf("want %q in\n%s", x.want, out)
		}
	}
}

// Within one run lines do not move.
func TestDiffWithinRun(t *testing.T) {
	a, b := run(1, place{"/train.py", "step", 10, 100}), run(1, place{"/train.py", "step", 12, 100})
	if out := compared(t, Options{}, a, b); !strings.Contains(out, "1 is new, 1 is gone") {
		t.Errorf("got\n%s", out)
	}
}

// Aligning changes no sum.
func TestAlignAddsUp(t *testing.T) {
	a, b := recorded(t, "allocator/peft_8"), recorded(t, "profiler")
	for i, s := range Align(a, b) {
		if x, y := sumOf(pointers([]*snapshot.Snapshot{a, b}[i].Samples)), sumOf(pointers(s.Samples)); x != y {
			t.Errorf("run %d: %+v, want %+v", i, y, x)
		}
	}
}

// A run is equal to itself, however often its stacks are aligned.
func TestAlignWithItself(t *testing.T) {
	a, b := recorded(t, "profiler"), recorded(t, "profiler")
	b.Meta.Start = b.Meta.Start.Add(time.Hour)
	if out := compared(t, Options{}, a, b); !strings.Contains(out, "No stack changed") {
		t.Errorf("got\n%s", out)
	}
}

func ranksOf(t *testing.T, o Options, ranks ...Side) string {
	t.Helper()
	var out strings.Builder
	if err := Ranks(&out, ranks, "", o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The first line says which rank holds most, and the table in which rows ranks differ.
func TestRanks(t *testing.T) {
	rank := func(i int64, more ...place) Side {
		return Side{run(i, append([]place{{"/train.py", "step", 10, 1000}, {"/train.py", "load", 20, 500}}, more...)...), fmt.Sprintf("rank%d", i)}
	}
	extra := place{"/train.py", "gather", 30, 250}
	for name, x := range map[string]struct {
		ranks []Side
		want  []string
	}{
		"equal": {[]Side{rank(1), rank(2)}, []string{"2 ranks hold 1.46 KiB each", "is the same in all: 2 of 2 rows", "No row differs."}},
		"two": {[]Side{rank(1), rank(2, extra)}, []string{
			"2 ranks hold 1.46 KiB to 1.71 KiB on GPUs: rank1 the least, rank2 the most.", "1.46 KiB of each is the same in all: 2 of 3 rows, by line.",
			"DIFFER BY     RANK1     RANK2  LINE", "250 B       0 B     250 B  /train.py:30 gather",
		}},
		"six": {[]Side{rank(1), rank(2), rank(3, extra), rank(4), rank(5), rank(6)}, []string{
			"6 ranks hold", "250 B       0 B  rank1       0 B     250 B  rank3  /train.py:30 gather",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			out := ranksOf(t, Options{}, x.ranks...)
			for _, want := range x.want {
				if !strings.Contains(out, want) {
					t.Errorf("want %q in\n%s", want, out)
				}
			}
		})
	}
}

// Ranks that are on as many GPUs are not told apart by that, and of several one is named.
func TestRanksOnMoreGPUs(t *testing.T) {
	rank := func(name string, gpus ...string) Side {
		s := &snapshot.Snapshot{}
		for i, gpu := range gpus {
			s.Samples = append(s.Samples, snapshot.Sample{Labels: snapshot.Labels{GPU: gpu, Kind: "device"}, Values: snapshot.Values{InuseBytes: int64(2048 >> i)}})
		}
		return Side{s, name}
	}
	for want, ranks := range map[string][]Side{
		"": {rank("rank0", "0", "2"), rank("rank1", "1", "3")},
		"rank1 holds 1.00 KiB on GPU 0, too (not known 1.00 KiB), beside 2.00 KiB on GPU 1. In all, 2 of 3 ranks are on more GPUs than the others.": {rank("rank0", "0"), rank("rank1", "1", "0"), rank("rank2", "2", "0")},
	} {
		if got := onMoreGPUs(ranks); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Pages call processes by their ranks. Rows for programs have the name of the process.
func TestRankNames(t *testing.T) {
	s := snapshottest.TwoProcesses()
	for i, rank := range []string{"1", "0"} {
		who := snapshot.Who{Rank: rank, WorldSize: "2"}
		s.Samples[i].Who, s.Processes[i].Who = &who, who
	}
	ranks := Split(s)
	if len(ranks) != 2 || ranks[0].Name != "rank 0 (11)" || ranks[1].Name != "rank 1 (10)" {
		t.Errorf("%+v", ranks)
	}
	by, _ := ParseBy("rank")
	process, _ := ParseBy("process")
	for name, x := range map[string]struct {
		write func(io.Writer) error
		want  []string
	}{
		"table":  {func(w io.Writer) error { return Table(w, s, Options{}) }, []string{"rank 1 of 2", "rank 0 of 2 (exited)"}},
		"report": {func(w io.Writer) error { return Report(w, s, Options{}) }, []string{"rank 1 of 2   10", "rank 0 of 2   11"}},
		"by":     {func(w io.Writer) error { return Report(w, s, Options{By: by}) }, []string{"1     10", "0     11"}},
		"one": {func(w io.Writer) error {
			return Report(w, &snapshot.Snapshot{Samples: s.Samples[:1], Processes: s.Processes[:1]}, Options{})
		}, []string{"The process is rank 1 of 2. It belongs to"}},
		"rows": {func(w io.Writer) error { return ReportRows(s, Options{By: process}).CSV(w) }, []string{"serve,10,"}},
	} {
		var b strings.Builder
		if err := x.write(&b); err != nil {
			t.Fatal(err)
		}
		for _, want := range x.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: no %q in\n%s", name, want, b.String())
			}
		}
	}
}

// The processes of a recorded job are its ranks: FSDP's first one initialised the whole model.
func TestRanksOfRecording(t *testing.T) {
	ranks := Split(recorded(t, "fsdp"))
	if len(ranks) != 2 {
		t.Fatalf("%d ranks", len(ranks))
	}
	out := ranksOf(t, Options{}, ranks...)
	for _, want := range []string{"2 ranks hold", "pid 1129 the most", "fsdp.py:",
		"pid 1129 holds 774 MiB on GPU 1, too (CUDA context 518 MiB, PyTorch 256 MiB), beside"} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
}
