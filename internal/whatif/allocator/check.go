package allocator

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A Check says how well settings reproduce a run.
type Check struct {
	Result
	Made     int // tensors
	Same     int // that came to lie where PyTorch placed them
	Reserved int // requests after which as much was reserved as PyTorch held
	Streams  int // that were told apart
	Pools    int // private ones that tensors are of
	// Of the others: PyTorch passed over a free block that would have served (Passed), used a
	// block that these settings keep for other sizes (Kept), or memory that was not free (Taken).
	Passed, Kept, Taken int
	// First is the first request whose tensor came to lie elsewhere, -1 for none.
	First int
}

// maxRounds bounds how often Check looks for streams.
const maxRounds = 8

// Check runs the requests under the settings of the run itself and compares where each
// tensor comes to lie. In doing so it tells streams apart, or private pools if it knows the
// streams: PyTorch never serves one from another one's segment. So where PyTorch passed over
// a free block that would have served, that block's segment is of another one than the
// segment that it used. The requests keep those that reproduce the run best.
func (r *Run) Check(own Settings) Check {
	if own.Expandable {
		own.Memory = r.memory(own.Memory)
	}
	best, found := Check{Same: -1}, map[uint64]uint8{}
	numbers, last := found, false // the numbers of best are those of the last comparison
	var pairs []pair
	var c *comparison
	for range maxRounds {
		c = r.compare(own, numbers)
		if last = c.check.Same > best.Same; last {
			best, found = c.check, numbers
		}
		known := len(pairs)
		for _, p := range c.pairs {
			if !slices.Contains(pairs, p) {
				pairs = append(pairs, p)
			}
		}
		if len(pairs) == known {
			break
		}
		numbers = together(c.order, pairs, c.follow)
	}
	if r.Exact && len(found) > 0 {
		c = r.compare(own, c.pools(found))
		if last = c.check.Same >= best.Same; last {
			best = c.check
		}
	}
	if !last {
		r.compare(own, found)
	}
	var pools [256]bool
	for i := range r.Requests {
		q := &r.Requests[i]
		best.Streams = max(best.Streams, int(q.Stream)+1)
		if q.Private > 0 && !pools[q.Private] {
			pools[q.Private] = true
			best.Pools++
		}
	}
	return best
}

// between is more than lies between two tensors of an expandable segment, and less than
// such a segment has addresses, in bytes.
const between = 4 << 30

// memory returns what CUDA provides of the GPU's memory, in bytes, as expandable segments show it by
// the addresses that they have. If there are fewer than two it returns what is known, 0 for nothing:
// NVML's figure is larger by up to 1 %, so that a segment would reach into the next one.
func (r *Run) memory(known uint64) uint64 {
	addresses := slices.Clone(r.Addresses)
	slices.Sort(addresses)
	var first, last, least uint64
	for _, at := range addresses {
		switch {
		case at == 0: // of a request that failed
			continue
		case first == 0:
			first = at
		case at-last > between && at-first > known:
			if n := at - first; least == 0 || n < least {
				least = n
			}
			first = at
		}
		last = at
	}
	if seen := least / 9 * 8; known == 0 || least > 0 && seen < known {
		return seen
	}
	return known
}

// A pair is two segments of different streams, by name.
type pair struct{ passed, used uint64 }

// A succession is two segments that served one request after the other.
type succession struct{ before, after uint64 }

// An origin is a segment by name, with its stream and private pool.
type origin struct {
	name            uint64
	stream, private uint8
}

// A place is where requests come from that are of one private pool, if streams are known.
type place struct {
	stack  uint32
	stream uint8
}

// maxPairs bounds the pairs that one comparison finds.
const maxPairs = 1 << 12

