package heap

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
)

// maxPath bounds the steps of a path and maxNested the paths inside of keys.
const (
	maxPath    = 256
	maxNested  = 2
	maxWritten = 400 // bytes of a path
)

// path writes the path to a vertex.
func (g *graph) path(v vertex) string { return g.write(v, nil, maxNested) }

// pathBy writes the path to a vertex by one of the edges that lead to it.
func (g *graph) pathBy(e uint32) string {
	return g.write(g.from[e], &e, maxNested)
}

// write writes the path to a vertex, and the edge that goes on from there.
func (g *graph) write(v vertex, last *uint32, nested int) string {
	steps := g.steps
	g.steps = nil // a key may have a path in it
	defer func() { g.steps = steps[:0] }()
	if last != nil {
		steps = append(steps, *last)
	}
	for len(steps) < maxPath {
		v = g.entry(v)
		p := g.parent[v]
		if p == noParent || p&rootFlag != 0 {
			break
		}
		steps = append(steps, p)
		v = g.from[p]
	}
	w := writer{g: g, nested: nested}
	w.begin(v)
	for i := len(steps) - 1; i >= 0 && w.b.Len() < maxWritten && !w.whole; i-- {
		var next uint32
		if i > 0 {
			next = g.r.edges[steps[i-1]].label
		}
		w.step(steps[i], next)
	}
	if w.b.Len() >= maxWritten {
		w.b.WriteString("...")
	}
	if w.b.Len() == 0 {
		return "__main__"
	}
	return strings.TrimSuffix(w.b.String(), ": ") + w.note
}

// A writer writes a path from its begin to its end.
type writer struct {
	g      *graph
	b      strings.Builder
	nested int
	local  bool // a local variable of a frame comes next
	before uint32
	task   string // the path is in a coroutine of a task
	named  int    // where the last name of a variable begins
	graph  bool   // the path is in an autograd graph
	note   string // what follows the path
	whole  bool   // the begin says all
}

// begin writes where the path begins.
func (w *writer) begin(v vertex) {
	p := w.g.parent[v]
	if p == noParent || p&rootFlag == 0 {
		w.b.WriteString("<?>")
		return
	}
	root := w.g.roots[p&^rootFlag]
	switch {
	case root.grad:
		w.b.WriteString(holder.CyclePrefix + w.className(v) + holder.GradientCycle)
		w.whole = true
	case root.cycle || w.g.tier[v] == byCycle:
		w.b.WriteString(holder.CyclePrefix + w.className(v))
		if c := w.g.class(v); c != nil {
			w.note = w.g.r.py.classPlace(c)
		}
	case root.frame:
		w.b.WriteString(root.name + ": ")
		w.local = true
	case root.name != "":
		w.b.WriteString(root.name)
	case w.g.tier[v] == byProgram:
	default:
		w.b.WriteString("<" + w.className(v) + " held by C++>")
	}
}

func (w *writer) className(v vertex) string {
	if c := w.g.class(v); c != nil {
		return shortName(c.name)
	}
	return "tensor"
}

// attr writes the name of an attribute.
func (w *writer) attr(name string) {
	if w.b.Len() > 0 && !w.local {
		w.b.WriteByte('.')
	}
	w.b.WriteString(name)
	w.local = false
}

