package ledger

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

const (
	// maxGraphs bounds the graphs of one process that have memory nodes, maxCaptures its
	// stream captures under way.
	maxGraphs   = 1 << 16
	maxCaptures = 1 << 10
	// These bound the rows that are visited to move graphs: a move visits all rows of
	// its process.
	maxVisited     = 1 << 22
	visitsPerEvent = 1 << 4
)

// A graph is a CUgraph with live memory nodes, or one that a stream capture
// makes. The programming guide, "Graph Memory Nodes": a node's address range
// is its own until the graph is destroyed, and destruction frees no memory
// that a run allocated and nothing freed. So the end of a graph that was never
// instantiated ends its ranges; those of any other stay until they are
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
	graph  uint32 // index into graphTable.all
}

// A graphTable has the graphs of one process and its stream captures under way. Graph 0
// stands for those beyond the limit.
type graphTable struct {
	slots[graph]
	p        *process
	at       map[uint64]uint32 // by handle
	captures []capture         // in order of appearance
}

func newGraphTable(p *process) graphTable {
	return graphTable{slots: slots[graph]{all: make([]graph, 1)}, p: p, at: map[uint64]uint32{}}
}

// create returns the index of a new graph, which is 0 when there are too many.
func (t *graphTable) create() uint32 {
	i, ok := t.put(1+maxGraphs, graph{})
	if !ok {
		t.p.loss.Add(lossGraphs, 1)
	}
	return i
}

// name gives graph i the handle that it has at time at. A graph that had that handle
// before was destroyed without being seen.
func (t *graphTable) name(i uint32, handle, at uint64) {
	if i == 0 || handle == 0 || t.all[i].handle == handle {
		return
	}
	if old, ok := t.at[handle]; ok {
		t.p.loss.Add(lossGraphKept, uint64(t.all[old].live))
		t.all[old].handle = 0
	}
	delete(t.at, t.all[i].handle)
	t.all[i].handle, t.all[i].time = handle, at
	t.at[handle] = i
}

// index returns the index of the graph that e.Handle names, made if need be.
func (t *graphTable) index(e *event.Event) uint32 {
	if i, ok := t.at[e.Handle]; ok {
		return i
	}
	i := t.create()
	t.name(i, e.Handle, e.Time)
	return i
}

// add changes how many memory nodes of graph i have a row.
func (t *graphTable) add(i uint32, n int) {
	if i != 0 {
		t.all[i].live += n
		t.removeUnused(i)
	}
}

func (t *graphTable) removeUnused(i uint32) {
	g := &t.all[i]
	if i == 0 || g.live > 0 || g.captures > 0 {
		return
	}
	if g.handle != 0 {
		delete(t.at, g.handle)
	}
	t.release(i)
}

// endNodes ends the memory nodes of graph i that are not newer than at.
func (t *graphTable) endNodes(i uint32, at uint64) {
	if i == 0 || t.all[i].live == 0 {
		return
	}
	t.p.allocs.endRows(at, func(r *row) bool { return t.has(i, r) })
}

// has returns whether r is a memory node of graph i.
func (t *graphTable) has(i uint32, r *row) bool {
	return r.owner == i && t.p.sites.all[r.site].Kind == event.KindGraph
}

func (t *graphTable) destroy(e *event.Event) {
	i, ok := t.at[e.Handle]
	if !ok {
		return
	}
	switch g := &t.all[i]; {
	case e.Time < g.time:
		t.p.loss.Add(lossStale, 1) // the end of an earlier graph of this handle
	case !g.ran:
		t.endNodes(i, e.Time)
	default:
		t.p.loss.Add(lossGraphKept, uint64(g.live))
		delete(t.at, e.Handle)
		g.handle = 0
	}
}

// move applies OpGraphMove: the memory nodes of one graph become another one's.
func (t *graphTable) move(e *event.Event) {
	from, ok := t.at[e.Part]
	if !ok || e.Part == e.Handle {
		return
	}
	l, rows := t.p.l, t.p.held[Rows]
	if l.visited+rows > maxVisited+visitsPerEvent*l.events {
		t.p.loss.Add(lossGraphs, 1)
		return
	}
	l.visited += rows
	to := t.index(e)
	n := 0
	for space := range t.p.allocs.live {
		live := &t.p.allocs.live[space]
		for addr, r := range live.all {
			if t.has(from, &r) {
				r.owner = to
				live.put(addr, &r)
				n++
			}
		}
	}
	t.add(to, n)
	t.add(from, -n)
}

func (t *graphTable) instantiate(e *event.Event) {
	if i, ok := t.at[e.Handle]; ok {
		t.all[i].ran = true
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
func (t *graphTable) findCapture(e *event.Event) int {
	stream, thread := streamOf(e)
	return slices.IndexFunc(t.captures, func(c capture) bool { return c.stream == stream && c.thread == thread })
}

func (t *graphTable) removeCapture(i int) {
	g := t.captures[i].graph
	t.captures = slices.Delete(t.captures, i, i+1)
	if g != 0 {
		t.all[g].captures--
		t.removeUnused(g)
	}
}

func (t *graphTable) beginCapture(e *event.Event) {
	if i := t.findCapture(e); i >= 0 {
		t.p.loss.Add(lossCaptures, 1) // its end was not seen
		t.removeCapture(i)
	}
	if len(t.captures) >= maxCaptures {
		t.p.loss.Add(lossGraphs, 1)
		return
	}
	stream, thread := streamOf(e)
	c := capture{stream: stream, thread: thread, by: e.TID, time: e.Time}
	if e.Handle != 0 {
		c.graph = t.index(e)
	} else {
		c.graph = t.create()
	}
	if c.graph != 0 {
		t.all[c.graph].captures++
	}
	t.captures = append(t.captures, c)
}

// endCapture applies OpCaptureEnd. With an error that is not about the call, as
// when it was invalidated or left a stream unjoined, a capture ends and makes
// no graph: its nodes never run.
func (t *graphTable) endCapture(e *event.Event) {
	i := t.findCapture(e)
	switch e.Result {
	case event.Success:
		if i < 0 {
			t.p.loss.Add(lossCaptures, 1) // its beginning was not seen
			return
		}
		t.name(t.captures[i].graph, e.Handle, e.Time)
	case event.InvalidValue, event.InvalidHandle, event.IllegalState,
		event.CaptureUnmatched, event.CaptureWrongThread:
		return // it goes on
	default:
		if i < 0 {
			return
		}
		if g := t.captures[i].graph; g != 0 && t.all[g].handle == 0 {
			t.endNodes(g, e.Time)
		}
	}
	t.removeCapture(i)
}

// captured returns the graph that the stream-ordered allocation e becomes a
// node of, if it does.
//
// A stream joins a capture by waiting for an event, which is not seen. So what is
// allocated on another stream during a capture counts as the graph's if the capturing
// thread allocates it, because work outside the capture would wait for its end, and
// as memory in use if another thread does. Both are counted.
func (t *graphTable) captured(e *event.Event) (graph uint32, ok bool) {
	if i := t.findCapture(e); i >= 0 && t.captures[i].time <= e.Time {
		return t.captures[i].graph, true
	}
	open := false
	for _, c := range slices.Backward(t.captures) {
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
		t.p.loss.Add(lossCapture, 1)
	}
	return graph, ok
}

// reset removes the captures that are not newer than at.
func (t *graphTable) reset(at uint64) {
	for i, c := range slices.Backward(t.captures) {
		if c.time <= at {
			t.removeCapture(i)
		}
	}
}
