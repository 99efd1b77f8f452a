package heap

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A graph is what was read, with the references backwards.
type graph struct {
	r     *references
	arena *arena
	n     int // vertices
	from  []vertex
	first []uint32 // of the references to each vertex, and their end
	back  []uint32 // indices of edges
	// live says which vertices lead to a storage or a module.
	live []bool
	// distance of each vertex from where names begin, and the edge that leads there.
	distance []uint32
	parent   []uint32 // an edge, or rootFlag and the index of a root
	roots    []root
	tier     []tier
	threads  map[uint64]string // names by their ids
	// registry says which dictionaries modules have their parts in, and registered what is
	// in one: it has its name from there.
	registry   []registry
	registered []bool
	// Of autograd graphs: see entry and nodes.
	entries map[vertex]vertex
	sizes   map[vertex]int
	counted int
	cycles  []uint32 // see findCycles
	// Room of search and of write.
	candidates []candidate
	tensors    []vertex
	steps      []uint32
}

func newGraph(r *references) *graph {
	g := &graph{r: r, n: len(r.start) - 1, arena: r.py.arena, entries: map[vertex]vertex{}, sizes: map[vertex]int{}}
	g.live, g.first = room[bool](g.arena, g.n), room[uint32](g.arena, g.n+1)
	g.from, g.back = room[vertex](g.arena, len(r.edges)), room[uint32](g.arena, len(r.edges))
	g.turn()
	g.findLive()
	// No path leads to what is not live. The size of an autograd graph still counts all its nodes.
	kept, begin := r.edges[:0], r.start[0]
	for v := range g.n {
		edges := slices.DeleteFunc(r.edges[begin:r.start[v+1]], func(e edge) bool { return !g.live[e.to] && int(e.to) < len(r.objects.address) })
		begin, r.start[v] = r.start[v+1], uint32(len(kept))
		kept = append(kept, edges...)
	}
	n := len(kept)
	r.start[g.n] = uint32(n)
	r.edges, g.from, g.back = resized(g.arena, kept, n), resized(g.arena, g.from[:n], n), resized(g.arena, g.back[:n], n)
	g.turn()
	return g
}

// turn finds the references to each vertex.
func (g *graph) turn() {
	r := g.r
	clear(g.first)
	for v := range g.n {
		for i := r.start[v]; i < r.start[v+1]; i++ {
			g.from[i] = vertex(v)
			g.first[r.edges[i].to]++
		}
	}
	for v := range g.n {
		g.first[v+1] += g.first[v]
	}
	for i, e := range slices.Backward(r.edges) { // each has its place before those that follow it
		g.first[e.to]--
		g.back[g.first[e.to]] = uint32(i)
	}
}

// analyze fills in the storages and what holds them. cpu: what an object keeps includes tensors in
// the CPU's memory.
func (g *graph) analyze(reading *holder.Reading, cpu bool) {
	g.name()
	g.r.objects.count = drop(g.arena, g.r.objects.count)
	optimizer := g.optimizerState()
	done := g.arena.temporary()
	trained := room[bool](g.arena, g.n)
	for _, s := range g.r.storages {
		if !g.r.mem.tick() {
			return
		}
		look := g.search(s.vertex, optimizer, "?") // its name is not needed here
		role := look.role()
		trained[s.vertex] = role != holder.NoRole && role != holder.Activation
	}
	reading.Retainers = g.retainers(g.dominate(trained, cpu))
	done() // before there are storages
	sorting.Stable(g.r.storages, func(a, b storageImpl) int {
		return cmp.Or(cmp.Compare(a.data, b.data), cmp.Compare(a.vertex, b.vertex))
	})
	reading.Storages = make([]holder.Storage, 0, len(g.r.storages))
	for _, s := range g.r.storages {
		if !g.r.mem.tick() {
			return
		}
		reading.Storages = append(reading.Storages, g.storage(s, optimizer))
	}
	sorting.Stable(reading.Storages, func(a, b holder.Storage) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Holder, b.Holder))
	})
	reading.Storages = mergeSame(reading.Storages)
	reading.Modules = g.modules()
}

// A root is where a path begins.
type root struct {
	vertex vertex
	cost   uint32
	name   string // of a module, or how a frame is shown
	frame  bool
	cycle  bool // a reference cycle through C++ keeps it
	grad   bool // it is the cycle of a tensor and its gradient
}

// A tier says how a vertex that leads to a storage or a module can be reached.
type tier uint8

