package heap

// cost says how far an edge is from what a programmer would write. in is the label
// that leads to the vertex that it begins at, and to where the edge ends.
func (g *graph) cost(to vertex, in, l uint32) uint32 {
	if g.registered[to] && (kindOf(l) != kindKey || g.registry(in) == noRegistry) {
		return unregistered + g.labelCost(in, l)
	}
	return g.labelCost(in, l)
}

func (g *graph) labelCost(in, l uint32) uint32 {
	n := int(l & labelMask)
	switch kindOf(l) {
	case kindName:
		if isDunder(g.r.py.names.all[n]) {
			return 16
		}
		return 2
	case kindAttr:
		return g.attrCost(n)
	case kindKey:
		switch {
		case kindOf(in) == kindDict:
			return g.attrCost(n)
		case g.registry(in) != noRegistry:
			return 1
		}
		return 5
	case kindIndex:
		return 4
	case kindMember, kindCached, kindLocal:
		return 5
	case kindDict, kindImpl, kindStorage, kindObject:
		return 0
	case kindClosure:
		return 4
	case kindGrad:
		return 2
	case kindGraph:
		return 12
	case kindNext:
		if n == 1 {
			return 10
		}
		return uint32(n)
	case kindBase:
		return 20
	case kindHidden:
		switch n {
		case 1:
			return 120
		case 2:
			return 2
		}
		return 40
	case kindKeyRef, kindClass:
		return 60
	}
	return 30
}

// attrCost is that of an attribute by its key.
func (g *graph) attrCost(key int) uint32 {
	switch t := g.r.keys.text(key); {
	case t.kind != textStr:
		return 20
	case t.s == "param_groups":
		return 24
	case t.s == "_parameters", t.s == "_buffers", t.s == "_modules":
		return 0
	case isDunder(t.s):
		return 16
	case t.s == "modules": // of sys
		return 40
	case len(t.s) > 0 && t.s[0] == '_':
		return 3
	}
	return 2
}

func isDunder(s string) bool { return len(s) > 4 && s[:2] == "__" && s[len(s)-2:] == "__" }

// A registry is a dictionary in which a module of PyTorch has its parts.
type registry uint8

const (
	noRegistry registry = iota
	parameters
	buffersOf
	modules
)

// registry tells which registry a label leads to.
func (g *graph) registry(l uint32) registry {
	if k := kindOf(l); k != kindAttr && k != kindKey {
		return noRegistry
	}
	switch t := g.r.keys.text(int(l & labelMask)); t.s {
	case "_parameters":
		return parameters
	case "_buffers":
		return buffersOf
	case "_modules":
		return modules
	}
	return noRegistry
}

// unregistered is what a path costs more that leads to a part of a module by another way.
const unregistered = 40

// findRegistered finds what modules have in their registries.
func (g *graph) findRegistered() {
	r := g.r
	g.registered = room[bool](g.arena, g.n)
	for _, e := range r.edges {
		if !g.live[e.to] || int(e.to) >= len(r.objects.class) || r.py.classes[r.objects.class[e.to]].shape != shapeDict || g.registry(e.label) == noRegistry {
			continue
		}
		for j := r.start[e.to]; j < r.start[e.to+1]; j++ {
			if kindOf(r.edges[j].label) == kindKey {
				g.registered[r.edges[j].to] = true
			}
		}
	}
}
