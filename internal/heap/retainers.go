package heap

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
)

// maxRetainers bounds how many are listed. What is less than one part in muchOf of all memory does not
// put an object before others.
const (
	maxRetainers = 100
	muchOf       = 20
)

// retainers lists the objects that keep most. Those that keep most beyond a model's
// parameters and buffers, gradients and an optimizer's state come first, if that is much.
func (g *graph) retainers(d *dominators) []holder.Retainer {
	n := len(d.order)
	candidate, inModule, hidden := room[bool](g.arena, n), room[bool](g.arena, n), room[bool](g.arena, n)
	above := room[uint32](g.arena, n) // the nearest candidate that dominates each
	for i := 1; i < n; i++ {
		v, a := d.order[i], d.above[i]
		c := g.class(v)
		inModule[i] = a != 0 && (inModule[a] || g.isModule(d.order[a]))
		candidate[i] = d.retained[i] > 0 && g.retains(v, c, d.graph[i]) && !(inModule[i] && c.module)
		if above[i] = above[a]; candidate[a] {
			above[i] = a
		}
	}
	// What one part holds nearly all of is listed as that part, and does not come first
	// for what that part holds.
	score := append(room[uint64](g.arena, n)[:0], d.suspect...)
	for i := 1; i < n; i++ {
		a := above[i]
		if !candidate[i] || a == 0 || g.isTensor(d.order[i], d.order[a]) {
			continue
		}
		if mostOf(d.retained[i], d.retained[a]) && !g.isModule(d.order[a]) {
			hidden[a] = true
		}
		if mostOf(d.suspect[i], d.suspect[a]) {
			score[a] -= d.suspect[i]
		}
	}
	var list []uint32
	cycles, items := map[string]uint32{}, map[uint32]int{} // objects of one class that wait for the collector are one entry
	for i := 1; i < n; i++ {
		if !candidate[i] || hidden[i] {
			continue
		}
		if v := d.order[i]; g.tier[v] == byCycle && g.parent[v]&rootFlag != 0 {
			name := g.class(v).name
			if first, ok := cycles[name]; ok {
				items[first]++
				score[first] += score[i]
				d.retained[first] += d.retained[i]
				d.graph[first] += d.graph[i]
				d.storages[first] += d.storages[i]
				continue
			}
			cycles[name], items[uint32(i)] = uint32(i), 1
		}
		list = append(list, uint32(i))
	}
	for _, i := range list {
		if score[i] < d.retained[0]/muchOf {
			score[i] = 0
		}
	}
	order := func(a, b uint32) int {
		return cmp.Or(cmp.Compare(score[b], score[a]), cmp.Compare(d.retained[b], d.retained[a]), cmp.Compare(a, b))
	}
	var first []uint32
	for _, i := range list {
		if n := len(first); n == maxRetainers && order(first[n-1], i) < 0 {
			continue
		} else if n == maxRetainers {
			first = first[:n-1]
		}
		at, _ := slices.BinarySearchFunc(first, i, order)
		first = slices.Insert(first, at, i)
	}
	var out []holder.Retainer
	for _, i := range first {
		v := d.order[i]
		c := g.class(v)
		count, ok := items[i]
		if !ok {
			count = g.items(v, c)
		}
		out = append(out, holder.Retainer{
			Holder: g.path(v), Class: shortName(c.name), Items: count, Retained: d.retained[i], Graph: d.graph[i], Storages: int(d.storages[i]),
		})
	}
	return out
}

// mostOf tells whether a part is nearly the whole.
func mostOf(part, whole uint64) bool { return part > 0 && part >= whole-whole/10 }

// isTensor: a container is shown and not the one tensor in it.
func (g *graph) isTensor(v, above vertex) bool {
	c := g.class(v)
	return c != nil && c.shape == shapeTensor && g.container(above)
}

func (g *graph) isModule(v vertex) bool {
	c := g.class(v)
	return c != nil && c.module && c.shape == shapePlain
}

// retains tells whether an object may be listed as a retainer.
func (g *graph) retains(v vertex, c *class, graph uint64) bool {
	if c == nil {
		return false
	}
	in := g.incoming(v)
	switch c.shape {
	case shapeDict:
		return kindOf(in) != kindDict && g.registry[v] == noRegistry
	case shapeList, shapeSet, shapeDeque, shapeCache, shapeGenerator, shapeException, shapePartial:
		return true
	case shapeTuple:
		return kindOf(in) != kindClosure
	case shapeFunction:
		return true
	case shapeTensor:
		return graph > 0
	case shapePlain:
		return c.flags&flagHeapType != 0
	}
	return false
}

// items returns how many a container has.
func (g *graph) items(v vertex, c *class) int {
	at := g.r.objects.address[v]
	var n uint64
	switch c.shape {
	case shapeDict, shapeList, shapeTuple, shapeDeque:
		n = g.r.mem.word(at + 16)
	case shapeSet:
		n = g.r.mem.word(at + 24)
	}
	if n > maxItems {
		return 0
	}
	return int(n)
}
