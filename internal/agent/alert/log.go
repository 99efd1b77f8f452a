package alert

import (
	"slices"
	"sync"
)

// maxEnded bounds the alerts that ended in a Log. The latest stay.
const maxEnded = 256

// A Log has the alerts that fire, and the latest that ended. Any goroutine may call its
// methods.
type Log struct {
	mu    sync.Mutex
	all   []Alert // those that fire, and then those that ended, the latest first
	ended []Alert // the oldest first
}

// Note stores the alerts that fire now, and from what the latest Observe returned the alerts
// that ended.
func (l *Log) Note(firing, told []Alert) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range told {
		if told[i].Resolved {
			l.ended = append(l.ended, told[i])
		}
	}
	if over := len(l.ended) - maxEnded; over > 0 {
		l.ended = slices.Delete(l.ended, 0, over)
	}
	l.all = slices.Clone(firing)
	for _, a := range slices.Backward(l.ended) {
		l.all = append(l.all, a)
	}
}

// All returns the alerts that fire, and then those that ended, the latest first. The caller
// may not change them.
func (l *Log) All() []Alert {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}
