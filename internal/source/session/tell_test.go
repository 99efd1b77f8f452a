package session

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// What somebody else knows of processes is told, also of one that has ended.
func TestTell(t *testing.T) {
	s := newStore(record.Trace{})
	pod, other := event.Process{PID: 7, Start: 70}, event.Process{PID: 8, Start: 80}
	s.apply(&record.Process{Process: pod, Target: true, Who: snapshot.Who{User: "ada", PodUID: "uid"}})
	s.apply(&record.Process{Process: other, Target: true})
	s.apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: pod, TID: 7, Time: 90, Addr: 1 << 20, Size: 1})
	s.apply(&event.Event{Op: event.OpExit, Proc: pod, TID: 7, Time: 100})
	names := snapshot.Who{Namespace: "research", Pod: "train-0", Container: "main"}
	asked := 0
	tell := func() {
		s.Tell(func(known snapshot.Who) snapshot.Who {
			asked++
			if known.PodUID == "" {
				return snapshot.Who{}
			}
			return names
		})
	}
	tell()
	want := snapshot.Who{User: "ada", Namespace: "research", Pod: "train-0", PodUID: "uid", Container: "main"}
	if got := state.WhoOf(s.state, pod); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := state.WhoOf(s.state, other); got != (snapshot.Who{}) {
		t.Errorf("%+v of the other", got)
	}
	if asked != 2 {
		t.Errorf("asked %d times", asked)
	}
}
