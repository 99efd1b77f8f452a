package heap

import (
	"fmt"
	"strings"
)

// addProgramRoots adds modules and frames.
func (g *graph) addProgramRoots() {
	r := g.r
	seen := map[vertex]bool{}
	if sys, ok := g.module("sys"); ok {
		modules := r.py.attribute(sys, "modules")
		r.py.eachItem(modules, func(key, value uint64) bool {
			v, ok := r.objects.find(value)
			name := r.py.text(key)
			if !ok || name.kind != textStr || seen[v] {
				return true
			}
			seen[v] = true
			if name.s == "__main__" || name.s == "__mp_main__" {
				g.roots = append(g.roots, root{vertex: v})
			} else {
				g.roots = append(g.roots, root{vertex: v, cost: min(10+4*uint32(strings.Count(name.s, ".")), buckets-1), name: name.s})
			}
			return true
		})
	}
	for v, c := range r.objects.class {
		if r.py.classes[c].shape == shapeModule && !seen[vertex(v)] {
			g.roots = append(g.roots, root{vertex: vertex(v), cost: 60, name: r.py.text(r.mem.word(r.objects.address[v] + moduleName)).s})
		}
	}
	g.threads = g.threadNames()
	for i := range r.frames {
		f := &r.frames[i]
		cost, where := uint32(6), r.py.where(f)
		if !f.main {
			cost += 4
			where = g.thread(f.thread) + where
		}
		g.roots = append(g.roots, root{vertex: f.vertex, cost: min(cost+6*uint32(f.depth), 200), name: where, frame: true})
	}
}

// module returns the address of a module that is called so.
func (g *graph) module(name string) (at uint64, ok bool) {
	r := g.r
	for v, c := range r.objects.class {
		if r.py.classes[c].shape != shapeModule {
			continue
		}
		o := r.objects.address[v]
		if t := r.py.text(r.mem.word(o + moduleName)); t.kind == textStr && t.s == name {
			return o, true
		}
	}
	return 0, false
}

// thread returns how a path begins that leads through a thread.
func (g *graph) thread(id uint64) string {
	name := g.threads[id]
	if name == "" {
		name = fmt.Sprintf("%#x", id)
	}
	return fmt.Sprintf("thread %q: ", name)
}

// threadNames returns the names that the program gave to threads: threading._active
// has them by their ids.
func (g *graph) threadNames() map[uint64]string {
	r := g.r
	names := map[uint64]string{}
	threading, ok := g.module("threading")
	if !ok {
		return names
	}
	r.py.eachItem(r.py.attribute(threading, "_active"), func(key, value uint64) bool {
		id := r.py.text(key)
		v, ok := r.objects.find(value)
		if !ok || id.kind != textInt {
			return true
		}
		if name := r.py.instanceText(value, &r.py.classes[r.objects.class[v]], "_name"); name != "" {
			var n uint64
			if _, err := fmt.Sscan(id.s, &n); err == nil {
				names[n] = name
			}
		}
		return len(names) < maxThreads
	})
	return names
}
