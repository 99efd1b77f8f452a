package live

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A DocumentWindowed has the tensors of a process on a GPU that were seen in windows.
type DocumentWindowed struct {
	*snapshot.Windowed
	Rows []DocumentWindowedRow `json:"rows"` // those that held most at the peak first
}

// A DocumentWindowedRow is one stack that made tensors in windows. The figures of a step are sums over
// the steps of DocumentWindowed.
type DocumentWindowedRow struct {
	Peak         int64           `json:"peak_bytes"`
	StepBytes    int64           `json:"step_alloc_bytes"`
	StepObjects  int64           `json:"step_alloc_objects"`
	AllocBytes   int64           `json:"alloc_bytes"`
	AllocObjects int64           `json:"alloc_objects"`
	Life         time.Duration   `json:"mean_life_ns"`
	Outlived     int64           `json:"outlived_objects"`
	Frames       []snapshot.Line `json:"frames"` // leaf first
}

// windowed returns the tensors that were seen in windows, with n stacks of each process, all if n is
// negative.
func windowed(all []snapshot.Windowed, n int) (out []DocumentWindowed) {
	for i := range all {
		x := DocumentWindowed{Windowed: &all[i], Rows: []DocumentWindowedRow{}}
		rows := x.Windowed.Rows
		if n >= 0 {
			rows = rows[:min(n, len(rows))]
		}
		for j := range rows {
			r := &rows[j]
			row := DocumentWindowedRow{Peak: r.Sample.PeakBytes, StepBytes: r.StepBytes, StepObjects: r.StepObjects,
				AllocBytes: r.Sample.AllocBytes, AllocObjects: r.Sample.AllocObjects, Life: r.Life, Outlived: r.Outlived}
			for _, l := range r.Sample.Frames() {
				row.Frames = append(row.Frames, l.Lines...)
			}
			x.Rows = append(x.Rows, row)
		}
		out = append(out, x)
	}
	return out
}
