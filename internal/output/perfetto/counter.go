package perfetto

// A counter is a track of bytes over time. It has the lowest, the highest and the last value
// of each interval, each with its time, so that peaks are exact.
type counter struct {
	uuid  uint64
	value int64
	dirty bool

	interval       uint64
	some           bool // the interval has a point
	low, high, end point
}

type point struct {
	time  uint64
	value int64
}

// add adds a point at a time of an interval, which is no earlier than the one before.
func (c *counter) add(w *writer, interval, time uint64) {
	c.dirty = false
	p := point{time, c.value}
	if c.some && c.interval != interval {
		c.flush(w)
	}
	if !c.some {
		c.some, c.interval, c.low, c.high, c.end = true, interval, p, p, p
		return
	}
	if c.end.value == p.value {
		return
	}
	if p.value < c.low.value {
		c.low = p
	}
	if p.value > c.high.value {
		c.high = p
	}
	c.end = p
}

// flush writes the points of the interval, in the order of their times.
func (c *counter) flush(w *writer) {
	if !c.some {
		return
	}
	c.some = false
	first, second := c.low, c.high
	if second.time < first.time {
		first, second = second, first
	}
	last := point{}
	for i, p := range []point{first, second, c.end} {
		if i == 0 || p != last {
			w.value(c.uuid, p.time, p.value)
		}
		last = p
	}
}
