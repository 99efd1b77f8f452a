package timeline

import (
	"cmp"
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
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
	Points  Points
	End     uint64 // how long the other run took, in nanoseconds, 0 for as long as this one
}

// Points are sizes in bytes, each from a time on, in nanoseconds since the trace began. Where
// there would be too many, two neighbours become one, which has the larger size. The zero
// value is empty.
type Points struct {
	Times []uint64
	Bytes []int64

	each, open int // points that were added for one that is there, and for the last
}

// maxPoints bounds the points of an outline: twice as many as a chart has pixels.
const maxPoints = 4096

// Add adds a point, no earlier than the one before.
func (p *Points) Add(time uint64, bytes int64) {
	if n := len(p.Bytes); p.open > 0 && p.open < p.each {
		p.Bytes[n-1] = max(p.Bytes[n-1], bytes)
		p.open++
		return
	}
	if len(p.Times) == maxPoints {
		for i := range maxPoints / 2 {
			p.Times[i], p.Bytes[i] = p.Times[2*i], max(p.Bytes[2*i], p.Bytes[2*i+1])
		}
		p.Times, p.Bytes = p.Times[:maxPoints/2], p.Bytes[:maxPoints/2]
		p.each *= 2
	}
	p.each, p.open = max(p.each, 1), 1
	p.Times, p.Bytes = append(p.Times, time), append(p.Bytes, bytes)
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
	c.instant = func(time uint64, by []delta) {
		for _, x := range by {
			place := d.meta.Rows.Place[x.leaf]
			for i := len(out); i < len(d.meta.Places); i++ {
				out, sums = append(out, Outline{Name: name, Place: d.meta.Places[i].Name, End: d.meta.End}), append(sums, 0)
			}
			sums[place] += x.bytes
		}
		for i := range out {
			if n := len(out[i].Points.Bytes); d.meta.Places[i].GPU && (n == 0 || sums[i] != out[i].Points.Bytes[n-1]) {
				out[i].Points.Add(time, sums[i])
			}
		}
	}
	c.run()
	kept := out[:0]
	for _, o := range out {
		if len(o.Points.Times) > 0 {
			kept = append(kept, o)
		}
	}
	return kept, nil
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
	m := outlineMeta{Name: web.Clean(o.Name), Place: -1, Process: -1, Times: o.Points.Times, Bytes: o.Points.Bytes, End: o.End}
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
