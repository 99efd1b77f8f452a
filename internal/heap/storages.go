package heap

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// Bounds of one storage: the holders that are listed after the first, and those that are
// compared.
const (
	maxMore    = 3
	maxHolders = 1 << 10
)

// A candidate is a path to a storage.
type candidate struct {
	cost   uint32
	edge   uint32 // the last one
	whole  bool   // the path of at, not of an edge
	at     vertex
	impl   vertex
	object vertex // of the tensor, noVertex for none
}

// A search looks for the holders of one storage.
type search struct {
	*graph
	optimizer map[vertex]bool // of optimizerState
	tensors   []vertex
	impl      vertex // the tensor in the storage whose holders are looked for
	found     []candidate
	roles     [8]bool
	node      string // that saved it
}

// search finds the holders of the storage v. What it returns is valid until the next search.
func (g *graph) search(v vertex, optimizer map[vertex]bool, node string) search {
	look := search{graph: g, optimizer: optimizer, node: node, found: g.candidates[:0], tensors: g.tensors[:0]}
	find := func(t vertex) {
		look.impl = t
		if _, array := g.r.arrays[t]; array {
			look.object(t, 0)
		} else {
			look.tensor(t, noVertex, 0)
		}
		look.tensors = append(look.tensors, t)
	}
	if _, jax := g.r.arrays[v]; jax {
		find(v)
	} else {
		for _, e := range g.to(v) { // those from one vertex follow each other
			if t, n := g.from[e], len(look.tensors); (n == 0 || look.tensors[n-1] != t) && !g.ofArray(t) {
				find(t)
			}
		}
	}
	g.candidates, g.tensors = look.found, look.tensors
	return look
}

// role returns what the storage is for.
func (s *search) role() holder.Role {
	for _, role := range []holder.Role{holder.Parameter, holder.Buffer, holder.OptimizerState, holder.Gradient, holder.Activation} {
		if s.roles[role] && (role != holder.Activation || s.node != "") {
			return role
		}
	}
	return holder.NoRole
}

// storage describes one storage.
func (g *graph) storage(s storageImpl, optimizer map[vertex]bool) holder.Storage {
	r := g.r
	look := g.search(s.vertex, optimizer, "")
	found, tensors := look.found, look.tensors
	out := holder.Storage{Address: s.data, Bytes: s.bytes, Device: s.device, Cycle: g.tier[s.vertex] == byCycle,
		Role: look.role(), Node: look.node, Tensors: len(tensors)}
	sorting.Stable(found, func(a, b candidate) int { return cmp.Compare(a.cost, b.cost) })
	var written [maxMore + 1]string
	seen := written[:0]
	var first *candidate
	for i := range found {
		if len(seen) > maxMore {
			break
		}
		path := g.candidatePath(&found[i])
		if slices.Contains(seen, path) {
			continue
		}
		seen = append(seen, path)
		if first == nil {
			first, out.Holder = &found[i], path
		} else {
			out.More = append(out.More, path)
		}
	}
	out.Holders = len(found)
	if first == nil && len(tensors) > 0 {
		first = &candidate{impl: tensors[0], object: noVertex}
	}
	if first != nil {
		if v := g.moduleOf(first, optimizer); v != noVertex && out.Holder != "" {
			out.Module = g.modulePath(v)
		}
		if a, array := r.arrays[first.impl]; array {
			out.Shape, out.DType, out.Class = a.shape, a.dtype, shortName(g.class(first.impl).name)
			return out
		}
		t, _ := r.tensor(first.impl)
		out.Shape, out.RequiresGrad, out.DType = t.shape, t.required, dtypes[t.dtype].name
		out.Class = "Tensor"
		object := first.object
		for _, in := range g.to(first.impl) {
			if object == noVertex && kindOf(r.edges[in].label) == kindImpl {
				object = g.from[in]
			}
		}
		if c := g.class(object); c != nil {
			out.Class = shortName(c.name)
			if _, wrapping := look.wrapper(object); wrapping != noVertex {
				t, _ := r.tensor(wrapping)
				out.RequiresGrad = t.required
			}
		}
	}
	return out
}

// ofArray reports whether a vertex is a pointer of CuPy that an array has: the array counts.
func (g *graph) ofArray(v vertex) bool {
	c := g.class(v)
	return c != nil && c.cupy == isCuPyPointer && slices.ContainsFunc(g.to(v), func(e uint32) bool {
		_, array := g.r.arrays[g.from[e]]
		return array
	})
}

// tensor adds the paths to a tensor by its TensorImpl. wrapper is its object if another tensor in
// it has the memory.
func (s *search) tensor(t, wrapper vertex, depth int) {
	for _, in := range s.to(t) {
		switch kindOf(s.r.edges[in].label) {
		case kindImpl:
			s.object(s.from[in], depth)
		case kindGrad:
			s.roles[holder.Gradient] = true
			s.add(in, wrapper)
		case kindNext:
			s.roles[holder.Activation] = true
			if s.node == "" {
				s.node = s.nodeName(s.from[in])
			}
			s.add(in, wrapper)
		case kindBase, kindName:
			s.add(in, wrapper)
		}
		if len(s.found) > maxHolders {
			break
		}
	}
}

