package heap

import (
	"strconv"
	"strings"
)

// Bounds of what is followed from a node.
const (
	nodeVectors   = 32 // that belong to one node
	nodeDepth     = 2  // pointers from the node to memory of its own
	nodeHeadWords = 3  // the table of functions, and a weak pointer to itself
	edgeWords     = 3  // of an Edge: a shared pointer and a number
)

// nodeReferences adds what a node of an autograd graph leads to: other nodes and
// tensors that it saved. Its next edges are a vector. What it saved are pointers to
// tensors in it, in its vectors, and in its hooks. A pointer from it to another node
// is part of a saved tensor and may be weak, except for a CopySlices.
func (r *references) nodeReferences(at uint64) {
	name, _ := r.cpp.nodeName(at)
	n := newNodeReader(r, at)
	words := r.cpp.chunk(at)
	begin := len(r.edges)
	n.words(words[min(nodeHeadWords, len(words)):], 0, name == "CopySlices")
	for _, e := range r.edges[begin:] {
		if r.visited[at] && int(e.to) < len(r.objects.count) && r.py.classes[r.objects.class[e.to]].function {
			r.objects.found(e.to)
		}
	}
}

type nodeReader struct {
	r     *references
	added map[vertex]bool
	seen  map[uint64]bool
	left  int
}

func newNodeReader(r *references, at uint64) *nodeReader {
	return &nodeReader{r: r, added: map[vertex]bool{}, seen: map[uint64]bool{at: true}, left: nodeVectors}
}

func (n *nodeReader) add(v vertex, l uint32) {
	if v != noVertex && !n.added[v] {
		n.added[v] = true
		n.r.to(v, l)
	}
}

// words adds what words of a node's memory lead to. It calls itself nodeDepth times
// at most.
func (n *nodeReader) words(words []uint64, depth int, nodes bool) {
	r := n.r
	for i, w := range words {
		if w < pageSize || w&7 != 0 || w >= maxAddress {
			continue
		}
		if o, ok := r.objects.find(w); ok {
			n.add(o, label(kindNext, 1))
			continue
		}
		if w&15 != 0 || n.seen[w] {
			continue
		}
		if r.isImpl(w) {
			n.seen[w] = true
			n.add(r.addExtra(extraImpl, w), label(kindNext, 2))
			continue
		}
		if _, ok := r.cpp.nodeName(w); ok {
			if nodes && i+1 < len(words) && r.cpp.shared(words[i+1]) {
				n.add(r.addExtra(extraNode, w), label(kindNext, 0))
			}
			continue
		}
		if depth >= nodeDepth || n.left == 0 || !r.mem.tick() {
			continue
		}
		if i+2 < len(words) && words[i+1] > w && words[i+2] >= words[i+1] && words[i+2]-w <= 8*chunkWords {
			if inside := r.mem.words(w, int(words[i+1]-w)/8); len(inside) > 0 {
				n.seen[w] = true
				n.left--
				if !n.edges(inside) && r.cpp.allocated(w, words[i+2]-w) {
					n.words(inside, depth+1, false)
				}
			}
			continue
		}
		if strings.Contains(r.cpp.className(r.mem.word(w)), "Hook") {
			n.seen[w] = true
			n.left--
			n.words(r.cpp.chunk(w), depth+1, false)
		}
	}
}

// edges adds the nodes of a vector of edges, and tells whether it is one.
func (n *nodeReader) edges(words []uint64) bool {
	if len(words)%edgeWords != 0 {
		return false
	}
	var nodes []uint64
	for i := 0; i < len(words); i += edgeWords {
		w := words[i]
		if w == 0 {
			continue
		}
		if _, ok := n.r.cpp.nodeName(w); !ok {
			return false
		}
		nodes = append(nodes, w)
	}
	for _, w := range nodes {
		n.add(n.r.addExtra(extraNode, w), label(kindNext, 0))
	}
	return len(nodes) > 0
}

// largeGraph is how many nodes a graph has whose size is shown, and maxCounted bounds the nodes
// that are counted for all graphs.
const (
	largeGraph = 256
	maxCounted = 1 << 22
)

// entry returns the node by which the path to a vertex comes into an autograd graph, or the vertex
// if it is in none. The nodes of a chain may be more than a path has steps, and none is written.
func (g *graph) entry(v vertex) vertex {
	var way []vertex
	for p := g.parent[v]; p != noParent && p&rootFlag == 0 && kindOf(g.r.edges[p].label) == kindNext; p = g.parent[v] {
		if known, ok := g.entries[v]; ok {
			v = known
			break
		}
		way = append(way, v)
		v = g.from[p]
	}
	for _, w := range way {
		g.entries[w] = v
	}
	return v
}

// nodes returns how many nodes a graph has from one on, 0 if too many were counted.
func (g *graph) nodes(first vertex) int {
	if n, ok := g.sizes[first]; ok {
		return n
	}
	seen, way := map[vertex]bool{first: true}, []vertex{first}
	for i := 0; i < len(way); i++ {
		if g.counted++; g.counted > maxCounted {
			return 0
		}
		for e := g.r.start[way[i]]; e < g.r.start[way[i]+1]; e++ {
			if u := g.r.edges[e].to; kindOf(g.r.edges[e].label) == kindNext && g.r.isNode(u) && !seen[u] {
				seen[u], way = true, append(way, u)
			}
		}
	}
	g.sizes[first] = len(way)
	return len(way)
}

// grouped writes a number with a comma before each three digits.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
