package work

import (
	"sync"
	"time"
)

// A Busy notes which process is being read. A target decides how long that takes: its memory and its
// file systems may never answer.
type Busy struct {
	mu    sync.Mutex
	pid   int // 0 for none
	since time.Time
}

// Set notes which process is being read from now on, 0 for none.
func (b *Busy) Set(pid int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pid, b.since = pid, time.Now()
}

// Process returns which process is being read, and for how long it has been; 0 for none.
func (b *Busy) Process() (pid int, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pid == 0 {
		return 0, 0
	}
	return b.pid, time.Since(b.since)
}