// together gives segments that are of one stream the same number, as far as it can be told: those
// of a pair have different ones, and of the others those have the same that served one request
// after the other, most often first. A program seldom changes its stream between two requests. Those
// that come first have the lowest numbers: no program begins with a private pool.
func together(first []origin, pairs []pair, follow map[succession]int) map[uint64]uint8 {
	if len(pairs) == 0 {
		return nil
	}
	group := map[uint64]uint64{} // one of its segments, by segment
	apart := map[uint64]map[uint64]bool{}
	of := func(x uint64) uint64 {
		for {
			y, ok := group[x]
			if !ok || y == x {
				return x
			}
			x = y
		}
	}
	var order []uint64
	add := func(x uint64) {
		if apart[x] == nil {
			apart[x] = map[uint64]bool{}
			order = append(order, x)
		}
	}
	for _, s := range first {
		add(s.name)
	}
	for _, p := range pairs {
		add(p.passed)
		add(p.used)
		apart[p.passed][p.used] = true
		apart[p.used][p.passed] = true
	}
	uses := map[uint64]int{}
	for f, n := range follow {
		uses[f.after] += n
	}
	// What serves only the last request before a change of the stream follows one segment as often
	// as another one follows it. It is of the stream of the former: results are larger than inputs.
	follows := sorting.Keys(follow, func(a, b succession) int {
		return cmp.Or(cmp.Compare(follow[b], follow[a]), cmp.Compare(uses[a.after], uses[b.after]), cmp.Compare(a.after, b.after), cmp.Compare(a.before, b.before))
	})
	for _, f := range follows {
		add(f.before)
		add(f.after)
		a, b := of(f.before), of(f.after)
		if a == b || apart[a][b] {
			continue
		}
		group[b] = a
		for x := range apart[b] {
			delete(apart[x], b)
			apart[x][a] = true
			apart[a][x] = true
		}
	}
	// Of groups that may be of one stream, each has the lowest number that it can have.
	numbers := map[uint64]uint8{}
	for _, x := range order {
		g := of(x)
		if _, ok := numbers[g]; ok {
			continue
		}
		var taken [256]bool
		for y := range apart[g] {
			if n, ok := numbers[y]; ok {
				taken[n] = true
			}
		}
		numbers[g] = uint8(max(slices.Index(taken[:], false), 0))
	}
	streams := map[uint64]uint8{}
	for _, x := range order {
		streams[x] = numbers[of(x)]
	}
	return streams
}

// pools gives private pools of which no more is known the numbers of those that are known, if these
// served requests before and after theirs on the same stream, most often first.
func (c *comparison) pools(numbers map[uint64]uint8) map[uint64]uint8 {
	type group struct{ stream, number uint8 }
	of, known := map[uint64]group{}, map[uint64]uint8{}
	for _, s := range c.order {
		if n := numbers[s.name]; n > 0 && s.private == -n {
			of[s.name] = group{s.stream, n}
		} else {
			known[s.name] = s.private
		}
	}
	votes := map[group]*[256]int{}
	for f, n := range c.follow {
		for _, f := range []succession{f, {f.after, f.before}} {
			if g, k := of[f.before], known[f.after]; g.number > 0 && k > 0 {
				keyed.At(votes, g)[k] += n
			}
		}
	}
	out := map[uint64]uint8{}
	for name, g := range of {
		out[name] = g.number
		if v := votes[g]; v != nil {
			out[name] = -uint8(slices.Index(v[:], slices.Max(v[:])))
		}
	}
	return out
}

// A comparison runs requests beside what PyTorch did. Where the two differ it follows
// PyTorch, so that one difference does not cause others.
type comparison struct {
	*Allocator
	run      *Run
	numbers  map[uint64]uint8  // of streams, or of private pools, by the name of a segment
	begun    map[uint64]uint64 // how many segments began at an address
	segments []*Segment        // by address
	blocks   []*Block          // by tensor
	pairs    []pair
	follow   map[succession]int // how often two segments served one request after the other
	order    []origin           // segments by age, if numbers are of private pools
	last     map[place]uint64   // the segment of the request before
	check    Check
}

