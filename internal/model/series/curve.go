package series

// maxPoints bounds the points of a Curve: twice as many as a chart has pixels.
const maxPoints = 4096

// A Curve is a Stream of one line. The zero value is empty: nothing is held.
type Curve struct {
	stream *Stream
	bytes  int64 // of the last point
}

// Add adds what is held from a time on, no earlier than the one before.
func (c *Curve) Add(time uint64, bytes int64) {
	if bytes == c.bytes {
		return
	}
	if c.Empty() {
		c.stream = New(maxPoints, func(int32) int { return 0 })
	}
	c.stream.Add(time, []Delta{{0, bytes - c.bytes}})
	c.bytes = bytes
}

// Empty reports whether nothing was ever held.
func (c *Curve) Empty() bool { return c.stream == nil }

// All yields the points: bytes, each from a time on.
func (c *Curve) All(yield func(time uint64, bytes int64) bool) {
	if c.Empty() {
		return
	}
	c.stream.Finish()
	sum := int64(0)
	for x := range c.stream.All {
		for _, d := range x.By {
			sum += d.Bytes
		}
		if !yield(x.Time, sum) {
			return
		}
	}
}
