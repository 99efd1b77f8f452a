package timeline

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// changes are those of rows, as the page reads them.
type changes struct {
	d                          *document
	times, counts, rows, bytes column
	time                       uint64 // of the last instant

	touched []*account
	by      []delta // of the instant that is being made
}

// changes makes the changes of rows of those of leaves.
func (d *document) changes() *changes {
	c := &changes{d: d, times: column{sum: true}, counts: column{sum: true}, bytes: column{sign: true}}
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
				c.take(delta{older[0].leaf, older[0].bytes})
			}
			c.end(now)
		}
	}
	for x := range d.w.stream.log.all {
		before(x.time)
		for _, one := range x.by {
			c.take(one)
		}
		c.end(x.time)
	}
	before(never)
	return c
}

// take takes what a leaf became more by.
func (c *changes) take(one delta) {
	if a := c.d.of[one.leaf]; a != nil {
		a.take(c.d.w.leaves[one.leaf].role, one.bytes)
		if !a.touched {
			a.touched = true
			c.touched = append(c.touched, a)
		}
	}
	if row := c.d.rows[one.leaf]; row >= 0 {
		c.by = append(c.by, delta{int32(row), one.bytes})
	}
}

// end ends the instant of a time.
func (c *changes) end(time uint64) {
	for _, a := range c.touched {
		a.touched = false
		rounding, unused, before := a.parts()
		c.part(a, &a.rounding, &a.shownRounding, rounding, state.LineRounding)
		c.part(a, &a.unused, &a.shownUnused, unused, "[pool]")
		c.part(a, &a.before, &a.shownBefore, before, a.beforeName())
	}
	c.touched = c.touched[:0]
	if by := sum(c.by); len(by) > 0 {
		t := c.d.since(time)
		c.times.unsigned(t - c.time)
		c.counts.unsigned(uint64(len(by)))
		for _, x := range by {
			c.rows.unsigned(uint64(x.leaf))
			c.bytes.signed(x.bytes)
		}
		c.time = t
	}
	c.by = c.by[:0]
}

// part adds the change of a part of an account.
func (c *changes) part(a *account, row *int, shown *int64, bytes int64, name string) {
	if bytes == *shown {
		return
	}
	if *row == 0 {
		x := snapshot.Sample{Stack: []*snapshot.Location{named(name)}, Labels: snapshot.Labels{Kind: event.KindDriver.String(), GPU: a.gpu, Owner: "cuda", Process: c.d.w.names[a.proc], PID: int(a.proc.PID)}}
		*row = c.d.row(&x) + 1
	}
	c.by = append(c.by, delta{int32(*row - 1), bytes - *shown})
	*shown = bytes
}

// blocks returns for each instant the time since the one before and the number of its
// deltas; and for each delta its row, and its bytes.
func (c *changes) blocks() ([]block, error) {
	times, err := packed("times", &c.times, &c.counts)
	if err != nil {
		return nil, err
	}
	rows, err := packed("rows", &c.rows)
	if err != nil {
		return nil, err
	}
	bytes, err := packed("bytes", &c.bytes)
	return []block{times, bytes, rows}, err
}
