package heap

// nativeRoot returns the root of an object that has more references than were found. If the only one more
// is that of a node of an autograd graph, or of a tensor's own memory, a cycle may keep it.
func (g *graph) nativeRoot(v vertex) root {
	r, out := g.r, root{vertex: v, cost: g.cycleCost(v)}
	c := g.class(v)
	if !g.live[v] || r.objects.count[v] != r.counted[v]+1 {
		return out
	}
	switch {
	case c.function:
		out.cycle = g.within(v, g.owns)[v]
	case c.shape == shapeTensor:
		impl := g.next(v, kindImpl)
		gradient := g.next(impl, kindGrad)
		out.grad = gradient != noVertex && g.within(gradient, g.owns)[impl]
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

// maxFollowed bounds the edges that within follows, for all vertices.
const maxFollowed = 1 << 22

// within returns what a vertex leads to by some edges, nil if too many were followed.
func (g *graph) within(v vertex, follow func(e edge) bool) map[vertex]bool {
	seen, way := map[vertex]bool{}, []vertex{v}
	for i := 0; i < len(way); i++ {
		for _, e := range g.r.edges[g.r.start[way[i]]:g.r.start[way[i]+1]] {
			if g.followed++; g.followed > maxFollowed {
				return nil
			}
			if !seen[e.to] && follow(e) {
				seen[e.to], way = true, append(way, e.to)
			}
		}
	}
	return seen
}

// owns tells whether an edge is known to keep what it leads to, which the program cannot reach.
func (g *graph) owns(e edge) bool {
	c := g.class(e.to)
	switch kindOf(e.label) {
	case kindObject, kindThread:
		return false
	case kindHidden:
		if e.label&labelMask == 0 {
			return false
		}
	case kindNext: // a node has a weak pointer to its own object
		if c != nil && !c.function {
			return false
		}
	}
	return g.live[e.to] && g.tier[e.to] == unreached
}