// compare runs the requests under settings, with the numbers of streams, or of private pools, that
// segments are of.
func (r *Run) compare(own Settings, numbers map[uint64]uint8) *comparison {
	c := &comparison{Allocator: New(own), run: r, numbers: numbers, blocks: make([]*Block, len(r.Addresses)), follow: map[succession]int{}, last: map[place]uint64{}, begun: map[uint64]uint64{}}
	c.check = Check{Result: Result{Failed: -1}, First: -1}
	if len(r.Spare) != len(r.Addresses) {
		r.Spare = make([]uint16, len(r.Addresses))
	}
	r.held = slices.Clone(r.Held)
	for i := range r.held {
		h := &r.held[i]
		h.Stream, h.Private = c.of(h.Address, h.Stream, h.Private)
	}
	for _, s := range c.hold(r.held, c.blocks) {
		c.insertSegment(s)
	}
	for i := range r.Requests {
		q := &r.Requests[i]
		switch q.Op {
		case Empty:
			c.emptied(i)
		case Free:
			if b := c.blocks[q.Tensor]; b != nil {
				c.Free(b)
				c.blocks[q.Tensor] = nil
			}
		case Make:
			if q.Is(Lacked) { // PyTorch had given back all that it could
				q.Private = r.pool(q.Tensor)
				c.EmptyCache()
				continue
			}
			c.check.Made++
			if c.make(q) {
				c.check.Same++
			} else if c.check.First < 0 {
				c.check.First = i
			}
		}
		if c.Allocator.Reserved == uint64(r.Reserved[i])*unit {
			c.check.Reserved++
		}
		c.check.note(i, c.Allocator)
	}
	c.check.Segments = c.Allocator.Segments
	return c
}

// emptied gives back what PyTorch gave back before the next request. A private pool gives its
// memory back when it has ended, which a recording does not tell: it shows how much was given
// back in all.
func (c *comparison) emptied(i int) {
	q := &c.run.Requests[i]
	q.Flags = 0
	after := uint64(c.run.Reserved[i]) * unit
	for _, of := range []Flags{0, OfEnded | OfEndedAlone, OfEnded} {
		left := c.Allocator.Reserved
		c.unused(of, func(_ *Block, bytes uint64) { left -= bytes })
		if left <= after && i+1 < len(c.run.Requests) && c.mayGrow(&c.run.Requests[i+1], after-left) {
			q.Flags = of
			break
		}
	}
	c.empty(q.Flags)
}

// mayGrow reports whether so many bytes may have been asked of CUDA for one request.
func (c *comparison) mayGrow(q *Request, bytes uint64) bool {
	if q.Op != Make {
		return bytes == 0
	}
	size := c.round(uint64(q.Units) * unit)
	p := c.pool(poolKey{c.run.pool(q.Tensor), 0, size <= smallRequest})
	if !c.expands(p) {
		return bytes == 0 || bytes == c.Settings.segment(size)
	}
	piece := c.piece(p)
	return bytes%piece == 0 && bytes < size+piece
}

// make places one tensor where PyTorch placed it, and returns whether settings would have
// placed it there.
func (c *comparison) make(q *Request) bool {
	size, at := c.round(uint64(q.Units)*unit), c.run.Addresses[q.Tensor]
	home := c.segment(at)
	stream := uint8(0)
	if c.run.Exact {
		stream = c.run.Streams[q.Tensor]
	}
	q.Stream, q.Private = c.of(c.name(at), stream, c.run.pool(q.Tensor))
	if home != nil {
		q.Stream, q.Private = c.of(home.name, stream, home.first.pool.key.private)
	}
	p := c.pool(poolKey{q.Private, q.Stream, size <= smallRequest})
	b := c.find(p, size)
	passed := b != nil
	if b == nil && q.Is(Refused) {
		// PyTorch gave back what it had cached before it asked CUDA again.
		if !c.releaseLarge(p, size) {
			c.EmptyCache()
		}
		home = c.segment(at)
	}
	if b == nil && (home == nil || c.expands(p)) {
		b = c.take(p, size, at)
	}
	if b != nil && b.Address == at {
		c.use(q, b, size)
		return true
	}
	if b != nil {
		c.insert(b)
		other := c.name(at)
		if home != nil {
			other = home.name
		}
		if b.segment.name != other && len(c.pairs) < maxPairs {
			c.pairs = append(c.pairs, pair{b.segment.name, other})
		}
	}
	if passed {
		c.check.Passed++
	}
	if home == nil {
		if c.expands(p) {
			c.place = at
			c.insertSegment(c.addExpandable(p).segment)
		}
		if b = c.take(p, size, at); b != nil && b.Address == at {
			c.use(q, b, size)
		}
		return false
	}
	for b = home.first; b != nil && b.Address < at; {
		b = b.next
	}
	if b != nil && b.Address == at && b.free && b.mapped && b.Size >= size {
		b.remove()
		c.use(q, b, size)
		if !passed {
			c.check.Kept++
		}
	} else if !passed {
		c.check.Taken++
	}
	return false
}