const (
	unreached tier = iota
	byProgram      // from modules and frames
	byNative       // from objects with references that were not found
	byCycle        // by objects that nobody refers to but each other
)

const (
	rootFlag = 1 << 31
	noParent = ^uint32(0)
	far      = ^uint32(0)
)

// to returns the edges that lead to a vertex.
func (g *graph) to(v vertex) []uint32 { return g.back[g.first[v]:g.first[v+1]] }

// findLive marks what leads to a storage or a module.
func (g *graph) findLive() {
	var stack []vertex
	for _, s := range g.r.storages {
		g.live[s.vertex] = true
		stack = append(stack, s.vertex)
	}
	for v := range g.r.objects.class {
		if g.isModule(vertex(v)) {
			g.live[v] = true
			stack = append(stack, vertex(v))
		}
	}
	for len(stack) > 0 {
		v := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, e := range g.to(v) {
			if u := g.from[e]; !g.live[u] {
				g.live[u] = true
				stack = append(stack, u)
			}
		}
	}
}

// name gives each vertex that leads to a storage or a module a place on the cheapest path from a
// root: the one that a programmer would write.
func (g *graph) name() {
	r := g.r
	g.tier = room[tier](g.arena, g.n)
	g.distance = room[uint32](g.arena, g.n)
	g.parent = room[uint32](g.arena, g.n)
	for v := range g.n {
		g.distance[v], g.parent[v] = far, noParent
	}
	g.findRegistered()
	g.addProgramRoots()
	g.walk(0, byProgram)

	begin := len(g.roots)
	for v := range r.objects.address {
		if g.live[v] && g.tier[v] == unreached && r.objects.count[v] > 0 {
			g.roots = append(g.roots, g.nativeRoot(vertex(v)))
		}
	}
	g.walk(begin, byNative)

	begin = len(g.roots)
	for v := range g.n {
		if g.live[v] && g.tier[v] == unreached {
			g.roots = append(g.roots, root{vertex: vertex(v), cost: g.cycleCost(vertex(v))})
		}
	}
	g.walk(begin, byCycle)
}

// cycleCost prefers instances to what they consist of.
func (g *graph) cycleCost(v vertex) uint32 {
	c := g.class(v)
	switch {
	case c == nil:
		return 120
	case c.shape == shapePlain && c.flags&flagHeapType != 0:
		return 0
	case c.shape == shapeTensor:
		return 100
	case c.shape == shapeDict:
		return 80
	}
	return 60
}

// class returns the class of an object, nil for what is none.
func (g *graph) class(v vertex) *class {
	if int(v) >= len(g.r.objects.class) {
		return nil
	}
	return &g.r.py.classes[g.r.objects.class[v]]
}

// buckets is more than what any edge and any root costs.
const buckets = 256

// walk finds the cheapest path to each vertex that has no tier yet, and gives it tier t. Paths begin at
// g.roots[begin:].
func (g *graph) walk(begin int, t tier) {
	r := g.r
	var queue [buckets][]vertex
	waiting := 0
	for i := begin; i < len(g.roots); i++ {
		root := g.roots[i]
		cost := min(root.cost, buckets-1)
		if v := root.vertex; g.live[v] && g.tier[v] == unreached && cost < g.distance[v] {
			g.distance[v], g.parent[v] = cost, rootFlag|uint32(i)
			queue[cost] = append(queue[cost], v)
			waiting++
		}
	}
	for at := uint32(0); waiting > 0; at++ {
		// Edges without a cost add to the bucket that is emptied.
		bucket := &queue[at%buckets]
		for i := 0; i < len(*bucket); i++ {
			v := (*bucket)[i]
			waiting--
			if g.tier[v] != unreached || g.distance[v] != at {
				continue
			}
			g.tier[v] = t
			in := g.incoming(v)
			for e := r.start[v]; e < r.start[v+1]; e++ {
				u := r.edges[e].to
				if !g.live[u] || g.tier[u] != unreached {
					continue
				}
				d := at + g.cost(e, in)
				if d < g.distance[u] {
					g.distance[u], g.parent[u] = d, e
					queue[d%buckets] = append(queue[d%buckets], u)
					waiting++
				}
			}
		}
		*bucket = (*bucket)[:0]
	}
}

// incoming returns the label of the edge by which a path leads to a vertex, 0 for a
// root.
func (g *graph) incoming(v vertex) uint32 {
	if p := g.parent[v]; p&rootFlag == 0 {
		return g.r.edges[p].label
	}
	return 0
}
