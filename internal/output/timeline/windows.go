package timeline

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// maxWindowed bounds the stacks of windows of all processes.
const maxWindowed = 1000

// windowedMeta are the tensors of a process on a GPU that were seen in windows.
type windowedMeta struct {
	Title   string     `json:"title"`
	About   string     `json:"about"`
	Columns []string   `json:"columns"`
	Cells   [][]string `json:"cells"`
	Rows    []int      `json:"rows"` // -1 for tensors from before the window
	LeftOut int        `json:"left_out"`
}

// windowed adds the tensors that were seen in windows.
func (d *document) windowed(s *snapshot.Snapshot) {
	s, room := s.ByRank(), maxWindowed
	for i := range s.Windowed {
		x := &s.Windowed[i]
		m := windowedMeta{Title: web.Clean(processText(x.Process, x.PID) + " on GPU " + x.GPU + ": of " + s.Meta.Windows.String()), About: render.WindowPeak(x), Columns: render.WindowColumns(x)}
		if x.Before != 0 {
			m.Cells, m.Rows = append(m.Cells, render.BeforeCells(x)), append(m.Rows, -1)
		}
		shown := x.Rows[:min(room, len(x.Rows))]
		for j := range shown {
			m.Cells, m.Rows = append(m.Cells, render.WindowCells(x, &shown[j])), append(m.Rows, d.row(&shown[j].Sample))
		}
		room, m.LeftOut = room-len(shown), len(x.Rows)-len(shown)
		d.meta.Windowed = append(d.meta.Windowed, m)
	}
}