// object adds the paths to the Python object of a tensor.
func (s *search) object(object vertex, depth int) {
	r := s.r
	before := len(s.found)
	for _, e := range s.to(object) {
		from, l := s.from[e], r.edges[e].label
		kind := kindOf(l)
		if kind == kindKeyRef || kind == kindClass || kind == kindObject || len(s.found) > maxHolders {
			continue
		}
		if wrapper, t := s.wrapper(from); t != noVertex && depth < maxWrapped {
			s.tensor(t, wrapper, depth+1)
			continue
		}
		if s.optimizer[from] {
			s.roles[holder.OptimizerState] = true
		}
		if kind == kindKey {
			switch s.registry[from] {
			case parameters:
				s.roles[holder.Parameter] = true
			case buffersOf:
				s.roles[holder.Buffer] = true
			}
		}
		s.add(e, object)
	}
	if p := s.parent[object]; len(s.found) == before && p != noParent && (p&rootFlag != 0 || kindOf(r.edges[p].label) != kindObject) {
		s.found = append(s.found, candidate{cost: s.distance[object], whole: true, at: object, impl: s.impl, object: object})
	}
}

// maxWrapped bounds how many tensors wrap each other.
const maxWrapped = 2

// wrapper returns the tensor without memory that a vertex is, or whose attributes it has, such as
// a DTensor, with its TensorImpl. What it refers to is the tensor that it stands for.
func (s *search) wrapper(v vertex) (object, impl vertex) {
	r := s.r
	if p := s.parent[v]; p != noParent && p&rootFlag == 0 && kindOf(r.edges[p].label) == kindDict {
		v = s.from[p]
	}
	if c := s.class(v); c == nil || c.shape != shapeTensor {
		return noVertex, noVertex
	}
	impl = noVertex
	for e := r.start[v]; e < r.start[v+1]; e++ {
		if kindOf(r.edges[e].label) == kindImpl {
			impl = r.edges[e].to
		}
	}
	if impl == noVertex {
		return noVertex, noVertex
	}
	for e := r.start[impl]; e < r.start[impl+1]; e++ {
		if kindOf(r.edges[e].label) == kindStorage {
			return noVertex, noVertex
		}
	}
	return v, impl
}

// add adds the path by an edge, if its begin has a path.
func (s *search) add(e uint32, object vertex) {
	from := s.from[e]
	if s.parent[from] == noParent {
		return
	}
	cost := s.distance[from] + s.cost(e, s.incoming(from))
	s.found = append(s.found, candidate{cost: cost, edge: e, impl: s.impl, object: object})
}

func (g *graph) candidatePath(c *candidate) string {
	if c.whole {
		return g.path(c.at)
	}
	return g.pathBy(c.edge)
}

// nodeName returns the name of a node that saved a tensor, "" for one that only knows
// the parameter that it adds a gradient to.
func (g *graph) nodeName(v vertex) string {
	if c := g.class(v); c != nil {
		return shortName(c.name)
	}
	e, _ := g.r.extra(v)
	if name, _ := g.r.cpp.nodeName(e.address); name != "AccumulateGrad" {
		return name
	}
	return ""
}

// optimizerState returns the containers that optimizers have for each parameter.
func (g *graph) optimizerState() map[vertex]bool {
	r := g.r
	out := map[vertex]bool{}
	follow := func(v vertex, visit func(e uint32)) {
		for e := r.start[v]; e < r.start[v+1]; e++ {
			visit(e)
		}
	}
	for v, c := range r.objects.class {
		if !r.py.classes[c].optimizer || r.py.classes[c].shape != shapePlain || !g.live[v] {
			continue
		}
		attr := func(e uint32) {
			if l := r.edges[e].label; (kindOf(l) == kindAttr || kindOf(l) == kindKey) && r.keys.text(int(l&labelMask)).s == "state" {
				states := r.edges[e].to
				if int(states) >= len(r.objects.address) {
					return
				}
				out[states] = true
				follow(states, func(e uint32) {
					if kindOf(r.edges[e].label) == kindKey && g.container(r.edges[e].to) {
						one := r.edges[e].to
						out[one] = true
						follow(one, func(e uint32) {
							if g.container(r.edges[e].to) {
								out[r.edges[e].to] = true
							}
						})
					}
				})
			}
		}
		follow(vertex(v), func(e uint32) {
			if kindOf(r.edges[e].label) == kindDict {
				follow(r.edges[e].to, attr)
			} else {
				attr(e)
			}
		})
	}
	return out
}

// container tells whether a vertex is a dictionary, a list or the like.
func (g *graph) container(v vertex) bool {
	c := g.class(v)
	return c != nil && (c.shape == shapeDict || c.shape == shapeList || c.shape == shapeTuple || c.shape == shapeSet || c.shape == shapeDeque)
}

// inside reports whether a storage lies in another one, or begins where it begins.
func inside(s, of *holder.Storage) bool {
	return s.Device == of.Device && (s.Address == of.Address || s.Address > of.Address && s.Address+s.Bytes <= of.Address+of.Bytes)
}

// mergeSame makes one of storages that share memory: two StorageImpls of it, or what one library lends another.
func mergeSame(all []holder.Storage) []holder.Storage {
	out := all[:0]
	for _, s := range all {
		if n := len(out); n > 0 && s.Address != 0 && inside(&s, &out[n-1]) {
			last := &out[n-1]
			if last.Address == s.Address && s.Role != holder.NoRole && (last.Role == holder.NoRole || s.Role < last.Role) {
				s, *last = *last, s
			}
			last.Bytes = max(last.Bytes, s.Bytes)
			last.Holders += s.Holders
			last.Tensors += s.Tensors
			if s.Holder != "" && len(last.More) < maxMore {
				last.More = append(last.More, s.Holder)
			}
			last.Cycle = last.Cycle && s.Cycle
			continue
		}
		out = append(out, s)
	}
	return out
}
