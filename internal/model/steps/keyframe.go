package steps

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Keyframe yields records that rebuild the Tracker. A record is valid until yield returns.
// They must be applied after the records that rebuild the tensors, because they replace the
// Tracker that those lead to. Losses start at zero.
func (t *Tracker) Keyframe(yield func(*record.Steps)) {
	for id, p := range t.processes {
		n := &numbers{}
		n.uint(&t.lossTime)
		p.visit(n)
		for from := 0; from < len(n.list); from += record.MaxNumbers {
			to := min(from+record.MaxNumbers, len(n.list))
			yield(&record.Steps{Process: id, Numbers: n.list[from:to], More: to < len(n.list)})
		}
	}
}

// Restore applies a record of a keyframe.
func (t *Tracker) Restore(r *record.Steps) {
	t.restoring[r.Process] = append(t.restoring[r.Process], r.Numbers...)
	if r.More {
		return
	}
	p, n := newProcess(), &numbers{list: t.restoring[r.Process], reading: true}
	n.uint(&t.lossTime)
	p.visit(n)
	t.add(r.Process, p)
	for index, d := range p.devices {
		for i := 0; p.onStep != nil && i < len(d.shown()); i++ {
			p.onStep(index, &d.shown()[i])
		}
	}
	t.loss = loss.New(causes)
	delete(t.restoring, r.Process)
}

// Numbers visit the fields of a process one after the other, to write them to a list or
// to read them from it. A number that the list lacks is 0.
type numbers struct {
	list    []uint64
	reading bool
}

func (n *numbers) uint(fields ...*uint64) {
	for _, v := range fields {
		switch {
		case !n.reading:
			n.list = append(n.list, *v)
		case len(n.list) == 0:
			*v = 0
		default:
			*v, n.list = n.list[0], n.list[1:]
		}
	}
}

func (n *numbers) int(fields ...*int64) {
	for _, v := range fields {
		word := uint64(*v)<<1 ^ uint64(*v>>63)
		n.uint(&word)
		*v = int64(word>>1) ^ -int64(word&1)
	}
}

func (n *numbers) thread(v *uint32) {
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

// length visits the number of elements of a list. A number that was read is limited to the
// count of numbers that are left.
func (n *numbers) length(length int) int {
	word := uint64(length)
	n.uint(&word)
	if n.reading {
		return int(min(word, uint64(len(n.list))))
	}
	return length
}

// visitSlice calls visit with each element of a slice. While reading, it appends the
// elements.
func visitSlice[T any](n *numbers, list *[]T, visit func(*T)) {
	for i := range n.length(len(*list)) {
		if n.reading {
			*list = append(*list, *new(T))
		}
		visit(&(*list)[i])
	}
}

// visitMap does the same for a map.
func visitMap[K comparable, V any](n *numbers, m map[K]V, visit func(*K, *V)) {
	if n.reading {
		for range n.length(0) {
			var k K
			var v V
			visit(&k, &v)
			m[k] = v
		}
		return
	}
	n.length(len(m))
	for k, v := range m {
		visit(&k, &v)
	}
}

func (p *process) visit(n *numbers) {
	visitSlice(n, &p.waiting, func(x *tensor) {
		n.uint(&x.time)
		n.int(&x.bytes)
		n.uint(&x.stack, &x.by)
		n.thread(&x.thread)
		n.device(&x.device)
	})
	p.optimizers.visit(n)
	n.uint(&p.began, &p.steps, &p.unsure, &p.older, &p.newer)
	n.bool(&p.uncertain)
	visitMap(n, p.devices, func(index *int32, d **device) {
		if n.reading {
			*d = &device{growth: map[uint64]*growth{}}
		}
		n.device(index)
		(*d).visit(n)
		if n.reading {
			p.growing += len((*d).growth)
		}
	})
	p.clippings.visit(n)
	n.uint(&p.clips)
	n.bool(&p.byClip)
	n.bool(&p.byStep)
}

func (c *callers) visit(n *numbers) {
	visitMap(n, c.inside, func(thread *uint32, call *uint64) {
		n.thread(thread)
		n.uint(call)
	})
	c.marker.visit(n)
	visitMap(n, c.others, func(other *caller, called *bool) {
		other.visit(n)
		*called = true
	})
}

func (c *caller) visit(n *numbers) {
	n.thread(&c.thread)
	n.uint(&c.call)
}

func (d *device) visit(n *numbers) {
	n.int(&d.inuse)
	d.current.visit(n)
	last := d.shown()
	visitSlice(n, &last, func(s *span) { s.visit(n) })
	d.last = last
	total := span{Moved: d.total}
	total.visit(n)
	d.total = total.Moved
	visitMap(n, d.growth, func(stack *uint64, g **growth) {
		if n.reading {
			*g = &growth{}
		}
		n.uint(stack)
		n.int(&(*g).now, &(*g).last, &(*g).newer, &(*g).older)
		n.bool(&(*g).changed)
		if n.reading && (*g).changed {
			d.changed = append(d.changed, *stack)
		}
	})
}

func (s *span) visit(n *numbers) {
	n.uint(&s.number, &s.begin, &s.end)
	n.int(&s.AllocBytes, &s.AllocObjects, &s.FreedBytes, &s.FreedObjects, &s.PeakBytes, &s.InuseBytes)
}
