// Package work measures processor time by user.
package work

import (
	"runtime"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
)

// A Meter adds up processor time. The caller numbers the users; 0 is for work that is for no single
// user. A Meter is safe for concurrent use. A nil one measures nothing.
type Meter struct {
	mu    sync.Mutex
	times map[uint16]time.Duration
}

// Do calls f and adds the processor time that it uses in this goroutine.
func (m *Meter) Do(user uint16, f func()) {
	if m == nil {
		f()
		return
	}
	runtime.LockOSThread()
	begin := clock.Thread()
	defer func() {
		took := clock.Thread() - begin
		runtime.UnlockOSThread()
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.times == nil {
			m.times = map[uint16]time.Duration{}
		}
		m.times[user] += took
	}()
	f()
}

// Of returns the time for a user.
func (m *Meter) Of(user uint16) time.Duration {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.times[user]
}

// Move moves the time of one user to another.
func (m *Meter) Move(from, to uint16) {
	if m == nil || from == to {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if took := m.times[from]; took > 0 {
		m.times[to] += took
	}
	delete(m.times, from)
}
