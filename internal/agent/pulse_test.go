package agent

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
)

// An agent is ready while events are taken, and healthy until they have not been for long:
// while it begins nobody is to start it afresh.
func TestReady(t *testing.T) {
	a := &agent{session: tracing{begun: make(chan struct{})}}
	if a.ready() == nil || a.healthy() != nil {
		t.Errorf("it begins: %v, %v", a.ready(), a.healthy())
	}
	a.pulse.begin()
	close(a.session.begun)
	stood := func(d time.Duration) { a.pulse.went.Store(int64(clock.Monotonic() - d)) }
	for d, want := range map[time.Duration]struct{ ready, healthy bool }{
		0: {true, true}, standsStill / 2: {true, true}, standsStill + time.Second: {false, true}, dead / 2: {false, true}, dead + time.Second: {false, false},
	} {
		stood(d)
		if err := a.ready(); (err == nil) != want.ready {
			t.Errorf("after %v: ready, %v", d, err)
		}
		if err := a.healthy(); (err == nil) != want.healthy {
			t.Errorf("after %v: healthy, %v", d, err)
		}
	}
	stood(90 * time.Second)
	if err := a.ready(); err == nil || !strings.Contains(err.Error(), "1m30s") {
		t.Error(err)
	}

	// It is ready again when events are, and there is no service manager to hear of it.
	var at atomic.Uint64
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.pulse.watch(ctx, nil, func() uint64 { return at.Add(1) })
	}()
	for a.ready() != nil {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-ended
}
