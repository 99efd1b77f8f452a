// Package live follows a trace, a recording or an agent: how much GPU memory each process,
// owner and stack holds, and how fast it grows.
//
// A Source returns snapshots. A Tracker makes a status of each, which adds what changed since
// the snapshots before. internal/top shows it in a terminal, and internal/agent/server on a
// page.
package live

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// A Snapshot is a snapshot by a Source, with the call sites of its samples.
type Snapshot struct {
	Snapshot *snapshot.Snapshot
	// Sites are the call sites of the first samples, in their order.
	Sites []ledger.SiteKey
	// Cost is what the view and the trace themselves cost since they began, nil where that
	// is not known.
	Cost *Cost
	// Older is how many live allocations were left out, the oldest, where there are too
	// many.
	Older int
	// Ended says why there will be nothing new, "" while there may be.
	Ended string
}

// Youngest drops all live allocations but the youngest n.
func (l *Snapshot) Youngest(n int) {
	if older := len(l.Snapshot.Live) - n; older > 0 {
		l.Older += older
		l.Snapshot.Live = l.Snapshot.Live[older:]
	}
}

// A Cost is what the trace and the view of it cost, both of this process.
type Cost struct {
	CPU    time.Duration `json:"cpu_ns"`       // of all its threads, in user space and in the kernel
	Memory int64         `json:"memory_bytes"` // the most bytes that were resident
}

// A Query says what a snapshot must show.
type Query struct {
	// At is how long after the trace began, for a source with a Span. Others show the
	// present.
	At time.Duration
	// Allocations, if set, is the call site whose live allocations are wanted.
	Allocations *ledger.SiteKey
}

// A Source returns snapshots. It is for one goroutine.
type Source interface {
	// Snapshot may be slow. The collection of events does not wait for it.
	Snapshot(Query) (*Snapshot, error)
	// Span is how long a recording is, and how much memory was in use through it, in
	// parts of equal length; 0 where time goes on by itself.
	Span() (time.Duration, []int64)
}

// A maker makes snapshots of a state for a Source. Stacks that it has made before cost nothing.
type maker struct{ shapes *state.Shapes }

func newMaker() maker { return maker{state.NewShapes()} }

// want returns what a snapshot must have.
func (l maker) want(q Query) state.Want {
	w := state.Want{Driver: true, GPUs: true, Shapes: l.shapes, Holders: q.Allocations == nil, Windows: q.Allocations == nil}
	if q.Allocations != nil {
		w.Live, w.LiveOf = true, []ledger.SiteKey{*q.Allocations}
	}
	return w
}

func (maker) snapshot(v *state.View) *Snapshot {
	out := &Snapshot{Snapshot: v.Snapshot()}
	out.Sites = make([]ledger.SiteKey, 0, len(out.Snapshot.Samples))
	for key := range v.Sites {
		out.Sites = append(out.Sites, key)
	}
	return out
}
