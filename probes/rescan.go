package probes

import (
	"errors"
	"os"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// The kernel drops news of mappings where they come faster than they are read, of any
// process: whoever maps and unmaps in a loop can bring that about. Then every process is
// looked at.

const (
	// rescanShare is the part of the time that looking at every process may take, and
	// rescanRest the least time between two looks.
	rescanShare = 10
	rescanRest  = time.Second
	// maxTogether bounds the processes of a user that are looked at one after the
	// other: those behind one that does not answer wait with it.
	maxTogether = 64
)

// rescan looks at every process whenever mappings were lost, until stop is closed.
func (t *Tracer) rescan(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-t.lost:
		}
		begin := time.Now()
		t.lookAtAll()
		select {
		case <-stop:
			return
		case <-time.After(max(rescanRest, rescanShare*time.Since(begin))):
		}
	}
}

// lostMappings says that the kernel could not report mappings.
func (t *Tracer) lostMappings(n uint64) {
	t.loss.Add(lossMappings, n)
	select {
	case t.lost <- struct{}{}:
	default:
	}
}

// lookAtAll has every process looked at that may be traced.
func (t *Tracer) lookAtAll() {
	together := map[uint32][]claim{}
	look := func(uid uint32) {
		all := together[uid]
		delete(together, uid)
		t.work.Do(uid, func() {
			for _, c := range all {
				t.lookFor(c)
			}
		}, t.lookLater)
	}
	for _, pid := range proc.All() {
		if pid == os.Getpid() || !t.opts.All && !t.traced(pid) {
			continue
		}
		uid, err := userOf(pid)
		if err != nil {
			continue
		}
		together[uid] = append(together[uid], claim{pid: pid, user: uid, at: clock.Monotonic(), only: t.confinedTo(pid), again: true})
		if len(together[uid]) == maxTogether {
			look(uid)
		}
	}
	for uid := range together {
		look(uid)
	}
}

// lookLater has every process looked at once more.
func (t *Tracer) lookLater() {
	if !t.stopping() {
		t.lostMappings(0)
	}
}

// lookFor looks at a process if it maps a library to probe of which nothing is known.
func (t *Tracer) lookFor(c claim) {
	mapped, err := mappedLibraries(c.pid, t.levels())
	if err != nil && !errors.Is(err, errTooMany) || len(mapped) == 0 || t.stopping() {
		return
	}
	files := map[attachKey]bool{}
	for _, m := range mapped {
		files[attachKey{m.File, m.level, c.only}] = true
	}
	t.mu.Lock()
	m := t.libs.processes[c.pid]
	known := m != nil && (m.unseen != nil || len(m.libs) >= len(files))
	t.mu.Unlock()
	if known {
		return
	}
	if t.opts.All {
		for _, m := range mapped {
			if t.opts.Stacks != nil && !m.level.pyTorch() {
				t.opts.Stacks.Mapped(c.pid, m.Mapping, true)
				break
			}
		}
	}
	t.lookAt(c)
}
