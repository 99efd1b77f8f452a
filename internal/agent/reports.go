package agent

import "time"

// Each out-of-memory report takes a copy of all that is live, and seconds of work: who
// runs out of memory again and again must not take the machine from others.
const (
	reportsAtOnce  = 10
	reportInterval = 20 * time.Second
)

// reports say how many out-of-memory reports there may have been.
type reports struct {
	allowed int
	since   time.Duration // when it last came to be more
}

// allow returns how many there may have been by a time, of which so many were, and
// whether that changed.
func (r *reports) allow(at time.Duration, were int) (int, bool) {
	if r.allowed == 0 {
		r.allowed, r.since = reportsAtOnce, at
		return r.allowed, true
	}
	if at-r.since < reportInterval {
		return r.allowed, false
	}
	before := r.allowed
	r.allowed = min(r.allowed+int((at-r.since)/reportInterval), were+reportsAtOnce)
	r.since = at
	return r.allowed, r.allowed != before
}
