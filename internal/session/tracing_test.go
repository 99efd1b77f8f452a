package session_test

import (
	"github.com/gpumemtrace/gpumemtrace/internal/session"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/state"
)

// tracing is a session whose snapshots show traced allocations alone.
type tracing struct{ *session.Session }

func (s tracing) Snapshot(live bool) *snapshot.Snapshot {
	return s.View(state.Want{Live: live}).Snapshot()
}

func (s tracing) Report(live bool) *snapshot.Snapshot {
	return s.Session.Report(state.Want{Live: live}).Snapshot()
}

// into returns an Options.OutOfMemory that hands over what it gets.
func into(records chan<- *snapshot.OutOfMemory) func(*state.Incident) {
	return func(in *state.Incident) { records <- in.OutOfMemory(state.Want{}) }
}
