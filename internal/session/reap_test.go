package session

import (
	"os/exec"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
)

// A target whose exit event was lost ends all the same, with what it held, at
// the second look; one that runs does not.
func TestReap(t *testing.T) {
	running := exec.Command("sleep", "60")
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		running.Process.Kill()
		running.Wait()
	})
	over := exec.Command("true")
	if err := over.Start(); err != nil { // and not waited for: a zombie has ended
		t.Fatal(err)
	}
	defer over.Wait()
	for end := time.Now().Add(10 * time.Second); !ended(over.Process.Pid); {
		if time.Now().After(end) {
			t.Fatal("it runs on")
		}
	}
	s := &Session{ledger: ledger.New(ledger.Options{}), procs: newProcesses(), boot: time.Now().Add(-time.Hour)}
	h := handler{s}
	dead := event.Process{PID: uint32(over.Process.Pid), Start: 1}
	s.procs.expect(over.Process.Pid)
	s.procs.expect(running.Process.Pid)
	s.ledger.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: dead, Time: 1, Addr: 0x1000, Size: 64})

	state := func() (exited bool, alive int) {
		for p := range s.ledger.Processes {
			exited = p.Exited
		}
		return exited, len(s.procs.alive)
	}
	now := time.Now()
	h.reap(now)
	h.reap(now.Add(reapInterval / 2)) // too soon to count as a second look
	if exited, alive := state(); exited || alive != 2 {
		t.Errorf("after one look: exited %v, %d alive", exited, alive)
	}
	h.reap(now.Add(reapInterval))
	h.reap(now.Add(2 * reapInterval))
	if exited, alive := state(); !exited || alive != 1 {
		t.Errorf("after two: exited %v, %d alive", exited, alive)
	}
	select {
	case <-s.Done():
		t.Error("done while a target runs")
	default:
	}
}
