package export

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// header returns the first line of what rows writes.
func header(t *testing.T, rows func(io.Writer) error) string {
	t.Helper()
	var out strings.Builder
	if err := rows(&out); err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(out.String(), "\n")
	return first
}

// Rows have the same columns in the same order, whatever they are grouped by.
func TestRowColumns(t *testing.T) {
	s := recorded(t, "fsdp")
	a, ranks := Side{Snapshot: s}, Split(s)
	pages := map[string]func(io.Writer, Options) error{
		"report": func(w io.Writer, o Options) error { return ReportRows(s, o).CSV(w) },
		"diff":   func(w io.Writer, o Options) error { return DiffRows(a, a, o).CSV(w) },
		"ranks":  func(w io.Writer, o Options) error { return RanksRows(ranks, o).CSV(w) },
	}
	for page, write := range pages {
		want := header(t, func(w io.Writer) error { return write(w, Options{By: by(t, "owner")}) })
		if !strings.HasPrefix(want, strings.Join(groupColumns(), ",")+",") {
			t.Errorf("%s begins with %s", page, want)
		}
		for _, name := range ByNames() {
			if page != "report" && by(t, name).Parts() {
				continue // of one moment
			}
			if got := header(t, func(w io.Writer) error { return write(w, Options{By: by(t, name)}) }); got != want {
				t.Errorf("%s by %s has the columns %s, want %s", page, name, got, want)
			}
		}
	}
}

// JSON has the figures of CSV, under the names of its columns.
func TestRowsJSON(t *testing.T) {
	parse := func(write func(io.Writer) error) (rows []map[string]any) {
		t.Helper()
		var out strings.Builder
		if err := write(&out); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(out.String()), &rows); err != nil {
			t.Fatalf("%v in %s", err, out.String())
		}
		return rows
	}
	rows := parse(func(w io.Writer) error {
		return ReportRows(snapshottest.Driver(), Options{By: by(t, "cause")}).JSON(w)
	})
	if len(rows) == 0 || rows[0]["process"] == nil || rows[0]["owner"] != nil {
		t.Errorf("%v", rows)
	}
	var sum float64
	for _, row := range rows {
		if row["class"] == "" {
			sum += row["inuse_bytes"].(float64)
		}
	}
	if want := sumOf(onGPU(snapshottest.Driver())).InuseBytes; int64(sum) != want {
		t.Errorf("the rows hold %.0f, want %d", sum, want)
	}
	steps := parse(func(w io.Writer) error { return StepsRows(stepped()).JSON(w) })
	if len(steps) != 1000 || steps[0]["seconds"] != 0.017912345 {
		t.Errorf("%d steps, first %v", len(steps), steps[0])
	}
	if none := parse(func(w io.Writer) error { return StepsRows(&snapshot.Snapshot{}).JSON(w) }); len(none) != 0 {
		t.Errorf("%v", none)
	}
	hostile := parse(func(w io.Writer) error {
		return ReportRows(snapshottest.Hostile(), Options{By: by(t, "line", "process")}).JSON(w)
	})
	if len(hostile) == 0 {
		t.Error("no rows of hostile names")
	}
	full := errors.New("disk full")
	if err := StepsRows(stepped()).JSON(limitedWriter{full}); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
}

// Rows of a comparison have what each side has, and those alone that differ.
func TestDiffRows(t *testing.T) {
	sides := func(by By) string {
		var out strings.Builder
		if err := DiffRows(Side{snapshottest.Training(), "a"}, Side{later(), "b"}, Options{By: by}).CSV(&out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	before, after := sumOf(onGPU(snapshottest.Training())).InuseBytes, sumOf(onGPU(later())).InuseBytes
	if out, want := sides(by(t, "gpu")), fmt.Sprintf(",%d,", after-before); before == after || !strings.Contains(out, want) {
		t.Errorf("no %s in\n%s", want, out)
	}
	ranks := Split(recorded(t, "fsdp"))
	var out strings.Builder
	if err := RanksRows(ranks, Options{By: by(t, "gpu")}).CSV(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{",pid 1129,", ",pid 1130,0,0\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// What the driver takes for itself while an operator runs is not the operator's.
func TestDriverIsNoOperators(t *testing.T) {
	s := recorded(t, "profiler")
	columns, samples := by(t, "operator").samples(s)
	seen := map[string]bool{}
	for _, g := range columns.groups(samples) {
		for _, x := range g.samples {
			if takenByDriver(x) {
				seen[g.values[0]] = true
			}
		}
	}
	for _, row := range []string{"[context]", "[local memory]", "[code]"} {
		if !seen[row] {
			t.Errorf("no row %s: the driver's memory is in %v", row, seen)
		}
	}
	for row := range seen {
		if !strings.HasPrefix(row, "[") {
			t.Errorf("%s holds memory of the driver", row)
		}
	}
}

// Rows of stacks that look the same are one.
func TestDiffStacksDiffer(t *testing.T) {
	for _, name := range []string{"fsdp", "profiler", "torch_native"} {
		s := recorded(t, name)
		_, rows := changedStacks(&snapshot.Snapshot{}, s)
		var sum int64
		for _, x := range rows {
			sum += x.change()
		}
		if all := sumOf(pointers(s.Samples)).InuseBytes; sum != all || len(rows) >= len(s.Samples) {
			t.Errorf("%s: %d rows of %d samples hold %d, want %d", name, len(rows), len(s.Samples), sum, all)
		}
	}
}

// A launcher may tell the rank on the command line.
func TestRankOf(t *testing.T) {
	for command, want := range map[string]string{
		"python train.py --local_rank=3 --lr 1": "3",
		"python train.py --local-rank 0":        "0",
		"python train.py --local_rank=x":        "",
		"python train.py --not-local-rank=3":    "",
		"torchrun --nproc-per-node 2 train.py":  "",
	} {
		if got := rankOf(command); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}
