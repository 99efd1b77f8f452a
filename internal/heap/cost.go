package heap

// cost says how far an edge is from what a programmer would write. in is the label
// that leads to the vertex that it begins at.
func (g *graph) cost(e, in uint32) uint32 {
	to, l := g.r.edges[e].to, g.r.edges[e].label
	inRegistry := kindOf(l) == kindKey && g.registry[g.from[e]] != noRegistry
	switch {
	case inRegistry:
		return 1
	case g.registry[to] != noRegistry && (kindOf(l) == kindAttr || kindOf(l) == kindKey):
		return 0
	case g.registered[to]:
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
		if kindOf(in) == kindDict || kindOf(in) == kindThread {
			return g.attrCost(n)
		}
		return 5
	case kindIndex:
		return 4
	case kindMember, kindCached, kindLocal, kindVariable:
		return 5
	case kindDict, kindImpl, kindStorage, kindObject:
		return 0
	case kindClosure:
		return 4
	case kindGrad, kindThread, kindTask:
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

var registries = map[string]registry{"_parameters": parameters, "_buffers": buffersOf, "_modules": modules}

// unregistered is what a path costs more that leads to a part of a module by another way.
const unregistered = 40

// findRegistered finds the registries of modules, and what they have in them. The type of the owner
// proves one: any object may have an attribute of such a name.
func (g *graph) findRegistered() {
	r := g.r
	g.registry, g.registered = room[registry](g.arena, g.n), room[bool](g.arena, g.n)
	find := func(owner vertex) {
		for i := r.start[owner]; i < r.start[owner+1]; i++ {
			e := r.edges[i]
			if k := kindOf(e.label); k != kindAttr && k != kindKey || !g.live[e.to] || int(e.to) >= len(r.objects.class) || r.py.classes[r.objects.class[e.to]].shape != shapeDict {
				continue
			}
			kind := registries[r.keys.text(int(e.label&labelMask)).s]
			if kind == noRegistry {
				continue
			}
			g.registry[e.to] = kind
			for j := r.start[e.to]; j < r.start[e.to+1]; j++ {
				if kindOf(r.edges[j].label) == kindKey {
					g.registered[r.edges[j].to] = true
				}
			}
		}
	}
	for v := range r.objects.class {
		if !g.isModule(vertex(v)) {
			continue
		}
		find(vertex(v))
		for i := r.start[v]; i < r.start[v+1]; i++ {
			if e := r.edges[i]; kindOf(e.label) == kindDict {
				find(e.to)
			}
		}
	}
}
