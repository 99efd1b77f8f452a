package snapshottest

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Windowed is Training with tensors that were seen in windows, of a process that trains and of one
// that does not.
func Windowed() *snapshot.Snapshot {
	s := Training()
	s.Meta.Windows = &snapshot.TensorWindows{Length: 2 * time.Second, Every: time.Minute, Count: 12, Time: 24_004_000_000}
	row := func(function string, line int, peak, bytes, objects int64) snapshot.WindowedRow {
		return snapshot.WindowedRow{
			Sample: snapshot.Sample{Stack: []*snapshot.Location{Frame("at::empty", "", 0), Frame(function, "/home/u/train.py", line)},
				Labels: snapshot.Labels{Kind: "tensor", GPU: "0", Operator: "aten::empty", Module: "Net", PID: 30, Process: "python3"},
				Values: snapshot.Values{AllocBytes: bytes, AllocObjects: objects, PeakBytes: peak}},
			Lives: snapshot.Lives{StepBytes: bytes - bytes/100, StepObjects: objects - objects/100, Freed: objects - 8, Life: time.Duration(objects-8) * 1_400_000, Longest: 7_000_000, Outlived: 8, OutlivedBytes: 8 << 20},
		}
	}
	rows := []snapshot.WindowedRow{row("forward", 11, 25<<20, 25<<30, 51_200), row("loss", 14, 7<<20, 7<<30, 1024), row("forward", 11, 1<<20, 1<<30, 1024)}
	other := rows[1]
	other.Sample.Labels = snapshot.Labels{Kind: "tensor", GPU: "1", PID: 31, Process: "x\x1b[2J"}
	s.Windowed = []snapshot.Windowed{
		{PID: 30, Process: "python3", GPU: "0", Windows: 12, Time: 24_004_000_000, Steps: 1000, Peak: 133 << 20, Before: 100 << 20, Reserved: 166 << 20, WholeStep: true, Rows: rows},
		{PID: 31, Process: "x\x1b[2J", GPU: "1", Windows: 3, Time: 6 * time.Second, Peak: 7 << 20, Rows: []snapshot.WindowedRow{other}},
	}
	return s
}
