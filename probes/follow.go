package probes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/fair"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

const (
	// maxUnderWay bounds the processes whose libraries are looked at and probed at one
	// time, and maxOfUser those of one user: each may wait for a file system.
	maxUnderWay = 64
	maxOfUser   = 16
	// maxToFollow bounds those that wait for that. A node that starts its work maps a
	// library in hundreds of processes at once.
	maxToFollow = 4096
	// slow is after how long a process is no longer counted among maxUnderWay, up to
	// maxStuck of them.
	slow     = 500 * time.Millisecond
	maxStuck = 1024
	// targetPatience bounds how long anybody waits for one process's libraries.
	targetPatience = 4 * attachPatience
)

func newWork() *fair.Queue {
	return fair.New(fair.Limits{Running: maxUnderWay, PerUser: maxOfUser, Waiting: maxToFollow, Slow: slow, Stuck: maxStuck})
}

// onMapping looks at one new executable mapping of any process, and tells whether it is
// of a library to probe. It is for the goroutine that reads them, and waits for nothing.
func (t *Tracer) onMapping(m mapping) bool {
	level, library := libraryLevel(m.Name())
	cuda := library && t.opts.All && !level.pyTorch()
	if !cuda && !t.traced(m.pid) {
		return false
	}
	c := claim{pid: m.pid, at: m.time, only: t.confinedTo(m.pid)}
	if library {
		var err error
		if c.user, err = userOf(m.pid); err != nil {
			t.noteGap(m, level, m.File, c.user)
			return true
		}
	}
	if cuda && !t.makeTarget(c) {
		t.noteGap(m, level, m.File, c.user)
		return true
	}
	if t.opts.Stacks != nil {
		t.opts.Stacks.Mapped(m.pid, m.Mapping, library)
	}
	if !library || !slices.Contains(t.levels(), level) {
		return false
	}
	t.work.Do(c.user, func() { t.followInTime(m, level, c) }, func() {
		if !t.stopping() {
			t.missed(c, waitsLong)
		}
	})
	return true
}

// userOf returns who answers for a process. The error is os.ErrNotExist for one that is
// gone; those that cannot be read count as one user's.
func userOf(pid int) (uint32, error) {
	uid, err := proc.User(pid)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return others, nil
	}
	return uid, err
}

// stopping tells whether the trace is about to end.
func (t *Tracer) stopping() bool {
	select {
	case <-t.stop:
		return true
	default:
		return false
	}
}

// followInTime follows a mapping. If that takes long the process is not seen meanwhile.
func (t *Tracer) followInTime(m mapping, level Level, c claim) {
	if t.stopping() {
		return
	}
	late := time.AfterFunc(attachPatience, func() { t.missed(c, noAnswer) })
	user, _ := t.UserOf(m.pid)
	var err error
	t.opts.Meter.Do(user, func() { err = t.follow(m, level, c) })
	inTime := late.Stop()
	if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, errStopped) {
		return
	}
	if inTime && !errors.Is(err, ErrNoSymbols) {
		t.missed(c, absent(err))
	}
	text := fmt.Sprintf("%s, which process %d of user %d loaded, is not traced: ", m.Path, m.pid, c.user)
	if errors.Is(err, errNotProbed) {
		text += errNotProbed.Error() // for each of many libraries
	} else {
		text += err.Error()
	}
	t.warnOf(c.user, text)
}

// makeTarget traces a process that was seen to use CUDA, and tells whether it still
// runs.
func (t *Tracer) makeTarget(c claim) bool {
	err := t.target(c.pid)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	if err != nil {
		t.loss.Add(lossNotTraced, 1)
		t.mu.Lock()
		t.libs.miss(c.pid, c.user, notTarget, c.at, time.Now())
		t.mu.Unlock()
	}
	return true
}

// follow probes the library that a target has just mapped. It goes by the mapping
// that the kernel told of: reading all of the process's takes longer.
func (t *Tracer) follow(m mapping, level Level, c claim) error {
	lib, err := openMapping(m.pid, m.Mapping, level)
	id := m.File
	if err == nil {
		id = lib.id
		err = t.attach(lib, c)
	}
	gone := errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrNoSymbols) || errors.Is(err, proc.ErrRemapped)
	if gone || err == nil && t.isNew(m.pid) {
		c.again = true
		_, err = t.probe(c)
	}
	if !errors.Is(err, errNotProbed) {
		t.noteGap(m, level, id, c.user)
	}
	return err
}

// isNew tells whether a process has one library that is probed at most: it may have
// mapped others before it was traced.
func (t *Tracer) isNew(pid int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.libs.processes[pid]
	return m == nil || len(m.libs) <= 1
}

// inTurn has f called when it is a user's turn and returns what it returns, unless that
// takes too long.
func inTurn[T any](t *Tracer, user uint32, f func() T) (result T, ok bool) {
	results := make(chan T, 1)
	dropped := make(chan struct{})
	t.work.Do(user, func() { results <- f() }, func() { close(dropped) })
	select {
	case result = <-results:
		return result, true
	case <-dropped:
	case <-time.After(targetPatience):
	}
	return result, false
}

// noteGap compares when a library was mapped with when it had probes. One that
// has none by now, though it was looked for, ended too soon to be seen.
func (t *Tracer) noteGap(m mapping, level Level, id proc.FileID, uid uint32) {
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
	if !t.libs.user(uid).refuses(attachKey{id, level, t.confinedTo(m.pid)}, time.Now()) {
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

// ProcessesByUser returns the processes that run, but not this one, of each user. Those
// who are not told apart are one.
func ProcessesByUser() map[uint32][]int {
	all := map[uint32][]int{}
	for _, pid := range proc.All() {
		if uid, err := userOf(pid); err == nil && pid != os.Getpid() {
			all[uid] = append(all[uid], pid)
		}
	}
	return all
}

// UsesCUDA tells whether a process maps a library of CUDA's. One that cannot be read is
// gone, or not ours to trace. It may take long: a process can keep its mappings from
// being read.
func UsesCUDA(pid int) bool {
	mapped, _ := mappedLibraries(pid, []Level{Driver, Runtime})
	return len(mapped) > 0
}