// step writes an edge. next is the label of the edge after it, 0 for none.
func (w *writer) step(e, next uint32) {
	g := w.g
	l := g.r.edges[e].label
	n := int(l & labelMask)
	before := w.before
	w.before = l
	kind := kindOf(l)
	if w.task != "" && w.local && kind == kindName { // its frame, or what it waits for
		if c := g.class(g.r.edges[e].to); c != nil && c.shape == shapeGenerator {
			w.coroutine(g.r.edges[e].to)
		}
		return
	}
	if w.local && kind != kindLocal {
		w.b.WriteString("stack ")
		w.local = false
	}
	switch kind {
	case kindName:
		w.attr(g.r.py.names.all[n])
	case kindAttr:
		if g.registry[g.r.edges[e].to] != noRegistry && kindOf(next) == kindKey {
			return
		}
		w.attrKey(n)
	case kindKey:
		switch {
		case kindOf(before) == kindDict || kindOf(before) == kindThread:
			if g.registry[g.r.edges[e].to] != noRegistry && kindOf(next) == kindKey {
				return
			}
			w.attrKey(n)
		case g.registry[g.from[e]] != noRegistry:
			w.part(n)
		default:
			w.key(n)
		}
	case kindIndex:
		if kindOf(before) == kindClosure {
			w.named = w.b.Len() + len(".")
			w.attr(w.freeVariable(e, n))
			return
		}
		w.b.WriteByte('[')
		w.b.WriteString(strconv.Itoa(n))
		w.b.WriteByte(']')
	case kindMember:
		w.b.WriteString("{...}")
	case kindKeyRef:
		w.b.WriteString(".<key>")
	case kindClosure:
		w.b.WriteString(".<closure>")
	case kindHidden:
		switch n {
		case 1:
			w.attr("__globals__")
		case 2: // what a cell, a proxy or a cache without a bound has
		default:
			w.attr("<C>")
		}
	case kindClass:
		w.attr("__class__")
	case kindLocal:
		if w.local {
			w.b.WriteString("local ")
			w.named = w.b.Len()
			w.attrKey(n)
			return
		}
		w.b.WriteString(".<local>")
		w.attrKey(n)
	case kindCached:
		w.attr("cache(...)")
	case kindGrad:
		w.attr("grad")
	case kindGraph:
		if !w.graph {
			w.attr("grad_fn")
			if n := g.nodes(g.r.edges[e].to); n >= largeGraph {
				w.note = fmt.Sprintf(" (graph of %s nodes)", grouped(n))
			}
		}
		w.graph = true
	case kindBase:
		w.attr("_base")
	case kindVariable:
		name := w.shown(n)
		if t := g.r.keys.text(n); t.kind == textStr && identifier(t.s) && len(t.s) <= maxKey {
			name = t.s
		}
		w.restart("context variable " + name)
	case kindThread:
		if id := g.r.dummies[g.r.keys.address[n]]; id != 0 {
			w.restart(g.thread(id) + w.b.String()[w.named:])
		} else {
			w.attr("<C>")
			w.b.WriteString("[...]")
		}
	case kindTask:
		t := g.r.keys.text(n)
		if t.kind == textInt { // the program gave it none
			t.s = "Task-" + t.s
		}
		w.task = fmt.Sprintf("task %q: ", t.s)
		w.coroutine(g.r.edges[e].to)
	}
}

// restart writes another begin of the path.
func (w *writer) restart(begin string) {
	w.b.Reset()
	w.b.WriteString(begin)
	w.local = false
}

// coroutine writes where a coroutine of a task waits.
func (w *writer) coroutine(v vertex) {
	r := w.g.r
	w.restart(w.task + r.py.where(r.waiting(r.objects.address[v])) + ": ")
	w.local = true
}

// attrKey writes an attribute by its key.
func (w *writer) attrKey(key int) {
	if t := w.g.r.keys.text(key); t.kind == textStr && identifier(t.s) {
		w.attr(t.s)
		return
	}
	w.key(key)
}

// part writes a part of a module: those of lists have numbers.
func (w *writer) part(key int) {
	t := w.g.r.keys.text(key)
	if t.kind == textStr && t.s != "" && strings.Trim(t.s, "0123456789") == "" && len(t.s) < 10 {
		w.b.WriteString("[" + t.s + "]")
		return
	}
	w.attrKey(key)
}

// key writes a key of a dictionary as far as it may be shown.
func (w *writer) key(key int) {
	w.b.WriteString("[" + w.shown(key) + "]")
	w.local = false
}

// shown returns what may be shown of a key.
func (w *writer) shown(key int) string {
	t := w.g.r.keys.text(key)
	show := "..."
	switch {
	case w.g.r.keys.shown == NoKeys:
	case t.kind == textInt:
		show = t.s
	case t.kind == textStr && (identifier(t.s) && len(t.s) <= maxKey || w.g.r.keys.shown == AllKeys && plain(t.s)):
		show = `"` + t.s + `"`
	case t.kind == textStr || t.kind == textLong:
		show = "<str>"
	default:
		if v, ok := w.g.r.objects.find(w.g.r.keys.address[key]); ok && w.nested > 0 && w.g.parent[v] != noParent {
			show = w.g.write(v, nil, w.nested-1)
		} else if t.kind == textObject {
			show = "<" + t.s + ">"
		}
	}
	return show
}

// freeVariable returns the name of the nth variable of a closure, by the edge from
// the tuple of its cells.
func (w *writer) freeVariable(e uint32, n int) string {
	g, r := w.g, w.g.r
	tuple := g.from[e]
	for _, in := range g.to(tuple) {
		if kindOf(r.edges[in].label) != kindClosure {
			continue
		}
		code := r.mem.word(r.objects.address[g.from[in]] + uint64(r.lay.funcCode))
		if !r.py.isCode(code) {
			break
		}
		cells := int(min(r.mem.word(r.objects.address[tuple]+16), maxLocals))
		names := r.mem.word(code + uint64(r.lay.localNames))
		if r.lay.minor <= 10 {
			names = r.mem.word(code + uint64(r.lay.freeVars))
		}
		count := int(min(r.mem.word(names+16), maxLocals))
		if i := count - cells + n; i >= 0 && i < count {
			if t := r.py.text(r.mem.word(names + 24 + 8*uint64(i))); t.kind == textStr && identifier(t.s) {
				return t.s
			}
		}
		break
	}
	return "[" + strconv.Itoa(n) + "]"
}
