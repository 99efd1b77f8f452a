package export

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// Each page that has figures of windows says of which windows they are.
func TestWindows(t *testing.T) {
	page := func(w io.Writer, s *snapshot.Snapshot, o Options) error { return WindowsReport(w, s, o) }
	snapshottest.Golden(t, "report/windows.txt", []byte(write(t, page, snapshottest.Windowed(), Options{Top: 2})))
	rows := func(w io.Writer, s *snapshot.Snapshot, _ Options) error { return WindowsRows(s).CSV(w) }
	snapshottest.Golden(t, "report/windows.csv", []byte(write(t, rows, snapshottest.Windowed(), Options{})))

	none := snapshottest.Windowed()
	none.Windowed = nil
	for name, of := range map[string]func(io.Writer, *snapshot.Snapshot, Options) error{"page": page, "report": Report, "table": Table, "steps": StepsReport} {
		text := write(t, of, snapshottest.Windowed(), Options{})
		if !strings.Contains(strings.ReplaceAll(text, "\n", " "), "of 12 windows of 2s, one each 1m") {
			t.Errorf("%s does not say of which windows it is:\n%s", name, text)
		}
		if name == "page" || name == "report" || name == "table" {
			if text = write(t, of, none, Options{}); !strings.Contains(text, "No tensor of PyTorch's was made on a GPU in them") {
				t.Errorf("%s without tensors:\n%s", name, text)
			}
		}
	}
	// By line, both stacks of forward are one row.
	if text := write(t, Report, snapshottest.Windowed(), Options{}); !strings.Contains(text, "26.0 MiB          26.4 MiB            51.7  1.4ms                 16  u/train.py:11 forward") {
		t.Errorf("%s", text)
	}

	var got struct {
		Meta struct {
			Windows map[string]int64 `json:"tensor_windows"`
		}
		Locations []struct{ Lines []struct{ Function string } }
		Windows   []struct {
			PID   int
			Steps int64
			Rows  []struct {
				Stack []int
				Peak  int64 `json:"peak_bytes"`
			}
		}
	}
	if err := json.Unmarshal([]byte(write(t, JSON, snapshottest.Windowed(), Options{})), &got); err != nil {
		t.Fatal(err)
	}
	if got.Meta.Windows["windows"] != 12 || got.Meta.Windows["length_ns"] != 2e9 || len(got.Windows) != 2 || got.Windows[0].Steps != 1000 {
		t.Errorf("%+v", got)
	}
	if r := got.Windows[0].Rows; len(r) != 3 || r[0].Peak != 25<<20 || got.Locations[r[0].Stack[1]].Lines[0].Function != "forward" {
		t.Errorf("%+v", r)
	}
	full := errors.New("disk full")
	if err := WindowsReport(limitedWriter{full}, snapshottest.Windowed(), Options{}); !errors.Is(err, full) {
		t.Errorf("page: %v", err)
	}
	if err := WindowsRows(snapshottest.Windowed()).CSV(limitedWriter{full}); !errors.Is(err, full) {
		t.Errorf("rows: %v", err)
	}
}
