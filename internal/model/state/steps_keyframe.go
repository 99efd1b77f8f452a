package state

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Keyframe yields records that say what is known of the steps, each valid until yield
// returns. They come after those that rebuild the tensors, and take the place of what
// was made of them. Loss starts afresh.
func (s *steps) Keyframe(yield func(*record.Steps)) {
	for id, t := range s.procs {
		n := &numbers{}
		n.uint(&s.asked)
		t.each(n)
		for from := 0; from < len(n.list); from += record.MaxNumbers {
			to := min(from+record.MaxNumbers, len(n.list))
			yield(&record.Steps{Process: id, Numbers: n.list[from:to], More: to < len(n.list)})
		}
	}
}

// rebuild takes what a keyframe says.
func (s *steps) rebuild(r *record.Steps) {
	s.chunks[r.Process] = append(s.chunks[r.Process], r.Numbers...)
	if r.More {
		return
	}
	t, n := newTraining(), &numbers{list: s.chunks[r.Process], reads: true}
	n.uint(&s.asked)
	t.each(n)
	s.add(r.Process, t)
	for device, d := range t.devices {
		for i := 0; t.ended != nil && i < len(d.kept()); i++ {
			t.ended(device, &d.kept()[i])
		}
	}
	s.loss = loss.New(stepCauses)
	delete(s.chunks, r.Process)
}

// Numbers are what a training is made of, one after the other: they are put there, or
// read from there. What is missing is 0.
type numbers struct {
	list  []uint64
	reads bool
}

func (n *numbers) uint(v *uint64) {
	switch {
	case !n.reads:
		n.list = append(n.list, *v)
	case len(n.list) == 0:
		*v = 0
	default:
		*v, n.list = n.list[0], n.list[1:]
	}
}

func (n *numbers) int(list ...*int64) {
	for _, v := range list {
		word := uint64(*v)<<1 ^ uint64(*v>>63)
		n.uint(&word)
		*v = int64(word>>1) ^ -int64(word&1)
	}
}

func (n *numbers) small(v *uint32) {
	word := uint64(*v)
	n.uint(&word)
	*v = uint32(word)
}

func (n *numbers) device(v *int32) {
	word := int64(*v)
	n.int(&word)
	*v = int32(word)
}

func (n *numbers) bool(v *bool) {
	word := uint64(0)
	if *v {
		word = 1
	}
	n.uint(&word)
	*v = word != 0
}

// count is how many things follow: no more than there are numbers.
func (n *numbers) count(length int) int {
	word := uint64(length)
	n.uint(&word)
	if n.reads {
		return int(min(word, uint64(len(n.list))))
	}
	return length
}

// listed has one called for each element of a slice that is put or read.
func listed[T any](n *numbers, list *[]T, one func(*T)) {
	for i := range n.count(len(*list)) {
		if n.reads {
			*list = append(*list, *new(T))
		}
		one(&(*list)[i])
	}
}

// mapped is listed, for a map.
func mapped[K comparable, V any](n *numbers, m map[K]V, one func(*K, *V)) {
	if n.reads {
		for range n.count(0) {
			var k K
			var v V
			one(&k, &v)
			m[k] = v
		}
		return
	}
	n.count(len(m))
	for k, v := range m {
		one(&k, &v)
	}
}

func (t *training) each(n *numbers) {
	listed(n, &t.waiting, func(m *move) {
		n.uint(&m.time)
		n.int(&m.bytes)
		n.uint(&m.stack)
		n.uint(&m.by)
		n.small(&m.thread)
		n.device(&m.device)
	})
	mapped(n, t.inside, func(thread *uint32, call *uint64) {
		n.small(thread)
		n.uint(call)
	})
	t.mark.each(n)
	mapped(n, t.others, func(c *calls, called *bool) {
		c.each(n)
		*called = true
	})
	for _, v := range []*uint64{&t.began, &t.count, &t.unsure, &t.older, &t.next} {
		n.uint(v)
	}
	n.bool(&t.doubt)
	mapped(n, t.devices, func(index *int32, d **deviceSteps) {
		if n.reads {
			*d = &deviceSteps{grows: map[uint64]*growth{}}
		}
		n.device(index)
		(*d).each(n)
		if n.reads {
			t.growing += len((*d).grows)
		}
	})
}

func (c *calls) each(n *numbers) {
	n.small(&c.thread)
	n.uint(&c.call)
}

func (d *deviceSteps) each(n *numbers) {
	n.int(&d.inuse)
	d.current.each(n)
	kept := d.kept()
	listed(n, &kept, func(s *trainStep) { s.each(n) })
	d.steps = kept
	total := trainStep{Moved: d.total}
	total.each(n)
	d.total = total.Moved
	mapped(n, d.grows, func(stack *uint64, g **growth) {
		if n.reads {
			*g = &growth{}
		}
		n.uint(stack)
		n.int(&(*g).now, &(*g).last, &(*g).next, &(*g).older)
		n.bool(&(*g).dirty)
		if n.reads && (*g).dirty {
			d.dirty = append(d.dirty, *stack)
		}
	})
}

func (s *trainStep) each(n *numbers) {
	for _, v := range []*uint64{&s.number, &s.begin, &s.end} {
		n.uint(v)
	}
	n.int(&s.AllocBytes, &s.AllocObjects, &s.FreedBytes, &s.FreedObjects, &s.PeakBytes, &s.InuseBytes)
}