// of returns the stream and the private pool of a segment by its name, and what is known of them.
// Private pools of which no more is known have numbers from the highest one down.
func (c *comparison) of(segment uint64, stream, private uint8) (uint8, uint8) {
	switch n := c.numbers[segment]; {
	case !c.run.Exact:
		return n, private
	case private == 0:
		return stream, -n
	}
	return stream, private
}

// take makes a block of new memory at an address.
func (c *comparison) take(p *pool, size, at uint64) *Block {
	c.place = at
	b := c.grow(p, size)
	c.place = 0
	if b != nil {
		c.insertSegment(b.segment)
	}
	return b
}

func (c *comparison) insertSegment(s *Segment) {
	i, found := c.search(s.Address)
	switch {
	case !found:
		c.segments = slices.Insert(c.segments, i, s)
	case c.segments[i] == s:
		return
	default:
		c.segments[i] = s
	}
	s.name = c.name(s.Address)
	c.begun[s.Address]++
	if k := s.first.pool.key; c.run.Exact {
		c.order = append(c.order, origin{s.name, k.stream, k.private})
	}
}

// name tells the next segment at an address from those that were there before, in the bits that are
// zero in the address of a segment.
func (c *comparison) name(at uint64) uint64 { return at + c.begun[at] }

func (c *comparison) use(q *Request, b *Block, size uint64) {
	c.run.Spare[q.Tensor] = 0
	if b.Size == size && !c.Expandable && size > smallRequest && !c.run.Exact {
		c.run.Spare[q.Tensor] = c.spare(b)
	}
	c.cut(b, size)
	b.free = false
	c.Allocated += b.Size
	c.blocks[q.Tensor] = b
	at, of := b.segment.name, place{}
	if c.run.Exact {
		of.stream = q.Stream
		if int(q.Tensor) < len(c.run.Stacks) {
			of.stack = c.run.Stacks[q.Tensor]
		}
	}
	if last := c.last[of]; last != at && last != 0 {
		c.follow[succession{last, at}]++
	}
	c.last[of] = at
}

// spare returns by how many units a block that was not cut may exceed the request: a smaller one
// that was free did not serve it.
func (c *comparison) spare(b *Block) (spare uint16) {
	spare = smallRequest / unit
	if c.MaxSplit > 0 {
		return spare
	}
	b.pool.free.DescendLessOrEqual(&Block{Size: b.Size - 1, Address: top}, func(o *Block) bool {
		spare = uint16(min(uint64(spare), (b.Size-o.Size)/unit-1))
		return false
	})
	return spare
}

func (c *comparison) search(at uint64) (int, bool) {
	return slices.BinarySearchFunc(c.segments, at, func(s *Segment, at uint64) int {
		switch {
		case s.Address < at:
			return -1
		case s.Address > at:
			return 1
		}
		return 0
	})
}

// segment returns the segment that an address lies in, nil for none.
func (c *comparison) segment(at uint64) *Segment {
	i, found := c.search(at)
	if !found {
		i--
	}
	for i >= 0 && c.segments[i].first == nil { // it was given back
		c.segments = slices.Delete(c.segments, i, i+1)
		i--
	}
	if i < 0 || at-c.segments[i].Address >= c.segments[i].Size {
		return nil
	}
	return c.segments[i]
}
