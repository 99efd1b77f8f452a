package probes

import (
	"errors"
	"fmt"
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
	held := t.libs.table[attachKey{lib.id, lib.Level, pid}]
	if held == nil {
		held = t.libs.table[attachKey{lib.id, lib.Level, 0}]
	}
	t.mu.Unlock()
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
	t.mu.Lock()
	t.glimpses = append(t.glimpses, a)
	t.mu.Unlock()
	time.AfterFunc(glimpseTime, func() {
		t.mu.Lock()
		i := slices.Index(t.glimpses, a)
		if i >= 0 {
			t.glimpses = slices.Delete(t.glimpses, i, i+1)
		}
		t.mu.Unlock()
		if i < 0 {
			return // Stop was first
		}
		if err := a.detach(); err != nil {
			t.warn(fmt.Sprintf("%s: probes for a moment stay on: %v", held.library.Path, err))
		}
	})
	return nil
}

func (t *Tracer) endGlimpses() error {
	t.mu.Lock()
	all := t.glimpses
	t.glimpses = nil
	t.mu.Unlock()
	var errs []error
	for _, a := range all {
		errs = append(errs, a.detach())
	}
	return errors.Join(errs...)
}
