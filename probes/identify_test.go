package probes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// Processes that have one PID in turn, within a clock tick or not, are as many as there
// were: each is forked, allocates and ends under a name of its own.
func TestProcessesOfOnePID(t *testing.T) {
	const processes = 40
	p := withOdd(t, "samepid.c")
	tr := openTrace(t, Options{Follow: true})
	tr.target(p.pid())
	free := exec.Command("true") // its PID is nobody's once it was waited for
	if err := free.Run(); err != nil {
		t.Fatal(err)
	}
	p.do(fmt.Sprintln(free.Process.Pid, processes), fmt.Sprint(processes))
	allocated, steps := map[event.Process]int{}, map[event.Op]map[event.Process]bool{event.OpFork: {}, event.OpExit: {}}
	ticks := map[uint64]bool{}
	for _, e := range tr.drain() {
		id := e.Proc
		if e.Op == event.OpFork {
			id = e.Child
		}
		switch e.Op {
		case event.OpAlloc:
			allocated[id]++
			ticks[id.Ticks()] = true
		case event.OpFork, event.OpExit:
			steps[e.Op][id] = true
		}
	}
	t.Logf("%d processes in %d clock ticks", len(allocated), len(ticks))
	if len(allocated) != processes || len(steps[event.OpFork]) != processes || len(steps[event.OpExit]) != processes {
		t.Errorf("%d processes allocated, %d were forked and %d ended, want %d each",
			len(allocated), len(steps[event.OpFork]), len(steps[event.OpExit]), processes)
	}
	for id, n := range allocated {
		if n != 1 || !steps[event.OpFork][id] || !steps[event.OpExit][id] {
			t.Errorf("%v: %d allocations, forked %t, ended %t", id, n, steps[event.OpFork][id], steps[event.OpExit][id])
		}
	}
	if len(ticks) == processes {
		t.Error("each began in a clock tick of its own: the machine is too slow to tell")
	}
}

// A process is called what its events call it, and /proc agrees.
func TestIdentify(t *testing.T) {
	p := odd(t)
	tr := openTrace(t, Options{Follow: true})
	tr.target(p.pid())
	p.do("nested 1", "nested")
	events := tr.drain()
	id, err := tr.Identify(p.pid())
	if err != nil || len(events) != 1 || events[0].Proc != id {
		t.Fatalf("%v, %v, but its events are of:%s", id, err, format(events))
	}
	if ticks, err := proc.StartTicks(p.pid()); err != nil || ticks != id.Ticks() {
		t.Errorf("it began after %d ticks, or %d by /proc, %v", id.Ticks(), ticks, err)
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if id, err := tr.Identify(gone.Process.Pid); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a process that has ended: %v, %v", id, err)
	}
}
