package ledger

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// maxGraphs bounds the graphs of one process that have memory nodes, and
// maxCaptures its stream captures under way.
const (
	maxGraphs = 1 << 16
	// Rows that are looked at to move graphs: a move looks at all of the process.
	maxLooked     = 1 << 26
	looksPerEvent = 1 << 10
	maxCaptures   = 1 << 10
)

// A graph is a CUgraph with live memory nodes, or one that a stream capture
// makes. The programming guide, "Graph Memory Nodes": a node's address range
// is its own until the graph is destroyed, and destruction frees no memory
// that a run allocated and nothing freed. So the end of a graph that was never
// instantiated ends its ranges; those of any other are kept until they are
// freed. A graph with memory nodes can be neither cloned nor a copied child.
type graph struct {
	handle   uint64 // 0: it is being captured, or destroyed
	time     uint64 // when the handle was first seen to be its
	live     int    // memory nodes that have a row
	captures int    // captures under way that add to it
	ran      bool   // it was instantiated: it may have run
}

type capture struct {
	stream uint64
	thread uint32 // of the stream, where each thread has its own
	by     uint32 // the thread that began it
	time   uint64
	graph  uint32 // index into process.graphs
}

// newGraph returns the index of a new graph, which is 0 when there are too
// many.
func (l *Ledger) newGraph(p *process) uint32 {
	i, ok := put(&p.graphs, &p.freeGraph, 1+maxGraphs, graph{})
	if !ok {
		l.loss.Add(lossGraphs, 1)
	}
	return i
}

// nameGraph gives graph i the handle that it has at time t. A graph that had it
// was destroyed without our seeing it.
func (l *Ledger) nameGraph(p *process, i uint32, handle, t uint64) {
	if i == 0 || handle == 0 || p.graphs[i].handle == handle {
		return
	}
	if old, ok := p.graphAt[handle]; ok {
		l.loss.Add(lossGraphKept, uint64(p.graphs[old].live))
		p.graphs[old].handle = 0
	}
	delete(p.graphAt, p.graphs[i].handle)
	p.graphs[i].handle, p.graphs[i].time = handle, t
	p.graphAt[handle] = i
}

// graphOf returns the index of the graph that e.Handle is, made if need be.
func (l *Ledger) graphOf(p *process, e *event.Event) uint32 {
	if i, ok := p.graphAt[e.Handle]; ok {
		return i
	}
	i := l.newGraph(p)
	l.nameGraph(p, i, e.Handle, e.Time)
	return i
}

// graphHold changes how many memory nodes of graph i have a row.
func (p *process) graphHold(i uint32, n int) {
	if i != 0 {
		p.graphs[i].live += n
		p.settleGraph(i)
	}
}

// settleGraph gives the place i back if nothing needs it.
func (p *process) settleGraph(i uint32) {
	g := &p.graphs[i]
	if i == 0 || g.live > 0 || g.captures > 0 {
		return
	}
	if g.handle != 0 {
		delete(p.graphAt, g.handle)
	}
	p.freeGraph = append(p.freeGraph, i)
}

// endNodes ends the memory nodes of graph i not newer than t.
func (l *Ledger) endNodes(p *process, i uint32, t uint64) {
	if i == 0 || p.graphs[i].live == 0 {
		return
	}
	l.endRows(p, t, func(r *row) bool {
		return r.owner == i && p.sites[r.site].Kind == event.KindGraph
	})
}

func (l *Ledger) graphDestroy(p *process, e *event.Event) {
	i, ok := p.graphAt[e.Handle]
	if !ok {
		return
	}
	g := &p.graphs[i]
	if e.Time < g.time {
		l.loss.Add(lossStale, 1) // the end of an earlier graph of this handle
		return
	}
	if !g.ran {
		l.endNodes(p, i, e.Time)
		return
	}
	l.loss.Add(lossGraphKept, uint64(g.live))
	delete(p.graphAt, e.Handle)
	g.handle = 0
}

