package heap

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/holder"
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

// storage describes one storage.
func (g *graph) storage(v vertex, s storageImpl, optimizer map[vertex]bool) holder.Storage {
	r := g.r
	out := holder.Storage{Address: s.data, Bytes: s.bytes, Device: s.device, Cycle: g.tier[v] == byCycle}
	var found []candidate
	roles := [8]bool{}
	tensors := map[vertex]bool{}
	a, jax := r.arrays[v]
	if jax {
		tensors[v] = true
		found = g.holders(found, v, v, optimizer, &roles)
	}
	for _, e := range g.to(v) {
		t := g.from[e]
		if jax || tensors[t] {
			continue
		}
		tensors[t] = true
		for _, in := range g.to(t) {
			from := g.from[in]
			l := r.edges[in].label
			switch kindOf(l) {
			case kindImpl:
				found = g.holders(found, from, t, optimizer, &roles)
			case kindGrad:
				roles[holder.Gradient] = true
				found = g.candidate(found, in, t, noVertex)
			case kindNext:
				roles[holder.Activation] = true
				if out.Node == "" {
					out.Node = g.nodeName(from)
				}
				found = g.candidate(found, in, t, noVertex)
			case kindBase:
				found = g.candidate(found, in, t, noVertex)
			}
			if len(found) > maxHolders {
				break
			}
		}
	}
	out.Tensors = len(tensors)
	for _, role := range []holder.Role{holder.Parameter, holder.Buffer, holder.OptimizerState, holder.Gradient, holder.Activation} {
		if roles[role] && (role != holder.Activation || out.Node != "") {
			out.Role = role
			break
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.cost, b.cost) })
	seen := map[string]bool{}
	var first *candidate
	for i := range found {
		if len(seen) > maxMore {
			break
		}
		path := g.candidatePath(&found[i])
		if seen[path] {
			continue
		}
		seen[path] = true
		if first == nil {
			first, out.Holder = &found[i], path
		} else {
			out.More = append(out.More, path)
		}
	}
	out.Holders = len(found)
	if first == nil {
		for t := range tensors {
			first = &candidate{impl: t, object: noVertex}
			break
		}
	}
	if first != nil {
		if v := g.moduleOf(first, optimizer); v != noVertex && out.Holder != "" {
			out.Module = g.modulePath(v)
		}
		if jax {
			out.Shape, out.DType, out.Class = a.shape, a.dtype, shortName(g.class(v).name)
			return out
		}
		t := r.impls[first.impl]
		out.Shape, out.RequiresGrad = t.shape, t.required
		if t.dtype < len(dtypes) {
			out.DType = dtypes[t.dtype].name
		}
		out.Class = "Tensor"
		object := first.object
		for _, in := range g.to(first.impl) {
			if object == noVertex && kindOf(r.edges[in].label) == kindImpl {
				object = g.from[in]
			}
		}
		if c := g.class(object); c != nil {
			out.Class = shortName(c.name)
		}
	}
	return out
}

// holders appends the paths to the Python object of a tensor.
func (g *graph) holders(found []candidate, object, t vertex, optimizer map[vertex]bool, roles *[8]bool) []candidate {
	r := g.r
	before := len(found)
	for _, e := range g.to(object) {
		from, l := g.from[e], r.edges[e].label
		kind := kindOf(l)
		if kind == kindKeyRef || kind == kindClass || kind == kindObject || len(found) > maxHolders {
			continue
		}
		if optimizer[from] {
			roles[holder.OptimizerState] = true
		}
		if kind == kindKey {
			switch g.registry(g.incoming(from)) {
			case parameters:
				roles[holder.Parameter] = true
			case buffersOf:
				roles[holder.Buffer] = true
			}
		}
		found = g.candidate(found, e, t, object)
	}
	if p := g.parent[object]; len(found) == before && p != noParent && (p&rootFlag != 0 || kindOf(r.edges[p].label) != kindObject) {
		found = append(found, candidate{cost: g.distance[object], whole: true, at: object, impl: t, object: object})
	}
	return found
}

// candidate appends the path by an edge, if its begin has a path.
func (g *graph) candidate(found []candidate, e uint32, t, object vertex) []candidate {
	from := g.from[e]
	if g.parent[from] == noParent {
		return found
	}
	cost := g.distance[from] + g.cost(g.r.edges[e].to, g.incoming(from), g.r.edges[e].label)
	return append(found, candidate{cost: cost, edge: e, impl: t, object: object})
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

// mergeSame makes one of storages that share an address: two StorageImpls of the same
// memory.
func mergeSame(all []holder.Storage) []holder.Storage {
	out := all[:0]
	for _, s := range all {
		if n := len(out); n > 0 && s.Address != 0 && out[n-1].Address == s.Address && out[n-1].Device == s.Device {
			last := &out[n-1]
			if s.Role != holder.NoRole && (last.Role == holder.NoRole || s.Role < last.Role) {
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
