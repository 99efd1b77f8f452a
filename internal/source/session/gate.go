package session

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// A gate is where the events of all tenants enter the state. It keeps each tenant to its part of
// each table: at most seven times as much as is free. So a tenant alone can fill seven eighths. One
// that comes then finds room for 7/64 at once, and for more as the first frees memory: the first
// gets no more until both have the same. n tenants that want more have 7/(7n+1) each, and what one
// does not want the others have. Nothing that a tenant has is taken back, but for call sites that
// hold nothing. What a tenant allocates beyond its part has no row and no call site of its own, and
// counts in all totals. Beyond its part of a table that totals need, the model takes its
// allocations as if that table were full.
type gate struct {
	limits map[uint16]limits // of tenants that have some
	seen   int               // events and frames since the last look
	next   int               // how many there are at the next
	lost   *loss.Set
}

// part is how many times as much as is free a tenant may have.
const part = 7

// limits are what a tenant has no room for.
type limits struct {
	detail, sizes [state.NumLayers]bool
	frames        bool
}

var gateCauses loss.Causes

var lossFrames = gateCauses.Add("stacks_shut_out", "stacks without frames, because their tenant has used up its part of the frames that are kept")

func newGate() *gate {
	return &gate{limits: map[uint16]limits{}, lost: loss.New(gateCauses)}
}

// admit marks an event for which its tenant has no room. It reports whether the record enters the state:
// only a stack may be refused.
func (g *gate) admit(s *state.State, r record.Record) bool {
	switch r := r.(type) {
	case *event.Event:
		g.pass(s, 1)
		if len(g.limits) > 0 && brings(r.Op) {
			g.mark(r)
		}
	case *record.Stack:
		g.pass(s, 1+len(r.Frames)/64)
		if g.limits[s.Tenant(r.Process)].frames {
			g.lost.Add(lossFrames, 1)
			s.Refuse(r) // the kernel side sends it again later
			return false
		}
	}
	return true
}

// mark sets what the model must leave out of its tables (Bare and Shut).
func (g *gate) mark(e *event.Event) {
	l := state.Driver
	switch {
	case e.Op.Tensor():
		l = state.Tensors
	case e.Op.Kernel():
		l = state.Physical
	}
	of := g.limits[e.Tenant]
	e.Bare, e.Shut = of.detail[l] || of.sizes[l], of.sizes[l]
}

// brings reports whether an operation makes entries in tables.
func brings(op event.Op) bool {
	switch op {
	case event.OpAlloc, event.OpOpen, event.OpHandleCreate, event.OpHandleImport, event.OpMap, event.OpMapArray, event.OpTensorAlloc:
		return true
	}
	return op.Kernel() && op != event.OpGPU && op != event.OpObjectFree && op != event.OpDescriptorClose
}

// pass counts what comes in. When so much has come that a table may have filled by a hundredth, it has look
// set the limits anew.
func (g *gate) pass(s *state.State, n int) {
	if g.seen += n; g.seen < g.next {
		return
	}
	g.seen = 0
	bounds, filled := s.Bounds(), s.Filled()
	// Between two looks, less than a hundredth of each table fills.
	g.next = max(1, smallest(&bounds)/128)
	if free := without(&bounds, &filled); len(g.limits) == 0 && !exceeds(filled[:], free[:]) {
		return // not even one tenant that had everything would
	}
	g.look(s, bounds)
}

// look sets the limits.
func (g *gate) look(s *state.State, free state.Filled) {
	g.next = max(g.next, s.CountLiving()/8) // it visits them all
	by := s.FilledBy()
	for _, f := range by {
		free = without(&free, f)
	}
	clear(g.limits)
	for tenant, f := range by {
		var of limits
		for l := range state.NumLayers {
			if n, left := f.Sites(l), free.Sites(l); *n > part**left {
				folded := s.FoldSites(l, tenant)
				*n, *left = *n-folded, *left+folded
			}
			of.detail[l], of.sizes[l] = exceeds(f.Detail(l), free.Detail(l)), exceeds(f.Sizes(l), free.Sizes(l))
		}
		if of.frames = *f.Frames() > part**free.Frames(); of != (limits{}) {
			g.limits[tenant] = of
		}
	}
}

// without returns what is left of a.
func without(a, b *state.Filled) (left state.Filled) {
	for i := range a {
		left[i] = a[i] - b[i]
	}
	return left
}

// smallest returns the bound of the smallest table.
func smallest(bounds *state.Filled) int {
	least := math.MaxInt
	for _, n := range bounds {
		if n > 0 { // a layer may lack a table
			least = min(least, n)
		}
	}
	return least
}

// exceeds reports whether n entries of any table are more than a tenant's part.
func exceeds(n, free []int) bool {
	for i := range n {
		if n[i] > part*free[i] {
			return true
		}
	}
	return false
}

// notes names a process of each tenant that is kept to its part.
func (g *gate) notes(s *state.State) (out []string) {
	if len(g.limits) == 0 {
		return nil
	}
	pids := map[uint16]uint32{}
	for id := range s.Living {
		if tenant := s.Tenant(id); pids[tenant] == 0 || id.PID < pids[tenant] {
			pids[tenant] = id.PID
		}
	}
	for tenant, of := range g.limits {
		if pids[tenant] == 0 {
			continue // it has ended
		}
		what := "have no call stack for now, and are in all totals"
		if of.sizes != (limits{}).sizes {
			what = "are in no total for now"
		}
		out = append(out, fmt.Sprintf("new allocations of process %d, and of others of its container, job or user, %s: they have their part of a table", pids[tenant], what))
	}
	slices.Sort(out)
	return out
}
