package heap

// alone is the cycle of what is in none.
const alone = ^uint32(0)

// nativeRoot returns the root of an object that has more references than were found. If the only one more
// is that of a node of an autograd graph, or of a tensor's own memory, a cycle may keep it.
func (g *graph) nativeRoot(v vertex) root {
	r, out := g.r, root{vertex: v, cost: g.cycleCost(v)}
	c := g.class(v)
	if r.objects.count[v] != 1 {
		return out
	}
	switch {
	case c.function:
		out.cycle = g.cycle(v) != alone
	case c.shape == shapeTensor:
		impl := g.next(v, kindImpl)
		gradient := g.next(impl, kindGrad)
		out.grad = gradient != noVertex && g.cycle(impl) != alone && g.cycle(impl) == g.cycle(gradient)
	}
	if out.cycle || out.grad {
		out.cost = 0
	}
	return out
}

// next returns what a vertex refers to by a kind of edge, noVertex for none.
func (g *graph) next(v vertex, kind int) vertex {
	if v != noVertex {
		for _, e := range g.r.edges[g.r.start[v]:g.r.start[v+1]] {
			if kindOf(e.label) == kind {
				return e.to
			}
		}
	}
	return noVertex
}

// cycle returns the number of the cycle that a vertex is in, alone for none.
func (g *graph) cycle(v vertex) uint32 {
	if g.cycles == nil {
		g.findCycles()
	}
	return g.cycles[v]
}

// findCycles numbers the strongly connected components of what the program cannot reach (Tarjan's
// algorithm, without recursion).
func (g *graph) findCycles() {
	r := g.r
	g.cycles = room[uint32](g.arena, g.n)
	index, low := room[uint32](g.arena, g.n), room[uint32](g.arena, g.n)
	type place struct {
		v    vertex
		edge uint32
	}
	var stack []place
	var open []vertex
	last := uint32(0)
	visit := func(v vertex) {
		last++
		index[v], low[v] = last, last
		stack, open = append(stack, place{v, r.start[v]}), append(open, v)
	}
	for v := range g.n {
		if !g.live[v] || g.tier[v] != unreached || index[v] != 0 {
			continue
		}
		for visit(vertex(v)); len(stack) > 0; {
			top := &stack[len(stack)-1]
			v := top.v
			if top.edge < r.start[v+1] {
				e := r.edges[top.edge]
				top.edge++
				switch u := e.to; {
				case !g.live[u] || g.tier[u] != unreached || !g.owns(e):
				case index[u] == 0:
					visit(u)
				case g.cycles[u] == 0:
					low[v] = min(low[v], index[u])
				}
				continue
			}
			if stack = stack[:len(stack)-1]; len(stack) > 0 {
				above := stack[len(stack)-1].v
				low[above] = min(low[above], low[v])
			}
			if low[v] != index[v] {
				continue
			}
			number := index[v]
			if open[len(open)-1] == v {
				number = alone
			}
			for {
				u := open[len(open)-1]
				open, g.cycles[u] = open[:len(open)-1], number
				if u == v {
					break
				}
			}
		}
	}
	drop(g.arena, index)
	drop(g.arena, low)
}

// owns tells whether an edge is known to keep what it leads to.
func (g *graph) owns(e edge) bool {
	n := int(e.label & labelMask)
	switch kindOf(e.label) {
	case kindObject, kindThread:
		return false
	case kindHidden:
		return n != 0
	case kindNext: // a node has a weak pointer to its own object
		c := g.class(e.to)
		return c == nil || c.function
	}
	return true
}
