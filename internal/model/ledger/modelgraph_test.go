package ledger

import (
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

type modelGraph struct {
	handle, time uint64
	ran          bool
}

type modelCapture struct {
	stream     uint64
	thread, by uint32
	time       uint64
	graph      *modelGraph
}

func (p *modelProc) nodes(g *modelGraph) (n uint64) {
	for _, a := range p.allocs {
		if a.graph == g {
			n++
		}
	}
	return n
}

// pruneGraphs forgets graphs without memory nodes that no capture adds to.
func (p *modelProc) pruneGraphs() {
	maps.DeleteFunc(p.graphs, func(_ uint64, g *modelGraph) bool {
		return p.nodes(g) == 0 && !slices.ContainsFunc(p.captures, func(c *modelCapture) bool { return c.graph == g })
	})
}

func (m *model) name(p *modelProc, g *modelGraph, e *event.Event) {
	if e.Handle == 0 || g.handle == e.Handle {
		return
	}
	if old := p.graphs[e.Handle]; old != nil {
		if n := p.nodes(old); n > 0 {
			m.loss["graph_memory_kept"] += n
		}
		old.handle = 0
	}
	if g.handle != 0 {
		delete(p.graphs, g.handle)
	}
	g.handle, g.time = e.Handle, e.Time
	p.graphs[e.Handle] = g
}

func (m *model) graph(p *modelProc, e *event.Event) *modelGraph {
	if p.graphs[e.Handle] == nil {
		m.name(p, &modelGraph{}, e)
	}
	return p.graphs[e.Handle]
}

func (p *modelProc) capture(e *event.Event) *modelCapture {
	for _, c := range p.captures {
		if c.stream == e.Stream && (e.Stream != 2 || c.thread == e.TID) {
			return c
		}
	}
	return nil
}

func (p *modelProc) endCapture(c *modelCapture) {
	p.captures = slices.DeleteFunc(p.captures, func(d *modelCapture) bool { return c == d })
	p.pruneGraphs()
}

func (m *model) captureBegin(p *modelProc, e *event.Event) {
	if c := p.capture(e); c != nil {
		m.loss["captures_unmatched"]++
		p.endCapture(c)
	}
	c := &modelCapture{stream: e.Stream, thread: e.TID, by: e.TID, time: e.Time, graph: &modelGraph{}}
	if e.Handle != 0 {
		c.graph = m.graph(p, e)
	}
	p.captures = append(p.captures, c)
}

func (m *model) captureEnd(p *modelProc, e *event.Event) {
	c := p.capture(e)
	switch {
	case slices.Contains([]int32{1, 400, 401, 903, 908}, e.Result):
		return
	case c == nil && e.Result == 0:
		m.loss["captures_unmatched"]++
		return
	case c == nil:
		return
	case e.Result == 0:
		m.name(p, c.graph, e)
	case c.graph.handle == 0:
		p.endAllocs(func(a *modelAlloc) bool { return a.graph == c.graph && a.time <= e.Time })
	}
	p.endCapture(c)
}

// capturing returns the graph that a stream-ordered allocation is a node of.
func (m *model) capturing(p *modelProc, e *event.Event) *modelGraph {
	if c := p.capture(e); c != nil && c.time <= e.Time {
		return c.graph
	}
	var g *modelGraph
	open := false
	for _, c := range p.captures { // the newest one counts
		if c.time <= e.Time {
			open = true
			if c.by == e.TID {
				g = c.graph
			}
		}
	}
	if open {
		m.loss["allocations_during_capture"]++
	}
	return g
}

func (m *model) graphOp(p *modelProc, e *event.Event) {
	g := p.graphs[e.Handle]
	switch e.Op {
	case event.OpGraphInstantiate:
		if g != nil {
			g.ran = true
		}
	case event.OpGraphMove:
		child := p.graphs[e.Part]
		if child == nil || e.Part == e.Handle {
			return
		}
		g = m.graph(p, e)
		for _, a := range p.allocs {
			if a.graph == child {
				a.graph = g
			}
		}
	case event.OpGraphDestroy:
		switch {
		case g == nil:
		case e.Time < g.time:
			m.loss["frees_stale"]++
		case g.ran:
			if n := p.nodes(g); n > 0 {
				m.loss["graph_memory_kept"] += n
			}
			delete(p.graphs, e.Handle)
			g.handle = 0
		default:
			p.endAllocs(func(a *modelAlloc) bool { return a.graph == g && a.time <= e.Time })
		}
	}
}