func (l *Ledger) graphMove(p *process, e *event.Event) {
	from, ok := p.graphAt[e.Part]
	if !ok || e.Part == e.Handle {
		return
	}
	rows := p.shares[SharedRows].Len()
	if l.looked+rows > maxLooked+looksPerEvent*l.events {
		l.loss.Add(lossGraphs, 1)
		return
	}
	l.looked += rows
	to := l.graphOf(p, e)
	n := 0
	for _, live := range p.live {
		for addr, r := range live {
			if r.owner == from && p.sites[r.site].Kind == event.KindGraph {
				r.owner = to
				live[addr] = r
				n++
			}
		}
	}
	p.graphHold(to, n)
	p.graphHold(from, -n)
}

func (*Ledger) graphInstantiate(p *process, e *event.Event) {
	if i, ok := p.graphAt[e.Handle]; ok {
		p.graphs[i].ran = true
	}
}

// streamOf returns the stream of e, and the thread that it belongs to if each
// thread has its own.
func streamOf(e *event.Event) (stream uint64, thread uint32) {
	if e.Stream == event.StreamPerThread {
		return e.Stream, e.TID
	}
	return e.Stream, 0
}

// findCapture returns the index of the capture of e's stream, or -1.
func (p *process) findCapture(e *event.Event) int {
	stream, thread := streamOf(e)
	return slices.IndexFunc(p.captures, func(c capture) bool { return c.stream == stream && c.thread == thread })
}

func (p *process) endCapture(i int) {
	g := p.captures[i].graph
	p.captures = slices.Delete(p.captures, i, i+1)
	if g != 0 {
		p.graphs[g].captures--
		p.settleGraph(g)
	}
}

func (l *Ledger) captureBegin(p *process, e *event.Event) {
	if i := p.findCapture(e); i >= 0 {
		l.loss.Add(lossCaptures, 1) // its end was not seen
		p.endCapture(i)
	}
	if len(p.captures) >= maxCaptures {
		l.loss.Add(lossGraphs, 1)
		return
	}
	stream, thread := streamOf(e)
	c := capture{stream: stream, thread: thread, by: e.TID, time: e.Time}
	if e.Handle != 0 {
		c.graph = l.graphOf(p, e)
	} else {
		c.graph = l.newGraph(p)
	}
	if c.graph != 0 {
		p.graphs[c.graph].captures++
	}
	p.captures = append(p.captures, c)
}

// captureEnd applies OpCaptureEnd. With an error that is not about the call, as
// when it was invalidated or left a stream unjoined, a capture ends and makes
// no graph: its nodes never run.
func (l *Ledger) captureEnd(p *process, e *event.Event) {
	i := p.findCapture(e)
	switch e.Result {
	case event.Success:
		if i < 0 {
			l.loss.Add(lossCaptures, 1) // its beginning was not seen
			return
		}
		l.nameGraph(p, p.captures[i].graph, e.Handle, e.Time)
	case event.InvalidValue, event.InvalidHandle, event.IllegalState,
		event.CaptureUnmatched, event.CaptureWrongThread:
		return // it goes on
	default:
		if i < 0 {
			return
		}
		if g := p.captures[i].graph; g != 0 && p.graphs[g].handle == 0 {
			l.endNodes(p, g, e.Time)
		}
	}
	p.endCapture(i)
}

// captured returns the graph that the stream-ordered allocation e becomes a
// node of, if it does.
//
// A stream joins a capture by waiting for an event, which is not seen. So what is
// allocated on another stream meanwhile is taken for the graph's if the capturing
// thread allocates it, because work outside the capture would wait for its end, and
// for memory in use if another thread does. Both are counted.
func (l *Ledger) captured(p *process, e *event.Event) (graph uint32, ok bool) {
	if i := p.findCapture(e); i >= 0 && p.captures[i].time <= e.Time {
		return p.captures[i].graph, true
	}
	open := false
	for _, c := range slices.Backward(p.captures) {
		if c.time > e.Time {
			continue
		}
		open = true
		if c.by == e.TID {
			graph, ok = c.graph, true
			break
		}
	}
	if open {
		l.loss.Add(lossCapture, 1)
	}
	return graph, ok
}

// resetGraphs forgets p's graphs and captures, but for what is newer than t.
func (p *process) resetGraphs(t uint64) {
	for i, c := range slices.Backward(p.captures) {
		if c.time <= t {
			p.endCapture(i)
		}
	}
}
