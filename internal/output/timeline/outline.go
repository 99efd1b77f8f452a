package timeline

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/series"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
)

// An Outline is a curve that the page draws over its own, of memory on a GPU: that of another
// run, or what a run is predicted to hold.
type Outline struct {
	Name  string
	Place string // as the page names it, such as "GPU 0"
	// Process is set if the curve stands for the segments that PyTorch has in this process on
	// Device, its own number of the GPU. Place is then not set, and the page adds whatever
	// else the GPU held.
	Process event.Process
	Device  int32
	Curve   series.Curve // since the trace began, in nanoseconds
	End     uint64       // how long the other run took, in nanoseconds, 0 for as long as this one
}

// Outlines returns the curve of each GPU in the recording at path.
func Outlines(path, name string, play replay.Options) ([]Outline, error) {
	d, err := collect(path, Options{Play: play}, loss.New(causes))
	if err != nil {
		return nil, err
	}
	var out []Outline
	var sums []int64
	c := newChanges(d)
	c.instant = func(time uint64, by []series.Delta) {
		for _, x := range by {
			place := d.meta.Rows.Place[x.Line]
			for i := len(out); i < len(d.meta.Places); i++ {
				out, sums = append(out, Outline{Name: name, Place: d.meta.Places[i].Name, End: d.meta.End}), append(sums, 0)
			}
			sums[place] += x.Bytes
		}
		for i := range out {
			if d.meta.Places[i].GPU {
				out[i].Curve.Add(time, sums[i])
			}
		}
	}
	c.run()
	return slices.DeleteFunc(out, func(o Outline) bool { return o.Curve.Empty() }), nil
}

// outlineMeta is an Outline as the page reads it.
type outlineMeta struct {
	Name    string   `json:"name"`
	Place   int      `json:"place"`
	Process int      `json:"process"` // whose segments it stands for, negative for a whole GPU
	Times   []uint64 `json:"times"`
	Bytes   []int64  `json:"bytes"`
	End     uint64   `json:"end"`
}

// outline adds a curve, if the page has the GPU that it is of.
func (d *document) outline(o *Outline) {
	m := outlineMeta{Name: web.Clean(o.Name), Place: -1, Process: -1, End: o.End}
	for time, bytes := range o.Curve.All {
		m.Times, m.Bytes = append(m.Times, time), append(m.Bytes, bytes)
	}
	if o.Process != (event.Process{}) {
		m.Process = d.meta.Text(processText(d.w.names[o.Process], int(o.Process.PID)))
	}
	for i := range d.w.leaves {
		row := d.rows[i]
		if l := &d.w.leaves[i]; row >= 0 && l.cached && l.key.Proc == o.Process && l.key.Device == o.Device {
			m.Place = d.meta.Rows.Place[row]
			break
		}
	}
	for i, p := range d.meta.Places {
		if m.Process < 0 && p.Name == o.Place {
			m.Place = i
		}
	}
	if m.Place >= 0 {
		d.meta.Outlines = append(d.meta.Outlines, m)
	}
}

// processText names a process, as the page shows it.
func processText(name string, pid int) string { return fmt.Sprintf("%s (%d)", cmp.Or(name, "?"), pid) }
