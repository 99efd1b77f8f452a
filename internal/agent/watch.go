package agent

import (
	"context"
	"time"
)

// watch tells the service manager again and again that the agent is alive, as long as
// seen goes on: the time up to which every event was taken. Where who reads events stands
// still, or who has the state never gives it back, it tells nothing, and the manager
// starts the agent afresh.
func watch(ctx context.Context, n *notifier, seen func() uint64) {
	interval := n.interval()
	if interval == 0 {
		return
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
				n.alive()
			}
		default:
		}
	}
}
