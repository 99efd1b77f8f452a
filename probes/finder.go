package probes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/fair"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/rounds"
	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
)

const (
	// maxUnderWay bounds the processes whose libraries are found and probed at one time, and
	// maxOfUser those of one user: each may wait for a file system.
	maxUnderWay = 64
	maxOfUser   = 16
	// maxToFollow bounds those that wait. A node that starts its work maps a library in
	// hundreds of processes at once.
	maxToFollow = 4096
	// After slow a process does not count for maxUnderWay any more. maxStuck bounds these.
	slow     = 500 * time.Millisecond
	maxStuck = 1024
	// targetPatience bounds the wait for one process's libraries.
	targetPatience = 4 * attachPatience

	// The kernel drops reports of mappings if they come faster than the tracer reads them, of
	// any process. Then the finder rescans all processes. rescanShare is the part of the time
	// that this may use, and rescanRest the least pause.
	rescanShare = 10
	rescanRest  = time.Second
	// maxTogether bounds the processes of a user in one job of a rescan: those behind one that
	// does not answer wait with it.
	maxTogether = 64

	// tidyInterval is the time between two looks for libraries without a mapper, for unseen
	// processes, and for probes that are gone from a process.
	tidyInterval = time.Second
)

// A finder finds the libraries that processes map, and has them probed: those of a process that
// becomes a target, those that the kernel reports, and, if it lost reports, those of all processes.
type finder struct {
	opts     *Options
	targets  *targets
	libs     *libraries
	loss     *loss.Set
	warnings *warnings

	work *fair.Queue   // by user
	lost chan struct{} // reports of mappings were lost
	stop chan struct{} // closed when the trace ends
}

func newFinder(opts *Options, x *targets, l *libraries) *finder {
	return &finder{opts: opts, targets: x, libs: l, loss: l.loss, warnings: l.warnings,
		work: fair.New(fair.Limits{Running: maxUnderWay, PerUser: maxOfUser, Waiting: maxToFollow, Slow: slow, Stuck: maxStuck}),
		lost: make(chan struct{}, 1), stop: make(chan struct{})}
}

// userOf returns the tenant of a process (tenant.NumberOf). In this package a tenant is called a user.
// The error is os.ErrNotExist if the process has ended. Processes that cannot be read are of one user.
func userOf(pid int) (uint32, error) {
	uid, err := tenant.NumberOf(pid)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return others, nil
	}
	return uid, err
}

// noMapping reports whether an error means that there is nothing to probe any more.
func noMapping(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrNoSymbols) || errors.Is(err, proc.ErrRemapped)
}

// inTurn calls f when it is the user's turn, and returns its result. ok is false if that took too
// long.
func inTurn[T any](q *fair.Queue, user uint32, f func() T) (result T, ok bool) {
	results := make(chan T, 1)
	dropped := make(chan struct{})
	q.Do(user, func() { results <- f() }, func() { close(dropped) })
	select {
	case result = <-results:
		return result, true
	case <-dropped:
	case <-time.After(targetPatience):
	}
	return result, false
}

// probe probes the libraries that a process maps now, and returns them except PyTorch's.
func (f *finder) probe(c claim) ([]Library, error) {
	c.at = clock.Monotonic()
	libs, err := findLibraries(c.pid, f.opts.levels())
	if err != nil {
		return nil, err
	}
	var useless, failed error
	probed := 0
	for i, err := range f.libs.attachAll(libs, c) {
		switch {
		case errors.Is(err, ErrNoSymbols) && optional(libs[i].Level): // an older PyTorch
		case errors.Is(err, ErrNoSymbols):
			useless = err
		case err != nil:
			failed = errors.Join(failed, err)
		default:
			probed++
		}
	}
	if failed != nil {
		return libs, failed
	}
	if useless != nil && probed > 0 {
		f.warnings.addFor(c.user, useless.Error())
		useless = nil
	}
	return slices.DeleteFunc(libs, func(l Library) bool { return l.Level.pyTorch() }), useless
}

// mapped handles one new executable mapping of any process, and reports whether it is of a
// library to probe. The goroutine that reads mappings calls it, so it waits for no process and no
// file system.
func (f *finder) mapped(m mapping) bool {
	level, library := libraryLevel(m.Name())
	cuda := library && f.opts.All && !level.pyTorch()
	if !cuda && !f.targets.has(m.pid) {
		return false
	}
	c := claim{pid: m.pid, at: m.time, only: f.opts.confinedTo(m.pid)}
	if library {
		var err error
		if c.user, err = userOf(m.pid); err != nil || cuda && !f.target(c) {
			f.libs.noteGap(m, level, m.File)
			return true
		}
	}
	if f.opts.Stacks != nil {
		f.opts.Stacks.Mapped(m.pid, m.Mapping, library)
	}
	if !library || !slices.Contains(f.opts.levels(), level) {
		return false
	}
	f.work.Do(c.user, func() { f.followInTime(m, level, c) }, func() {
		if !f.stopping() {
			f.libs.miss(c, waitsLong)
		}
	})
	return true
}

// target makes a process that uses CUDA a target, and reports whether it still runs.
func (f *finder) target(c claim) bool {
	err := f.targets.trace(c.pid, c.user)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.libs.miss(c, notTarget)
	}
	return !errors.Is(err, os.ErrNotExist)
}

// stopping reports whether the trace is about to end.
func (f *finder) stopping() bool {
	select {
	case <-f.stop:
		return true
	default:
		return false
	}
}

