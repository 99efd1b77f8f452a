package heap

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
)

// Dominators of the vertices that lead to storages: u dominates v if every path from
// a root to v goes through u, so that v is freed when u is.
type dominators struct {
	order []vertex // by depth-first search; 0 stands for all roots
	index []uint32 // of each vertex in order, 0 for none; only until they are found
	above []uint32 // index of the nearest vertex that dominates it
	// By index, for the storages that a vertex dominates: their bytes, the bytes that an
	// autograd graph holds, the bytes that are not training state, and their number.
	retained, graph, suspect []uint64
	storages                 []uint32
}

// dominate finds the dominators (Georgiadis and Tarjan's SEMI-NCA, without recursion). trained says which
// storages are training state. cpu: tensors in the CPU's memory count.
func (g *graph) dominate(trained []bool, cpu bool) *dominators {
	r := g.r
	live := 1
	for _, l := range g.live {
		if l {
			live++
		}
	}
	d := &dominators{order: append(room[vertex](g.arena, live)[:0], noVertex), index: room[uint32](g.arena, g.n)}
	d.above = room[uint32](g.arena, live)
	done := g.arena.temporary()
	parent := room[uint32](g.arena, live)[:1]
	isRoot := room[bool](g.arena, g.n)
	type place struct {
		v    vertex
		edge uint32
	}
	var stack []place
	visit := func(v vertex, from uint32) {
		d.index[v] = uint32(len(d.order))
		d.order = append(d.order, v)
		parent = append(parent, from)
		stack = append(stack, place{v, r.start[v]})
	}
	// A root of a cycle counts as a root only if no cheaper path leads to it.
	for i := range g.roots {
		v := g.roots[i].vertex
		if g.live[v] && (g.tier[v] != byCycle || g.parent[v]&rootFlag != 0) {
			isRoot[v] = true
		}
	}
	for i := range g.roots {
		v := g.roots[i].vertex
		if !isRoot[v] || d.index[v] != 0 {
			continue
		}
		visit(v, 0)
		for len(stack) > 0 {
			top := &stack[len(stack)-1]
			if top.edge == r.start[top.v+1] {
				stack = stack[:len(stack)-1]
				continue
			}
			u := r.edges[top.edge].to
			top.edge++
			if g.live[u] && d.index[u] == 0 {
				visit(u, d.index[top.v])
			}
		}
	}
	n := len(d.order)
	semi, best, ancestor := room[uint32](g.arena, n), room[uint32](g.arena, n), room[uint32](g.arena, n)
	for i := range semi {
		semi[i], best[i] = uint32(i), uint32(i)
	}
	d.above = d.above[:n]
	copy(d.above, parent)
	linked := n // vertices with an index from here on are in the forest
	var path []uint32
	find := func(v uint32) uint32 {
		if int(v) < linked {
			return v
		}
		path = path[:0]
		u := v
		for int(ancestor[u]) >= linked {
			path = append(path, u)
			u = ancestor[u]
		}
		for _, w := range slices.Backward(path) {
			if a := ancestor[w]; semi[best[a]] < semi[best[w]] {
				best[w] = best[a]
			}
			ancestor[w] = ancestor[u]
		}
		return best[v]
	}
	for i := n - 1; i > 0; i-- {
		v := d.order[i]
		s := parent[i]
		if isRoot[v] {
			s = 0
		}
		for _, e := range g.to(v) {
			if p := d.index[g.from[e]]; p != 0 {
				if c := semi[find(p)]; c < s {
					s = c
				}
			}
		}
		semi[i] = s
		ancestor[i] = parent[i]
		linked = i
	}
	for i := 1; i < n; i++ {
		a := d.above[i]
		for a > semi[i] {
			a = d.above[a]
		}
		d.above[i] = a
	}
	done()
	d.retained, d.graph, d.suspect = room[uint64](g.arena, n), room[uint64](g.arena, n), room[uint64](g.arena, n)
	d.storages = room[uint32](g.arena, n)
	for _, s := range r.storages {
		if i := d.index[s.vertex]; i != 0 && (cpu || s.device != holder.CPU) {
			d.retained[i], d.storages[i] = s.bytes, 1
			if !trained[s.vertex] {
				d.suspect[i] = s.bytes
			}
		}
	}
	for i := n - 1; i > 0; i-- {
		a := d.above[i]
		d.retained[a] += d.retained[i]
		d.suspect[a] += d.suspect[i]
		d.storages[a] += d.storages[i]
		if r.isNode(d.order[i]) {
			d.graph[i] = d.retained[i]
		}
		d.graph[a] += d.graph[i]
	}
	d.index = drop(g.arena, d.index)
	return d
}
