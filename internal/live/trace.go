package live

import (
	"syscall"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// A Session is what a live view asks of a running trace: *session.Session.
type Session interface {
	View(state.Want) *state.View
	Done() <-chan struct{}
}

// NewTraceSource returns a running trace as a Source.
func NewTraceSource(s Session) Source { return &traceSource{session: s, looker: newLooker()} }

type traceSource struct {
	looker
	session Session
}

func (l *traceSource) Span() (time.Duration, []int64) { return 0, nil }

func (l *traceSource) Look(q Query) (*Look, error) {
	ended := ""
	select {
	case <-l.session.Done():
		ended = "every traced process has ended"
	default:
	}
	out := l.look(l.session.View(l.want(q)))
	out.Cost, out.Ended = cost(), ended
	return out, nil
}

// cost returns what this process took.
func cost() *Cost {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return nil
	}
	return &Cost{CPU: time.Duration(u.Utime.Nano() + u.Stime.Nano()), Memory: u.Maxrss << 10}
}
