package export

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// windowed has a process that trains and one that does not.
func windowed() *snapshot.Snapshot {
	s := snapshottest.Training()
	s.Meta.Windows = &snapshot.TensorWindows{Length: 2 * time.Second, Every: time.Minute, Count: 12, Time: 24_004_000_000}
	row := func(function string, line int, peak, bytes, objects int64) snapshot.WindowedRow {
		return snapshot.WindowedRow{
			Sample: snapshot.Sample{Stack: []*snapshot.Location{snapshottest.Frame("at::empty", "", 0), snapshottest.Frame(function, "/home/u/train.py", line)},
				Labels: snapshot.Labels{Kind: "tensor", GPU: "0", Operator: "aten::empty", Module: "Net", PID: 30, Process: "python3"},
				Values: snapshot.Values{AllocBytes: bytes, AllocObjects: objects, PeakBytes: peak}},
			StepBytes: bytes - bytes/100, StepObjects: objects - objects/100, Freed: objects - 8, Life: 1_400_000, Longest: 7_000_000, Outlived: 8, OutlivedBytes: 8 << 20,
		}
	}
	rows := []snapshot.WindowedRow{row("forward", 11, 25<<20, 25<<30, 51_200), row("loss", 14, 7<<20, 7<<30, 1024), row("forward", 11, 1<<20, 1<<30, 1024)}
	s.Windowed = []snapshot.Windowed{
		{PID: 30, Process: "python3", GPU: "0", Windows: 12, Time: 24_004_000_000, Steps: 1000, Peak: 133 << 20, Before: 100 << 20, Reserved: 166 << 20, WholeStep: true, Rows: rows},
		{PID: 31, Process: "x\x1b[2J", GPU: "1", Windows: 3, Time: 6 * time.Second, Peak: 7 << 20, Rows: rows[1:2]},
	}
	return s
}

// Each page that has figures of windows says of which windows they are.
func TestWindows(t *testing.T) {
	page := func(w io.Writer, s *snapshot.Snapshot, o Options) error { return WindowsReport(w, s, o) }
	snapshottest.Golden(t, "report/windows.txt", []byte(write(t, page, windowed(), Options{Top: 2})))
	rows := func(w io.Writer, s *snapshot.Snapshot, _ Options) error { return WindowsRows(w, s, RowsCSV) }
	snapshottest.Golden(t, "report/windows.csv", []byte(write(t, rows, windowed(), Options{})))

	none := windowed()
	none.Windowed = nil
	for name, of := range map[string]func(io.Writer, *snapshot.Snapshot, Options) error{"page": page, "report": Report, "table": Table, "steps": StepsReport} {
		text := write(t, of, windowed(), Options{})
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
	if text := write(t, Report, windowed(), Options{}); !strings.Contains(text, "26.0 MiB          26.4 MiB            51.7  1.4ms                 16  u/train.py:11 forward") {
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
	if err := json.Unmarshal([]byte(write(t, JSON, windowed(), Options{})), &got); err != nil {
		t.Fatal(err)
	}
	if got.Meta.Windows["windows"] != 12 || got.Meta.Windows["length_ns"] != 2e9 || len(got.Windows) != 2 || got.Windows[0].Steps != 1000 {
		t.Errorf("%+v", got)
	}
	if r := got.Windows[0].Rows; len(r) != 3 || r[0].Peak != 25<<20 || got.Locations[r[0].Stack[1]].Lines[0].Function != "forward" {
		t.Errorf("%+v", r)
	}
	full := errors.New("disk full")
	if err := WindowsReport(limitedWriter{full}, windowed(), Options{}); !errors.Is(err, full) {
		t.Errorf("page: %v", err)
	}
	if err := WindowsRows(limitedWriter{full}, windowed(), RowsCSV); !errors.Is(err, full) {
		t.Errorf("rows: %v", err)
	}
}
