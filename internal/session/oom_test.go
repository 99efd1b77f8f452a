package session

import (
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
)

// A framework that gives thousands of pieces back after its failed call says
// what it wanted after that: the report waits for it, but not for ever.
func TestIncidentLastsWhileMemoryIsGivenBack(t *testing.T) {
	now := time.Now()
	for op, lasts := range map[event.Op]bool{event.OpUnmap: true, event.OpHandleRelease: true, event.OpFree: false, event.OpAlloc: false} {
		failed := now.Add(-recoveryWindow + 100*time.Millisecond)
		in := &incident{at: failed, last: failed}
		e := &event.Event{Op: op, Proc: event.Process{PID: 7}, TID: 8, Size: 1}
		r := &recorder{open: map[threadKey]*incident{{e.Proc, e.TID}: in}}
		r.observe(e)
		if got := !in.ended(failed.Add(recoveryWindow)); got != lasts {
			t.Errorf("after op %d it lasts %v, want %v", op, got, lasts)
		}
		in.last = now.Add(time.Hour)
		if !in.ended(failed.Add(longestIncident)) {
			t.Error("it lasts for ever")
		}
	}
}
