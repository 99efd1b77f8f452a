package render

import (
	"fmt"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// BeforeWindow names the tensors of a window that it did not see made.
const BeforeWindow = "[tensors from before the window]"

// WindowPeak says what the peak in windows is of, and what was held then.
func WindowPeak(x *snapshot.Windowed) string {
	of := "At the peak of a training step"
	if !x.WholeStep {
		of = "No window had a whole training step: either a step takes longer than a window, or nothing marks steps. At the highest moment"
	}
	held, steps := "", ""
	if x.Steps > 0 {
		steps = ", with " + bytefmt.Counted(x.Steps, "whole step")
	}
	if x.Reserved > 0 {
		held = fmt.Sprintf(", of %s that the allocator held", bytefmt.Format(x.Reserved))
	}
	return fmt.Sprintf("%s: %s in tensors%s. Seen: %v%s. How long tensors lived is of those that were freed in their window.", of,
		bytefmt.Format(x.Peak), held, x.Time.Round(time.Millisecond), steps)
}

// WindowColumns are the titles of WindowCells.
func WindowColumns(x *snapshot.Windowed) []string {
	return []string{"AT PEAK", "ALLOCATED A " + x.Per(), "TENSORS A " + x.Per(), "LIVED", "OUTLIVED A WINDOW"}
}

// WindowCells has the figures of a row of x.
func WindowCells(x *snapshot.Windowed, r *snapshot.WindowedRow) []string {
	bytes, objects := x.Share(r)
	life := ""
	if r.Freed > 0 {
		digits := 10 * time.Microsecond
		if r.MeanLife() > time.Second {
			digits = time.Millisecond
		}
		life = r.MeanLife().Round(digits).String()
	}
	return []string{bytefmt.Format(r.Sample.PeakBytes), bytefmt.Format(int64(bytes)), fmt.Sprintf("%.1f", objects), life, bytefmt.SomeCount(r.Outlived)}
}

// BeforeCells has the figures of BeforeWindow.
func BeforeCells(x *snapshot.Windowed) []string {
	return []string{bytefmt.Format(x.Before), "", "", "", ""}
}
