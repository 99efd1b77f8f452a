package probes

import (
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// gathered keeps what Run hands it.
type gathered struct {
	events []event.Event
	stacks []Stack
}

func (g *gathered) Event(e *event.Event) { g.events = append(g.events, *e) }
func (g *gathered) Stack(s *Stack)       { g.stacks = append(g.stacks, *s) }

// Calls of this process come through the ring buffer as others do, and nothing of it
// is traced after.
func TestCallSelf(t *testing.T) {
	needTracing(t)
	tr, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	const calls, size = 3, 4711
	if err := tr.CallSelf(calls, size); err != nil {
		t.Fatal(err)
	}
	callSelf(size) // without a probe
	done := make(chan error, 1)
	var g gathered
	go func() { done <- tr.Run(&g, nil) }()
	time.Sleep(2 * idleInterval)
	if err := tr.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(g.events) != calls || len(g.stacks) != 1 {
		t.Fatalf("%d events and %d stacks, want %d and one", len(g.events), len(g.stacks), calls)
	}
	for _, e := range g.events {
		if e.Op != event.OpAlloc || e.Size != size || e.Result == 0 || e.Stack != g.stacks[0].ID {
			t.Errorf("%+v; want a failed allocation of %d bytes at stack %x", e, size, g.stacks[0].ID)
		}
	}
	if tr.targets.has(int(g.events[0].Proc.PID)) {
		t.Error("this process is still traced")
	}
}
