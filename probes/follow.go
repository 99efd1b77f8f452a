package probes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/proc"
)

const (
	// maxFollowing bounds the mappings that are looked at at one time: each may
	// wait for a target's file system.
	maxFollowing = 64
	// maxToFollow bounds those that wait to be looked at. A node that starts its
	// work maps a library in hundreds of processes at once.
	maxToFollow = 4096
)

// onMapping looks at one new executable mapping of any process, and tells whether it is
// of a library to probe. It is for the goroutine that reads them, and waits for nothing.
func (t *Tracer) onMapping(m mapping) bool {
	level, library := libraryLevel(m.Name())
	switch {
	case library && t.opts.All && !level.pyTorch():
		if !t.makeTarget(m.pid) {
			t.noteGap(m, level, m.File)
			return true
		}
	case !t.traced(m.pid):
		return false
	}
	if t.opts.Stacks != nil {
		t.opts.Stacks.Mapped(m.pid, m.Mapping, library)
	}
	if !library || !slices.Contains(t.levels(), level) {
		return false
	}
	select {
	case t.toFollow <- m:
	default:
		t.loss.Add(lossNotProbed, 1)
	}
	return true
}

// followMappings looks at the mappings that wait for it until stop is closed.
func (t *Tracer) followMappings(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case m := <-t.toFollow:
			level, _ := libraryLevel(m.Name())
			if err := t.follow(m, level); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, errStopped) {
				t.warn(fmt.Sprintf("%s, which process %d loaded, is not traced: %v", m.Path, m.pid, err))
			}
		}
	}
}

// makeTarget traces a process that was seen to use CUDA, and tells whether it still
// runs.
func (t *Tracer) makeTarget(pid int) bool {
	err := t.target(pid)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	if err != nil {
		t.loss.Add(lossNotTraced, 1)
	}
	return true
}

// follow probes the library that a target has just mapped. It goes by the mapping
// that the kernel told of: reading all of the process's takes longer.
func (t *Tracer) follow(m mapping, level Level) error {
	lib, err := openMapping(m.pid, m.Mapping, level)
	id := m.File
	if err == nil {
		id = lib.id
		err = t.attach(lib, t.confinedTo(m.pid), m.pid, m.time)
	}
	if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrNoSymbols) || errors.Is(err, proc.ErrRemapped) {
		_, err = t.probe(m.pid)
	}
	t.noteGap(m, level, id)
	return err
}

// noteGap compares when a library was mapped with when it had probes. One that
// has none by now, though it was looked for, ended too soon to be seen.
func (t *Tracer) noteGap(m mapping, level Level, id proc.FileID) {
	counted := Driver
	if t.opts.API == APIRuntime {
		counted = Runtime
	}
	if level != counted {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range []attachKey{{id, level, 0}, {id, level, m.pid}} {
		if a := t.libs.table[key]; a != nil {
			if gap := a.since - m.time; gap > 0 {
				t.loss.Add(lossProbedLate, 1)
				t.longest = max(t.longest, gap)
			}
			return
		}
	}
	if time.Now().After(t.libs.refused[attachKey{id, level, t.confinedTo(m.pid)}]) {
		t.loss.Add(lossUnseen, 1)
	}
}

// confinedTo returns the process to which probes are confined, 0 for none.
func (t *Tracer) confinedTo(pid int) int {
	if t.confined() {
		return pid
	}
	return 0
}

// CUDAProcesses returns the processes that map a library of CUDA's.
func CUDAProcesses() (pids []int) {
	for _, pid := range proc.All() {
		// A process that cannot be read is gone, or not ours to trace.
		mapped, _ := mappedLibraries(pid, []Level{Driver, Runtime})
		if len(mapped) > 0 && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}
