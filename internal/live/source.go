// Package live follows a trace, a recording or an agent from one look to the next: who
// holds how much GPU memory, what grows, and how fast.
//
// A Source returns a Look at a moment. A Tracker turns Looks into Pictures, which add what
// changed since the Looks before. internal/top shows Pictures in a terminal, and
// internal/agent/server on a page.
package live

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// A Look is what a Source shows of one moment.
type Look struct {
	Snapshot *snapshot.Snapshot
	// Sites are the call sites of the first of the Snapshot's samples, in their order.
	Sites []ledger.SiteKey
	// Cost is what the view and the trace themselves took since they began, nil where
	// that is not known.
	Cost *Cost
	// Older are the live allocations that were asked for and that Snapshot has not: the
	// oldest, where they are too many.
	Older int
	// Ended says why there will be nothing new, "" while there may be.
	Ended string
}

// Youngest leaves of the live allocations the youngest n.
func (l *Look) Youngest(n int) {
	if older := len(l.Snapshot.Live) - n; older > 0 {
		l.Older += older
		l.Snapshot.Live = l.Snapshot.Live[older:]
	}
}

// A Cost is what this process took: the trace, and the view of it.
type Cost struct {
	CPU    time.Duration // of all its threads, in user space and in the kernel
	Memory int64         // the most bytes that were resident
}

// A Query says what to look at.
type Query struct {
	// At is how long after the trace began, of a source with a Span; the others show
	// what is.
	At time.Duration
	// Allocations, if set, is the call site whose live allocations are wanted.
	Allocations *ledger.SiteKey
}

// A Source says who holds what. It is for one goroutine.
type Source interface {
	// Look may take a while; who collects events does not wait for it.
	Look(Query) (*Look, error)
	// Span is how long a recording is, and how much memory was in use through it, in
	// parts of equal length; 0 where time goes on by itself.
	Span() (time.Duration, []int64)
}

// A looker makes Looks of Views. Stacks that it has shown cost nothing again.
type looker struct{ shapes *state.Shapes }

func newLooker() looker { return looker{state.NewShapes()} }

// want is what a View must have.
func (l looker) want(q Query) state.Want {
	return state.Want{Driver: true, GPUs: true, Live: q.Allocations != nil, LiveOf: q.Allocations, Shapes: l.shapes}
}

func (looker) look(v *state.View) *Look {
	out := &Look{Snapshot: v.Snapshot()}
	out.Sites = make([]ledger.SiteKey, 0, len(out.Snapshot.Samples))
	for key := range v.Sites {
		out.Sites = append(out.Sites, key)
	}
	return out
}
