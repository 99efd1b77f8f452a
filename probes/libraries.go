package probes

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/removal"
	"github.com/gpumemtrace/gpumemtrace/internal/source/rounds"
	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
)

const (
	// attachPatience bounds the wait for one library's probes: its file system may not
	// answer.
	attachPatience = 5 * time.Second
	// sideBySide bounds the libraries that get probes at one time, of those that are at
	// hand. The kernel waits for each processor once for each of them.
	sideBySide = 8
	// maxDetaching bounds the libraries that lose their probes at one time.
	maxDetaching = 32
	// leaversAtOnce bounds the processes that tidy looks for each time.
	leaversAtOnce = 32
)

// libraries puts probes on libraries, once for all processes that map them, and removes the
// probes when no process does.
type libraries struct {
	opts     *Options
	progs    programs
	gates    gates
	loss     *loss.Set
	warnings *warnings
	closeAll func() error // see close; it works once

	mu       sync.Mutex // never held during a wait: the reader of events locks it
	slots    slots
	glimpses []*attachment // see glimpse
	window   *window       // that is open, or whose probes go off
	// windowGate is the gate of all windows, nil before the first.
	windowGate *gate
	shutDown   bool          // see shut
	longest    time.Duration // between a library's mapping and its probes
}

func newLibraries(opts *Options, lost *loss.Set, w *warnings) *libraries {
	l := &libraries{opts: opts, loss: lost, warnings: w, slots: newSlots(cmp.Or(opts.attachments, maxAttachments))}
	l.closeAll = sync.OnceValue(l.close)
	return l
}

// A reservation is the answer to a claim.
type reservation struct {
	key  attachKey
	wait *pending // another goroutine puts the probes on
	own  *pending // the claimant must do it
	// old lost its slot, and the processes of lost their probes.
	old  *attachment
	lost []claim
}

// attach puts probes on a library because of a claim, unless it has them. It owns lib from then
// on.
func (l *libraries) attach(lib Library, c claim) error {
	r, err := l.reserve(attachKey{lib.id, lib.Level, c.only}, c)
	if r.old != nil {
		l.evict(r.old, r.lost)
	}
	if r.own != nil {
		l.attachPending(r.key, r.own, lib, c.user)
		err = r.own.err
	} else {
		lib.Close()
	}
	if r.wait != nil {
		select {
		case <-r.wait.done:
			err = r.wait.err
		case <-time.After(attachPatience):
			err = errNotProbed
		}
	}
	if errors.Is(err, errNotProbed) {
		err = fmt.Errorf("probe %s: %w", lib.Path, err)
	}
	return err
}

// reserve adds a claim to the library's slot, or reserves a slot.
func (l *libraries) reserve(key attachKey, c claim) (r reservation, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.slots
	if all := (attachKey{key.id, key.level, 0}); s.table[all] != nil {
		key = all
	}
	r.key = key
	if s.stopped {
		return r, errStopped
	}
	if a := s.table[key]; a != nil {
		s.use(key, a, c)
		return r, nil
	}
	if p := s.pending[key]; p != nil {
		c.at = max(c.at, p.claims[c.pid].at)
		p.claims[c.pid] = c
		r.wait = p
		return r, nil
	}
	if s.user(c.user).refuses(key, time.Now()) {
		return r, nil
	}
	var ok bool
	if r.old, r.lost, ok = s.makeRoom(c); !ok {
		return r, errNotProbed
	}
	r.own = &pending{done: make(chan struct{}), claims: map[int]claim{c.pid: c}}
	s.pending[key] = r.own
	return r, nil
}

// attachAll attaches libraries and returns the error of each.
func (l *libraries) attachAll(libs []Library, c claim) []error {
	errs := make([]error, len(libs))
	inParallel(len(libs), sideBySide, func(i int) { errs[i] = l.attach(libs[i], c) })
	return errs
}

