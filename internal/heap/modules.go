package heap

import (
	"cmp"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// maxModules bounds the modules of one reading.
const maxModules = 1 << 14

// modules returns the modules that have a path.
func (g *graph) modules() (out []holder.Module) {
	for v := range g.r.objects.class {
		if !g.isModule(vertex(v)) || g.parent[v] == noParent {
			continue
		}
		if len(out) == maxModules {
			g.r.lost.Add(modulesLimit, 1)
			break
		}
		m := holder.Module{Address: g.r.objects.address[v], Path: g.modulePath(vertex(v))}
		g.r.py.attributes(m.Address, &g.r.py.classes[g.r.objects.class[v]], func(key, value uint64) bool {
			switch g.r.keys.text(g.r.keys.index(key)).s {
			case "training":
				m.Training = g.r.py.isTrue(value)
			case "gradient_checkpointing":
				m.Checkpoints = g.r.py.isTrue(value)
			}
			return true
		})
		out = append(out, m)
	}
	sorting.Stable(out, func(a, b holder.Module) int { return cmp.Compare(a.Address, b.Address) })
	return out
}

// modulePath writes the path to a module, without the function that a local variable is of:
// the line at which the function stands changes from reading to reading.
func (g *graph) modulePath(v vertex) string {
	path := g.path(v)
	for range maxPath {
		p := g.parent[v]
		if p == noParent {
			break
		}
		if p&rootFlag != 0 {
			if root := g.roots[p&^rootFlag]; root.frame {
				path = strings.TrimPrefix(path, root.name+": local ")
			}
			break
		}
		v = g.from[p]
	}
	return path
}

// moduleOf returns the module that a tensor belongs to, noVertex for none. Between it and
// the tensor there are containers and tensors alone. The path of what an optimizer has for a
// parameter goes on with the parameter.
func (g *graph) moduleOf(c *candidate, optimizer map[vertex]bool) vertex {
	r := g.r
	v, e := c.at, c.edge
	if c.whole {
		e = g.parent[v]
	}
	for range maxPath {
		if e == noParent || e&rootFlag != 0 {
			break
		}
		l := r.edges[e].label
		v = g.from[e]
		switch kindOf(l) {
		case kindGraph, kindNext:
			return noVertex
		case kindKey:
			if optimizer[v] {
				if p, ok := r.objects.find(r.keys.address[l&labelMask]); ok && g.class(p).shape == shapeTensor {
					v = p
				}
			}
		}
		if g.isModule(v) {
			return v
		}
		if c := g.class(v); c != nil && c.shape != shapeTensor && !g.container(v) {
			break
		}
		e = g.parent[v]
	}
	return noVertex
}
