package whatif

import (
	"math"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/whatif/allocator"
)

// A curve has the coefficients of a size in bytes.
type curve [3]float64

func (c curve) at(n float64) uint64 {
	return uint64(max(0, c[0]+c[1]*n+c[2]*n*n))
}

// A block is what a tensor's request has as far as Run.refine knows, and by how many units it may be
// smaller or larger than that.
type block struct {
	units, spare, above uint32
}

func (b block) exact() bool { return b.spare == 0 && b.above == 0 }

// request returns between which sizes in bytes the request was.
func (b block) request() (low, high uint64) {
	return uint64(b.units-min(b.spare, b.units)) * unit, uint64(b.units+b.above) * unit
}

// blocks returns the block of each tensor.
func (x *Run) blocks() []block {
	out := make([]block, len(x.Addresses))
	for i := range x.Requests {
		if q := &x.Requests[i]; q.Op == allocator.Make {
			above := uint32(0)
			if int(q.Tensor) < len(x.Above) {
				above = uint32(x.Above[q.Tensor])
			}
			out[q.Tensor] = block{q.Units, x.spare(q.Tensor), above}
		}
	}
	return out
}

// A point is the block that a tensor has in the run at a number.
type point struct {
	at float64
	block
}

func (p point) bytes() float64 { return float64(p.units) * unit }

// allows reports whether a request of so many bytes has such a block.
func (p point) allows(request float64) bool {
	over := p.bytes() - request
	return over > -float64(p.above+1)*unit && over < float64(p.spare+1)*unit
}

// over returns by how many bytes the blocks of points differ from the requests of a curve, and false if
// requests have other blocks.
func (c curve) over(points []point) (bytes float64, ok bool) {
	for _, p := range points {
		request := c[0] + c[1]*p.at
		if !p.allows(request) {
			return 0, false
		}
		bytes += min(math.Abs(p.bytes()-request), math.Abs(p.bytes()+float64(p.above)*unit-request))
	}
	return bytes, true
}

// through returns the simplest curve whose requests have the blocks of points, which are in the
// order of their numbers: a constant or a multiple of the number, whichever the blocks exceed by
// less, a line, or else the parabola through the last three.
func through(points []point) curve {
	n := len(points)
	// best returns the curve of one coefficient whose requests are nearest to the blocks: the request of
	// one of them, or a whole block.
	best := func(coefficient func(bytes, at float64) curve) (c curve, least float64, ok bool) {
		for _, p := range slices.Backward(points) {
			for _, bytes := range []float64{p.bytes(), p.bytes() + float64(p.above)*unit} {
				candidate := coefficient(bytes, p.at)
				if over, allowed := candidate.over(points); allowed && (!ok || over < least) {
					c, least, ok = candidate, over, true
				}
			}
		}
		return c, least, ok
	}
	line := func(a, b point) curve {
		slope := (b.bytes() - a.bytes()) / (b.at - a.at)
		return curve{a.bytes() - slope*a.at, slope}
	}
	constant, over, ok := best(func(bytes, _ float64) curve { return curve{bytes} })
	multiple, more, also := best(func(bytes, at float64) curve { return curve{0, bytes / at} })
	switch {
	case ok && (!also || over <= more):
		return constant
	case also:
		return multiple
	}
	for j := range points {
		for i := range j {
			c := line(points[i], points[j])
			if _, ok := c.over(points); ok {
				return c
			}
		}
	}
	a, b, c := points[n-3], points[n-2], points[n-1]
	before, after := line(a, b)[1], line(b, c)[1]
	bend := (after - before) / (c.at - a.at)
	return curve{a.bytes() - before*a.at + bend*a.at*b.at, before - bend*(a.at+b.at), bend}
}

// spare returns by how many units the request of the last point may be smaller than the curve says,
// which is through the points: by what every block has to spare.
func (c curve) spare(points []point) uint32 {
	last := points[len(points)-1]
	least := math.Inf(-1)
	for _, p := range points {
		if p.exact() {
			return 0
		}
		n := p.bytes() - float64(p.spare)*unit
		if c[0] == 0 {
			n *= last.at / p.at
		}
		least = max(least, n)
	}
	return uint32(max(0, float64(c.at(last.at))-least) / unit)
}
