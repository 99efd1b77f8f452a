package unwind

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/semaphore"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// What tells the unwinder of processes comes from the reader of events: it must
// not wait while an analysis is under way, as it did for seconds while a child
// imported PyTorch.
func TestTellingWaitsForNothing(t *testing.T) {
	u := &Unwinder{schedule: newSchedule(), analyse: semaphore.NewWeighted(1)}
	if err := u.analyse.Acquire(context.Background(), 1); err != nil { // an analysis that never ends
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pid := range 100_000 {
			u.Mapped(pid+1, proc.Mapping{}, 0)
			u.Ended(pid + 1)
		}
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Minute):
		t.Fatal("it waits for the analysis")
	}
	if n := len(u.schedule.ended); n > maxScheduled {
		t.Errorf("%d ended processes are kept", n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := u.Analyze(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Analyze: %v, want the end of its time", err)
	}
}

func TestSchedule(t *testing.T) {
	u := &Unwinder{schedule: newSchedule()}
	now := time.Now()
	u.Changed(1, time.Hour)
	u.Changed(2, time.Minute)
	u.Changed(2, 2*time.Minute) // part of the first
	u.Changed(3, 0)
	u.Changed(3, time.Hour)
	u.Changed(4, 0)
	u.Ended(4)
	take := func(at time.Time, ended, due []int) {
		t.Helper()
		e, d, _ := u.schedule.next(at)
		if !slices.Equal(e, ended) || !slices.Equal(d, due) {
			t.Errorf("ended %v, due %v; want %v, %v", e, d, ended, due)
		}
	}
	take(now.Add(time.Second), []int{4}, []int{3})
	take(now.Add(90*time.Second), nil, []int{2})
	take(now.Add(2*time.Hour), nil, []int{1})
	take(now.Add(3*time.Hour), nil, nil)

	for pid := range maxScheduled + 5 {
		u.Changed(pid+1, 0)
	}
	if u.schedule.dropped.Load() != 5 || len(u.schedule.due) != maxScheduled {
		t.Errorf("%d dropped, %d wait", u.schedule.dropped.Load(), len(u.schedule.due))
	}
	if _, due, _ := u.schedule.next(time.Now()); len(due) != atOnce {
		t.Errorf("%d analyses at once", len(due))
	}
	select {
	case <-u.schedule.wake:
	default:
		t.Error("the rest waits for nobody")
	}
}

// A new mapping is there to be analysed at once, all of the process's later; and once all
// are, it is one of them.
func TestFreshMappings(t *testing.T) {
	u := &Unwinder{schedule: newSchedule()}
	now := time.Now()
	for start := range uint64(maxFresh + 5) {
		u.Mapped(1, proc.Mapping{Start: start + 1}, time.Minute)
	}
	u.Mapped(2, proc.Mapping{Start: 9}, 0)
	u.Mapped(3, proc.Mapping{Start: 9}, time.Hour)
	u.Ended(3)
	_, due, fresh := u.schedule.next(now.Add(time.Second))
	if !slices.Equal(due, []int{2}) || len(fresh) != 1 || len(fresh[1]) != maxFresh || fresh[1][0].Start != 1 {
		t.Errorf("due %v, fresh %v", due, fresh)
	}
	if _, due, fresh = u.schedule.next(now.Add(2 * time.Minute)); !slices.Equal(due, []int{1}) || len(fresh) != 0 {
		t.Errorf("due %v, fresh %v", due, fresh)
	}
	for pid := range 2 * maxScheduled {
		u.Mapped(pid, proc.Mapping{}, 0)
	}
	if len(u.schedule.fresh) > maxScheduled {
		t.Errorf("%d processes wait", len(u.schedule.fresh))
	}
}

// Users take turns, however many processes one of them has.
func TestScheduleTurns(t *testing.T) {
	s := newSchedule()
	now := time.Now()
	wait := func(pid int, user uint16, mapped bool) {
		if s.users[pid] = user; mapped {
			s.fresh[pid] = make([]proc.Mapping, 1)
		} else {
			s.due[pid] = now
		}
	}
	for pid := range 1000 {
		wait(pid+1, 7, pid%2 == 0)
	}
	wait(2001, 3, false)
	wait(2002, 9, true)
	wait(2003, 9, false)
	_, due, fresh := s.next(now)
	if !slices.Contains(due, 2001) || !slices.Contains(due, 2003) || len(fresh[2002]) != 1 || len(due)+len(fresh) != atOnce {
		t.Errorf("due %v, fresh %v", due, fresh)
	}
	for n := atOnce; n < 1003; n += atOnce {
		_, due, fresh := s.next(now)
		if want := min(atOnce, 1003-n); len(due)+len(fresh) != want {
			t.Fatalf("%d due, %d fresh, want %d", len(due), len(fresh), want)
		}
	}
	if len(s.due)+len(s.fresh)+len(s.users) != 0 {
		t.Errorf("%d due, %d fresh, %d users are left", len(s.due), len(s.fresh), len(s.users))
	}
}

// A process of whose mappings nobody keeps count has no memo: nothing would
// tell when they change.
func TestNoMemoWithoutGeneration(t *testing.T) {
	p := startTarget(t, buildCalls(t), "200")
	c := newCapture(t, Options{}, p.pid)
	if err := c.u.kernel.maps["unwind_processes"].Delete(uint32(p.pid)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	c.attach(buildLibrary(t), symbol, 1)
	p.run()
	s, err := c.u.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if s.MemoHits != 0 || s.Unwound == 0 {
		t.Errorf("%d stacks from the memo, %d unwound", s.MemoHits, s.Unwound)
	}
}
