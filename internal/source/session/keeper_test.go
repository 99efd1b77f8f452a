package session

import (
	"os/exec"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
)

// offline is a session without a kernel side.
func offline(t *testing.T, opts Options) *Session {
	t.Helper()
	opts.Stacks = unwind.FramePointer
	s := newSession(opts)
	s.retrace(func(*record.Trace) {})
	t.Cleanup(func() { s.Close() })
	return s
}

// identify returns who has a PID now, as precisely as /proc tells it.
func identify(t *testing.T, pid int) event.Process {
	t.Helper()
	ticks, err := proc.StartTicks(pid)
	if err != nil {
		t.Fatal(err)
	}
	return event.Process{PID: uint32(pid), Start: ticks * event.StartUnit}
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
	id := identify(t, cmd.Process.Pid)
	for end := time.Now().Add(5 * time.Minute); !gone(id); time.Sleep(time.Millisecond) {
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
	id := identify(t, cmd.Process.Pid)
	return id
}

// A process whose exit event was lost ends all the same at the second look,
// also where every process is traced; one that runs does not. A PID that
// another process has by now is a process that ended.
func TestReap(t *testing.T) {
	for _, all := range []bool{false, true} {
		s := offline(t, Options{All: all})
		dead, lives, other := dying(t), running(t), running(t)
		replaced := event.Process{PID: other.PID, Start: other.Start - event.StartUnit}
		for i, id := range []event.Process{dead, replaced, lives} {
			s.apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: id, Time: 1, Addr: 0x1000 * uint64(i+1), Size: 64})
		}
		exited := func() (n int) {
			s.Read(func(st *state.State) {
				for _, p := range st.View(state.Want{}).Snapshot().Processes {
					if p.Exited {
						n++
					}
				}
			})
			return n
		}
		s.keeper.reap()
		if n := exited(); n != 0 {
			t.Errorf("all %v: after one look %d exited", all, n)
		}
		s.keeper.reap()
		var left []event.Process
		s.Read(func(st *state.State) {
			for id := range st.Living {
				left = append(left, id)
			}
		})
		if n := exited(); n != 2 || len(left) != 1 || left[0] != lives {
			t.Errorf("all %v: after two looks %d exited, want 2; %v live", all, n, left)
		}
		select {
		case <-s.Done():
			t.Error("done while a target runs")
		default:
		}
	}
}

// Of a crowd a part is looked at in one second, and all in the end.
func TestReapCrowd(t *testing.T) {
	const crowd = 3*reapAtOnce - 1
	s := offline(t, Options{All: true})
	for i := range uint32(crowd) { // beyond any PID: kernel/pid.c, PID_MAX_LIMIT
		s.apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: event.Process{PID: 1<<22 + 1 + i, Start: 1}, Time: 1, Addr: 0x1000, Size: 64})
	}
	for look, want := range []int{crowd, crowd, crowd, crowd - reapAtOnce, crowd - 2*reapAtOnce, 0} {
		s.keeper.reap()
		left := 0
		s.Read(func(st *state.State) {
			for range st.Living {
				left++
			}
		})
		if left != want {
			t.Errorf("after look %d %d live, want %d", look+1, left, want)
		}
	}
}

// While events wait a moment is that of the last one; and none goes back behind
// one that somebody has looked at.
func TestIdle(t *testing.T) {
	s := offline(t, Options{})
	h := &handler{sources: s.sources}
	last := monotonic()
	s.apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: event.Process{PID: 1}, Time: last, Addr: 1, Size: 1})
	want := func(when string, seen, now uint64) {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.state.Seen() != seen || s.state.Now() != now {
			t.Errorf("%s: events seen up to %d at %d, want %d at %d", when, s.state.Seen(), s.state.Now(), seen, now)
		}
	}
	h.afterBatch(0)
	want("while events wait", last, last)
	h.afterBatch(time.Duration(last + 1)) // what came since may not be told yet
	want("when none waited", last+1, last+1)
	looked := monotonic() + uint64(time.Hour)
	s.apply(moment(looked, false))
	h.afterBatch(clock.Monotonic())
	h.afterBatch(0)
	want("before a look", last+1, looked)
}
