package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
)

const (
	// pulseInterval is the longest time between two checks.
	pulseInterval = time.Second
	// After standsStill without progress the agent is not ready. After dead it is not healthy,
	// because only a restart helps. systemd's watchdog waits as long.
	standsStill = 10 * time.Second
	dead        = time.Minute
)

// A pulse checks that the trace makes progress: the time up to which every event was applied
// must advance. It stands still if the reader of events hangs, or if a goroutine never
// releases the state.
type pulse struct {
	went atomic.Int64 // CLOCK_MONOTONIC of the last progress, 0 before begin
}

// begin counts now as the last progress.
func (p *pulse) begin() { p.went.Store(int64(clock.Monotonic())) }

// watch checks that the result of seen increases, until ctx ends. Each time that it does,
// watch tells the service manager that the agent is alive. Without that message the manager
// restarts the agent.
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
		if !asked { // only one call of seen at a time: it may never return
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

// within returns an error if the last progress is longer ago than most. Before begin it
// returns nil.
func (p *pulse) within(most time.Duration) error {
	went := p.went.Load()
	if since := clock.Monotonic() - time.Duration(went); went != 0 && since > most {
		return fmt.Errorf("the agent could not process events for %v", since.Round(time.Second))
	}
	return nil
}