// followInTime probes a mapped library. If that takes long, it marks the process as unseen for
// that time.
func (f *finder) followInTime(m mapping, level Level, c claim) {
	if f.stopping() {
		return
	}
	late := time.AfterFunc(attachPatience, func() { f.libs.miss(c, noAnswer) })
	user, _ := f.targets.userOf(m.pid)
	var err error
	f.opts.Meter.Do(user, func() { err = f.follow(m, level, c) })
	inTime := late.Stop()
	if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, errStopped) {
		return
	}
	if inTime && !errors.Is(err, ErrNoSymbols) {
		f.libs.miss(c, absenceOf(err))
	}
	text := fmt.Sprintf("%s, which process %d of %s loaded, is not traced: ", m.Path, m.pid, tenant.Name(c.user))
	if errors.Is(err, errNotProbed) {
		text += errNotProbed.Error() // the same text for each of many libraries
	} else {
		text += err.Error()
	}
	f.warnings.addFor(c.user, text)
}

// follow probes the library of a new mapping. It opens that mapping alone, since reading all
// mappings of the process takes longer. It reads all if the file has gone, and for a new process,
// which may have mapped other libraries before it was traced.
func (f *finder) follow(m mapping, level Level, c claim) error {
	lib, err := openMapping(m.pid, m.Mapping, level)
	id := m.File
	if err == nil {
		id = lib.id
		err = f.libs.attach(lib, c)
	}
	n, _ := f.libs.count(m.pid)
	if err == nil && n <= 1 || noMapping(err) {
		c.again = true
		_, err = f.probe(c)
	}
	if !errors.Is(err, errNotProbed) {
		f.libs.noteGap(m, level, id)
	}
	return err
}

// lostMappings counts mappings that the kernel could not report, and starts a rescan.
func (f *finder) lostMappings(n uint64) {
	f.loss.Add(lossMappings, n)
	select {
	case f.lost <- struct{}{}:
	default:
	}
}

// rescan looks at every process whenever reports of mappings were lost, until the trace ends.
func (f *finder) rescan() {
	for {
		select {
		case <-f.stop:
			return
		case <-f.lost:
		}
		begin := time.Now()
		f.rescanAll()
		select {
		case <-f.stop:
			return
		case <-time.After(max(rescanRest, rescanShare*time.Since(begin))):
		}
	}
}

func (f *finder) rescanAll() {
	together := map[uint32][]claim{}
	look := func(uid uint32) {
		all := together[uid]
		delete(together, uid)
		f.work.Do(uid, func() {
			for _, c := range all {
				f.rescanOne(c)
			}
		}, func() {
			if !f.stopping() {
				f.lostMappings(0)
			}
		})
	}
	for _, pid := range proc.All() {
		if pid == os.Getpid() || !f.opts.All && !f.targets.has(pid) {
			continue
		}
		uid, err := userOf(pid)
		if err != nil {
			continue
		}
		together[uid] = append(together[uid], claim{pid: pid, user: uid, at: clock.Monotonic(), only: f.opts.confinedTo(pid), again: true})
		if len(together[uid]) == maxTogether {
			look(uid)
		}
	}
	for uid := range together {
		look(uid)
	}
}

// rescanOne retries a process that maps more libraries to probe than are known.
func (f *finder) rescanOne(c claim) {
	mapped, err := mappedLibraries(c.pid, f.opts.levels())
	if err != nil && !errors.Is(err, errTooMany) || len(mapped) == 0 || f.stopping() {
		return
	}
	files := map[attachKey]bool{}
	for _, m := range mapped {
		files[attachKey{m.File, m.level, c.only}] = true
	}
	if n, unseen := f.libs.count(c.pid); unseen || n >= len(files) {
		return
	}
	if i := slices.IndexFunc(mapped, func(m mappedLibrary) bool { return !m.level.pyTorch() }); i >= 0 && f.opts.All && f.opts.Stacks != nil {
		f.opts.Stacks.Mapped(c.pid, mapped[i].Mapping, true)
	}
	// Nobody was told of these libraries before.
	if err := f.retry(c); err != nil && !noMapping(err) && !errors.Is(err, errStopped) {
		f.libs.miss(c, absenceOf(err))
	}
}

// retry probes the libraries of a process by a repeated claim.
func (f *finder) retry(c claim) error {
	var err error
	if c.only == 0 && f.opts.All {
		err = f.targets.trace(c.pid, c.user)
	}
	if err == nil {
		_, err = f.probe(c)
	}
	f.libs.retried(c, err)
	return err
}

// tidy removes the probes of libraries that no traced process maps any more, and retries unseen
// processes, until the trace ends. It looks for probes that are gone.
func (f *finder) tidy() {
	tick := time.NewTimer(clock.Until(tidyInterval))
	defer tick.Stop()
	var round, looks rounds.Rounds[int]
	for {
		select {
		case <-f.stop:
			return
		case now := <-tick.C:
			tick.Reset(clock.Until(tidyInterval))
			f.libs.detach(f.libs.unused(now, &round)...)
			f.warnings.tidy(now)
			for _, pid := range looks.Next(1, f.libs.mappers) {
				f.lookAt(pid, func() {})
			}
			for _, c := range f.libs.due(now) {
				c.only = f.opts.confinedTo(c.pid)
				f.work.Do(c.user, func() { _ = f.retry(c) }, func() {})
			}
		}
	}
}

// ProcessesByUser returns all processes but this one by their users, as userOf says.
func ProcessesByUser() map[uint32][]int {
	all := map[uint32][]int{}
	for _, pid := range proc.All() {
		if uid, err := userOf(pid); err == nil && pid != os.Getpid() {
			all[uid] = append(all[uid], pid)
		}
	}
	return all
}

// UsesCUDA reports whether a process maps a library of CUDA. A process that cannot be read has
// ended or may not be traced. It may wait long: a process can prevent that its mappings are read.
func UsesCUDA(pid int) bool {
	mapped, _ := mappedLibraries(pid, []Level{Driver, Runtime})
	return len(mapped) > 0
}
