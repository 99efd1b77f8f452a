package probes

import (
	"errors"
	"slices"
	"time"
)

// A program that was attached to late made its contexts current before. What
// its threads ask of cuCtxGetDevice tells which device they are on, but they
// may ask thousands of times a second: with probes on it for good, a PyTorch
// training step that asked 9,000 times took two thirds longer. So these rows
// are probed for a moment only.
const glimpseTime = 250 * time.Millisecond

// lasting rows are probed for the whole trace.
func lasting(r *Row) bool { return r.class != classCtxDevice }

// glimpse probes the other rows of a library, in one process, and takes the
// probes off soon after. The library is one that is probed.
func (t *Tracer) glimpse(lib Library, pid int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := t.attachments[attachKey{lib.id, pid}]
	if held == nil {
		held = t.attachments[attachKey{lib.id, 0}]
	}
	if held == nil {
		return nil
	}
	if !pidFilterWorks() {
		pid = 0
	}
	a, err := attach(held.library, t.progs, pid, func(r *Row) bool { return !lasting(r) })
	if errors.Is(err, ErrNoSymbols) {
		return nil
	}
	if err != nil {
		return err
	}
	t.glimpses = append(t.glimpses, a)
	time.AfterFunc(glimpseTime, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		// Stop may have been first.
		if i := slices.Index(t.glimpses, a); i >= 0 {
			t.glimpses = slices.Delete(t.glimpses, i, i+1)
			a.detach()
		}
	})
	return nil
}
