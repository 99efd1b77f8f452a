package frames

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/record"
	"github.com/gpumemtrace/gpumemtrace/internal/unwind"
)

// A target whose memory or files never answer keeps others from being named,
// which is told, and nobody from going on.
func TestNamingThatHangs(t *testing.T) {
	n := newQueue()
	t.Cleanup(func() { close(n.end) })
	hang := make(chan struct{})
	defer close(hang)
	if !n.add(7, func() { <-hang }) {
		t.Fatal("no room for the first")
	}
	began := time.Now()
	full := 0
	for range 10 * maxQueued {
		if !n.add(8, func() {}) {
			full++
		}
	}
	if took := time.Since(began); took > 5*time.Second || full < 8*maxQueued {
		t.Errorf("adding took %v, %d found no room", took, full)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	n.settle(ctx)
	n.mu.Lock()
	n.since = n.since.Add(-slow)
	n.mu.Unlock()
	if note := n.note(); !strings.Contains(note, "process 7") {
		t.Errorf("note %q", note)
	}
}

// What a reading of names uses is not closed under it.
func TestCloseDuringNaming(t *testing.T) {
	s := source(t)
	begun, done := make(chan struct{}), make(chan struct{})
	s.queue.add(7, func() {
		close(begun)
		time.Sleep(100 * time.Millisecond)
		close(done)
	})
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
	s.queue.add(7, func() {
		close(begun)
		<-hang
	})
	<-begun
	began := time.Now()
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "process 7") {
		t.Errorf("error %v", err)
	}
	if took := time.Since(began); took > 3*patience {
		t.Errorf("took %v", took)
	}
}

func source(t *testing.T) *Source {
	t.Helper()
	return New(&unwind.Taker{Mode: unwind.FramePointer}, func(record.Record) {})
}

func TestSettle(t *testing.T) {
	n := newQueue()
	done := 0
	for range 100 {
		n.add(1, func() { done++ })
	}
	n.settle(context.Background())
	if done != 100 || n.note() != "" {
		t.Errorf("%d jobs done, note %q", done, n.note())
	}
	close(n.end)
	<-n.done
	n.settle(context.Background()) // ended: nothing to wait for
}
