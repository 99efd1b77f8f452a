package timeline

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/series"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// changes are those of rows, as the page reads them.
type changes struct {
	d                          *document
	times, counts, rows, bytes column
	time                       uint64 // of the last instant

	touched []*account
	by      []series.Delta                       // of the instant that is being made
	instant func(time uint64, by []series.Delta) // if set, gets each instant instead of the columns
}

func newChanges(d *document) *changes {
	return &changes{d: d, times: column{sum: true}, counts: column{sum: true}, bytes: column{sign: true}}
}

// changes turns the changes of leaves into changes of rows.
func (d *document) changes() *changes {
	c := newChanges(d)
	c.run()
	return c
}

func (c *changes) run() {
	d := c.d
	for _, a := range d.of {
		if a != nil {
			a.reset()
		}
	}
	older := slices.Clone(d.w.older)
	slices.SortStableFunc(older, func(a, b olderBytes) int { return cmp.Compare(a.time, b.time) })
	before := func(time uint64) {
		for len(older) > 0 && older[0].time <= time {
			now := max(older[0].time, d.begin)
			for ; len(older) > 0 && max(older[0].time, d.begin) == now; older = older[1:] {
				c.add(series.Delta{Line: older[0].leaf, Bytes: older[0].bytes})
			}
			c.end(now)
		}
	}
	for x := range d.w.stream.All {
		before(x.Time)
		for _, one := range x.By {
			c.add(one)
		}
		c.end(x.Time)
	}
	before(never)
}

// add adds what a leaf became more by.
func (c *changes) add(one series.Delta) {
	if a := c.d.of[one.Line]; a != nil {
		a.held[c.d.w.leaves[one.Line].role] += one.Bytes
		if !a.touched {
			a.touched = true
			c.touched = append(c.touched, a)
		}
	}
	if row := c.d.rows[one.Line]; row >= 0 {
		c.by = append(c.by, series.Delta{Line: int32(row), Bytes: one.Bytes})
	}
}

// end ends the instant of a time.
func (c *changes) end(time uint64) {
	for _, a := range c.touched {
		a.touched = false
		for part, bytes := range a.parts() {
			c.part(a, part, bytes)
		}
	}
	c.touched = c.touched[:0]
	switch by := series.Sum(c.by); {
	case len(by) == 0:
	case c.instant != nil:
		c.instant(c.d.since(time), by)
	default:
		t := c.d.since(time)
		c.times.unsigned(t - c.time)
		c.counts.unsigned(uint64(len(by)))
		for _, x := range by {
			c.rows.unsigned(uint64(x.Line))
			c.bytes.signed(x.Bytes)
		}
		c.time = t
	}
	c.by = c.by[:0]
}

// part adds the change of a part of an account.
func (c *changes) part(a *account, part int, bytes int64) {
	more := bytes - a.shown[part]
	if more == 0 {
		return
	}
	if a.rows[part] == 0 {
		x := snapshot.Sample{Stack: []*snapshot.Location{named(a.partName(part))}, Labels: snapshot.Labels{Kind: event.KindDriver.String(), GPU: a.gpu, Owner: "cuda", Process: c.d.w.names[a.proc], PID: int(a.proc.PID)}}
		a.rows[part] = c.d.row(&x) + 1
	}
	c.by = append(c.by, series.Delta{Line: int32(a.rows[part] - 1), Bytes: more})
	a.shown[part] = bytes
}

// blocks returns for each instant the time since the one before and the number of its
// deltas; and for each delta its row, and its bytes.
func (c *changes) blocks() []block {
	return []block{packed("times", &c.times, &c.counts), packed("bytes", &c.bytes), packed("rows", &c.rows)}
}
