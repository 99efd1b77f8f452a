package frames

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/internal/source/work"
)

// A target whose memory or files never answer keeps others from being named,
// which is told, and nobody from going on.
func TestNamingThatHangs(t *testing.T) {
	n := newQueue(nil)
	t.Cleanup(n.jobs.Close)
	hang, begun := make(chan struct{}), make(chan struct{})
	defer close(hang)
	full := 0
	dropped := func() { full++ }
	n.add(1, 7, func() { close(begun); <-hang }, dropped)
	<-begun
	for range 10 * maxQueued {
		n.add(1, 8, func() {}, dropped)
	}
	if full < 8*maxQueued {
		t.Errorf("%d found no room", full)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	n.wait(ctx)
	if note := n.note(time.Hour); note != "" {
		t.Errorf("note %q at once", note)
	}
	if note := n.note(0); !strings.Contains(note, "process 7") {
		t.Errorf("note %q", note)
	}
}

// What a reading of names uses is not closed under it.
func TestCloseDuringNaming(t *testing.T) {
	s := source(t)
	begun, done := make(chan struct{}), make(chan struct{})
	s.queue.add(1, 7, func() {
		close(begun)
		time.Sleep(100 * time.Millisecond)
		close(done)
	}, nil)
	<-begun
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-done:
	default:
		t.Error("closed while names were being read")
	}
}

// Nor does one that hangs keep the end waiting.
func TestCloseWhenNamingHangs(t *testing.T) {
	s := source(t)
	hang, begun := make(chan struct{}), make(chan struct{})
	defer close(hang)
	s.queue.add(1, 7, func() {
		close(begun)
		<-hang
	}, nil)
	<-begun
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "process 7") {
		t.Errorf("error %v", err)
	}
}

func source(t *testing.T) *Source {
	t.Helper()
	return New(&unwind.Capture{Mode: unwind.FramePointer}, func(record.Record) {})
}

func TestSettle(t *testing.T) {
	n := newQueue(nil)
	done := 0
	for range 100 {
		n.add(1, 1, func() { done++ }, nil)
	}
	n.wait(context.Background())
	if done != 100 || n.note(0) != "" {
		t.Errorf("%d jobs done, note %q", done, n.note(0))
	}
	if err := n.close(); err != nil {
		t.Error(err)
	}
	n.wait(context.Background()) // nothing to wait for
}

// A user with more jobs than there is room for loses his own, and has others' done before
// his.
func TestNamingTurns(t *testing.T) {
	meter := new(work.Meter)
	n := newQueue(meter)
	t.Cleanup(n.jobs.Close)
	hold, begun := make(chan struct{}), make(chan struct{})
	n.add(2, 1, func() { close(begun); <-hold }, nil)
	<-begun
	mine, dropped := 0, 0
	for range 2 * maxQueued {
		n.add(1, 1, func() { mine++ }, func() { dropped++ })
	}
	var before []int // of the jobs of user 1, by each of user 3
	for range 10 {
		n.add(3, 3, func() {
			for begin := clock.Thread(); clock.Thread() == begin; {
			}
			before = append(before, mine)
		}, func() { t.Error("it was dropped") })
	}
	close(hold)
	n.wait(context.Background())
	if len(before) != 10 || before[9] > 11 {
		t.Errorf("jobs done before each: %v", before)
	}
	if mine+dropped != 2*maxQueued || dropped < maxQueued {
		t.Errorf("%d done, %d dropped, of %d", mine, dropped, 2*maxQueued)
	}
	if meter.Of(3) == 0 {
		t.Error("the work is not measured")
	}
}
