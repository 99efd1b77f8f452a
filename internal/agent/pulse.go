package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
)

const (
	// pulseInterval is how often the pulse is felt at least.
	pulseInterval = time.Second
	// standsStill is for how long it may not go on until not everything that goes on is
	// seen, and dead until nothing but a new start helps: what systemd's watchdog waits for.
	standsStill = 10 * time.Second
	dead        = time.Minute
)

// A pulse tells whether the time up to which every event was taken goes on. It does not
// where who reads events stands still, or who has the state never gives it back.
type pulse struct {
	went atomic.Int64 // when it went on last, of CLOCK_MONOTONIC; 0 if it did not begin
}

// begin says that it goes on from now.
func (p *pulse) begin() { p.went.Store(int64(clock.Monotonic())) }

// watch looks at what seen returns, which is to go on, until ctx ends. The service
// manager hears that the agent is alive as long as that is so; where it is not the
// manager starts it afresh.
func (p *pulse) watch(ctx context.Context, n *notifier, seen func() uint64) {
	interval := pulseInterval
	if due := n.interval(); due != 0 {
		interval = min(interval, due)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	answers := make(chan uint64, 1)
	asked := false
	var last uint64
	for {
		if !asked { // one question at a time: it may have no answer
			asked = true
			go func() { answers <- seen() }()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case at := <-answers:
			asked = false
			if at > last {
				last = at
				p.begin()
				n.alive()
			}
		default:
		}
	}
}

// within says that the pulse has not gone on for as long as it may, nil if it has, or has
// not begun.
func (p *pulse) within(most time.Duration) error {
	went := p.went.Load()
	if since := clock.Monotonic() - time.Duration(went); went != 0 && since > most {
		return fmt.Errorf("no event could be taken for %v", since.Round(time.Second))
	}
	return nil
}
