//go:build linux

package live

import (
	"syscall"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// A Session is a running trace: *session.Session.
type Session interface {
	View(state.Want) *state.View
	Done() <-chan struct{}
}

// NewTraceSource returns a running trace as a Source.
func NewTraceSource(s Session) Source { return &traceSource{session: s, maker: newMaker()} }

type traceSource struct {
	maker
	session Session
}

func (l *traceSource) Span() (time.Duration, []int64) { return 0, nil }

func (l *traceSource) Snapshot(q Query) (*Snapshot, error) {
	ended := ""
	select {
	case <-l.session.Done():
		ended = "every traced process has ended"
	default:
	}
	out := l.snapshot(l.session.View(l.want(q)))
	out.Cost, out.Ended = cost(), ended
	return out, nil
}

// cost returns the cost of this process.
func cost() *Cost {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return nil
	}
	return &Cost{CPU: time.Duration(u.Utime.Nano() + u.Stime.Nano()), Memory: u.Maxrss << 10}
}