// attachPending puts the probes on. It may wait for the library's file system.
func (l *libraries) attachPending(key attachKey, p *pending, lib Library, uid uint32) {
	a, err := l.attachGated(lib, key.pid)
	if lib.Level == Torch && l.opts.Tensors && (err == nil && !a.tensors || errors.Is(err, ErrNoSymbols)) {
		l.warnings.addFor(uid, lib.Path+": this PyTorch has no known function that reports tensors: what its segments hold is not seen")
	}
	if lib.Level == TorchCUDA && errors.Is(err, ErrNoSymbols) {
		l.warnings.addFor(uid, lib.Path+": this PyTorch has no known function that reports private pools (CUDA graphs, torch.cuda.MemPool): memory cached in them counts as cached for every request")
	}
	if err != nil {
		lib.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(p.done)
	s := &l.slots
	delete(s.pending, key)
	p.err = err
	switch {
	case err == nil && s.stopped:
		go a.close()
		p.err = errStopped
	case err == nil:
		s.table[key] = a
		for _, c := range p.claims {
			s.use(key, a, c)
		}
	case errors.Is(err, ErrNoSymbols):
		for _, c := range p.claims {
			s.user(c.user).refuse(key, time.Now())
		}
	}
}

// attachGated puts probes with a gate of their own on a library.
func (l *libraries) attachGated(lib Library, pid int) (*attachment, error) {
	find := lib.ahead
	if find == nil {
		find = func() (sites, error) { return lib.sites(l.opts.wants) }
	}
	s, err := find()
	if err != nil {
		return nil, err
	}
	g := l.gates.get()
	if g == nil {
		return nil, errNotProbed
	}
	var later []point
	if l.opts.Windows {
		later = s.laterPoints()
	}
	a, err := attach(lib, s, l.progs, g, pid)
	if err == nil && len(later) > 0 {
		a.tensors, a.later = true, later
	}
	return a, err
}

// evict removes the probes of a library that lost its slot. lost are the claims on it.
func (l *libraries) evict(old *attachment, lost []claim) {
	go l.detach(old)
	if len(lost) == 0 {
		return
	}
	l.loss.Add(lossEvicted, 1)
	c := lost[0]
	l.warnings.addFor(c.user, fmt.Sprintf("process %d of %s is not traced in full any more: %s lost its probes, because more libraries are mapped than can be probed and this user maps the most", c.pid, tenant.Name(c.user), old.library.Path))
}

// followProcess updates the claims of a process at its fork, exec or exit.
func (l *libraries) followProcess(e *event.Event) {
	if e.API != 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	pid, at := int(e.Proc.PID), time.Duration(e.Time)
	switch e.Op {
	case event.OpFork:
		l.slots.inherit(pid, int(e.Child.PID), at)
	case event.OpExec, event.OpExit:
		l.slots.leave(pid, at, time.Now())
	}
}

// miss marks a process as unseen, and counts it or its library.
func (l *libraries) miss(c claim, why absence) {
	if why == notTarget {
		l.loss.Add(lossNotTraced, 1)
	} else {
		l.loss.Add(lossNotProbed, 1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slots.miss(c.pid, c.user, why, c.at, time.Now())
}

// retried updates a process that a repeated claim was for, which ended with err.
func (l *libraries) retried(c claim, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil, noMapping(err):
		l.slots.see(c.pid)
	case l.slots.processes[c.pid] != nil:
		l.slots.miss(c.pid, c.user, absenceOf(err), c.at, time.Now())
	}
}

// count returns the number of probed libraries that a process maps, and whether the process is
// marked as unseen.
func (l *libraries) count(pid int) (n int, unseen bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.slots.processes[pid]; m != nil {
		n, unseen = len(m.libs), m.unseen != nil
	}
	return n, unseen
}

// probedAt reports whether a file has probes, and whether one of them is for the function at an
// offset.
func (l *libraries) probedAt(id proc.FileID, offset uint64) (file, function bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, a := range l.slots.table {
		if key.id == id {
			file = true
			function = function || a.probed[offset]
		}
	}
	return file, function
}

// noteGap compares the time at which a library was mapped with that of its probes. A library
// without any, which was not refused, belonged to a process that ended too soon.
func (l *libraries) noteGap(m mapping, level Level, id proc.FileID, uid uint32) {
	counted := Driver
	if l.opts.API == APIRuntime {
		counted = Runtime
	}
	if level != counted {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range []attachKey{{id, level, 0}, {id, level, m.pid}} {
		if a := l.slots.table[key]; a != nil {
			if gap := a.since - m.time; gap > 0 {
				l.loss.Add(lossProbedLate, 1)
				l.longest = max(l.longest, gap)
			}
			return
		}
	}
	if !l.slots.user(uid).refuses(attachKey{id, level, l.opts.confinedTo(m.pid)}, time.Now()) {
		l.loss.Add(lossUnseen, 1)
	}
}

// notes returns sentences about what may be missing: calls from before a library had probes,
// and the functions that libraries do not export.
func (l *libraries) notes() (notes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.longest > 0 {
		notes = append(notes, fmt.Sprintf("a library was mapped up to %.1f ms before it had probes: calls in that time are missed", l.longest.Seconds()*1e3))
	}
	lacking := map[string][]string{} // paths by the list of functions
	for _, a := range l.slots.table {
		if lack := join(a.missing); len(a.missing) > 0 && !slices.Contains(lacking[lack], a.library.Path) {
			lacking[lack] = append(lacking[lack], a.library.Path)
		}
	}
	for _, lack := range slices.Sorted(maps.Keys(lacking)) {
		path := slices.Min(lacking[lack])
		if n := len(lacking[lack]) - 1; n > 0 {
			path += fmt.Sprintf(" (and %d more)", n)
		}
		notes = append(notes, path+" does not export "+lack)
	}
	return notes
}

func (l *libraries) notSeen() []NotSeen {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slots.notSeen()
}

// due returns claims for the unseen processes whose time has come.
func (l *libraries) due(now time.Time) []claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slots.due(now)
}

// unused removes the libraries that no process maps any more, and returns them. It first looks
// for a few processes whose exit event was lost.
func (l *libraries) unused(now time.Time, round *rounds.Rounds[int]) []*attachment {
	at := clock.Monotonic()
	gone := slices.DeleteFunc(round.Next(leaversAtOnce, l.mappers), func(pid int) bool { return pid == 0 || !proc.Ended(pid) })
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, pid := range gone {
		l.slots.leave(pid, at, now)
	}
	l.slots.forgetUsers(now)
	return l.slots.unused(now)
}

// mappers returns the processes that map a library to probe.
func (l *libraries) mappers() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.slots.processes))
}

