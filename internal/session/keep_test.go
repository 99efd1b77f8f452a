package session

import (
	"os/exec"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

// offline is a session without a kernel side.
func offline(t *testing.T, opts Options) *Session {
	t.Helper()
	sym := symbolize.New(symbolize.Config{})
	s := &Session{opts: opts, sym: sym, ledger: ledger.New(ledger.Options{}), procs: newProcesses(opts.All),
		stacks: newStacks(), gpus: newGPUs(), naming: newNaming(), capture: newCapturer(sym, opts), boot: bootTime()}
	go s.naming.run()
	t.Cleanup(func() { s.Close() })
	return s
}

// dying starts a process that ends at once and is not waited for, and waits for
// its end.
func dying(t *testing.T) event.Process {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Wait() })
	id, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); !gone(id); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it runs on")
		}
	}
	return id
}

func running(t *testing.T) event.Process {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	id, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A process whose exit event was lost ends all the same at the second look,
// also where every process is traced; one that runs does not. A PID that
// another process has by now is a process that ended.
func TestReap(t *testing.T) {
	for _, all := range []bool{false, true} {
		s := offline(t, Options{All: all})
		dead, lives := dying(t), running(t)
		replaced := event.Process{PID: lives.PID, Start: lives.Start - event.StartUnit}
		for i, id := range []event.Process{dead, replaced, lives} {
			s.procs.add(id)
			s.ledger.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: id, Time: 1, Addr: 0x1000 * uint64(i+1), Size: 64})
		}
		// Of one PID the table shows the last holder: the other is looked for
		// under a PID of its own.
		s.procs.current[dead.PID+1<<20] = replaced
		exited := func() (n int) {
			for p := range s.ledger.Processes {
				if p.Exited {
					n++
				}
			}
			return n
		}
		var r reaper
		now := time.Now()
		s.reap(&r, now)
		s.reap(&r, now.Add(reapInterval/2)) // too soon to count as a second look
		if n := exited(); n != 0 {
			t.Errorf("all %v: after one look %d exited", all, n)
		}
		s.reap(&r, now.Add(reapInterval))
		if n := exited(); n != 2 || s.procs.lives(dead) || !s.procs.lives(lives) {
			t.Errorf("all %v: after two looks %d exited, want 2", all, n)
		}
		select {
		case <-s.Done():
			t.Error("done while a target runs")
		default:
		}
	}
}