// detach removes the probes of libraries whose slots were freed.
func (l *libraries) detach(all ...*attachment) {
	closeAttachments(all, func(a *attachment, err error) {
		l.mu.Lock()
		l.slots.closed(a)
		l.mu.Unlock()
		if err != nil {
			l.warnings.add(fmt.Sprintf("the probes of %s did not come off cleanly: %v", a.library.Path, err))
		}
	})
}

// closeAttachments closes many at a time and reports how each went. They share the kernel's
// grace periods, which last tens of milliseconds.
func closeAttachments(all []*attachment, closed func(*attachment, error)) {
	inParallel(len(all), maxDetaching, func(i int) { closed(all[i], all[i].close()) })
}

// shut shuts the gates: no probe makes events any more.
func (l *libraries) shut() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shutDown = true
	var errs []error
	for _, a := range l.slots.table {
		errs = append(errs, a.gate.shut())
	}
	if l.windowGate != nil {
		errs = append(errs, l.windowGate.shut())
	}
	return errors.Join(errs...)
}

// close removes every probe and lets none come on any more. It waits as long as probes come off.
func (l *libraries) close() error {
	l.mu.Lock()
	l.slots.stopped = true
	waits := slices.Collect(maps.Values(l.slots.pending))
	all := slices.Collect(maps.Values(l.slots.table))
	clear(l.slots.table)
	l.mu.Unlock()
	patience := time.After(attachPatience)
	for _, p := range waits {
		select {
		case <-p.done:
		case <-patience:
		}
	}
	var mu sync.Mutex
	var errs []error
	failed := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		failed(l.endGlimpses())
		failed(l.closeWindow())
		closeAttachments(all, func(_ *attachment, err error) { failed(err) })
	}()
	failed(removal.Wait(done))
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(errs...)
}

// The threads of a program that was attached to late have current contexts already. The calls of
// cuCtxGetDevice show their devices, but programs may make thousands a second: with probes on it
// for good, a PyTorch training step with 9,000 such calls became two thirds slower. So these rows
// have probes for a moment only.
const glimpseTime = 250 * time.Millisecond

// lasting reports whether a row has probes for the whole trace.
func lasting(r *Row) bool { return r.class != classCtxDevice }

// glimpse puts probes for the other rows on a probed library, in one process, and removes them
// soon after.
func (l *libraries) glimpse(lib Library, pid int) error {
	l.mu.Lock()
	held := l.slots.table[attachKey{lib.id, lib.Level, pid}]
	if held == nil {
		held = l.slots.table[attachKey{lib.id, lib.Level, 0}]
	}
	l.mu.Unlock()
	if held == nil {
		return nil
	}
	if !pidFilterWorks() {
		pid = 0
	}
	s, err := held.library.sites(func(r *Row) bool { return !lasting(r) })
	if errors.Is(err, ErrNoSymbols) {
		return nil
	}
	var a *attachment
	if err == nil {
		a, err = attach(held.library, s, l.progs, nil, pid)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.glimpses = append(l.glimpses, a)
	l.mu.Unlock()
	time.AfterFunc(glimpseTime, func() {
		l.mu.Lock()
		i := slices.Index(l.glimpses, a)
		if i >= 0 {
			l.glimpses = slices.Delete(l.glimpses, i, i+1)
		}
		l.mu.Unlock()
		if i < 0 {
			return // endGlimpses was first
		}
		if err := a.detach(); err != nil {
			l.warnings.add(fmt.Sprintf("%s: probes for a moment stay on: %v", held.library.Path, err))
		}
	})
	return nil
}

func (l *libraries) endGlimpses() error {
	l.mu.Lock()
	all := l.glimpses
	l.glimpses = nil
	l.mu.Unlock()
	errs := make([]error, len(all))
	inParallel(len(all), maxDetaching, func(i int) { errs[i] = all[i].detach() })
	return errors.Join(errs...)
}
