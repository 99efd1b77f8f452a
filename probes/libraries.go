package probes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/removal"
	"github.com/gpumemtrace/gpumemtrace/internal/source/rounds"
	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
)

const (
	// maxAttachments bounds the files in the table.
	maxAttachments = 1024
	// linger is how long a file stays in the table after the last traced process that mapped
	// it. It is short, because a link keeps a file system busy.
	linger = 5 * time.Second
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

var (
	errNotProbed = errors.New("too many libraries are being probed, or its file does not answer")
	errStopped   = errors.New("no library is probed any more")
)

// libraries puts probes on a file for the first process that maps it, and removes them after the
// last one.
type libraries struct {
	opts     *Options
	progs    programs
	gates    gates
	loss     *loss.Set
	warnings *warnings
	closeAll func() error // see close; it works once
	max      int          // files in the table

	mu      sync.Mutex // never held during a wait: the reader of events locks it
	table   map[attachKey]*probedFile
	closing map[*probedFile]uint32 // removed from the table: the user for whom, or others
	unseen  unseen
	windows map[*window]bool // that are open, or whose probes go off
	stopped bool             // see shut
	longest time.Duration    // between a library's mapping and its probes
}

// attachKey identifies a file, and a process if the probes are confined to that.
type attachKey struct {
	id    proc.FileID
	level Level // a process may map any file under any name
	pid   int
}

// A claim is the reason to probe a library: a process maps it.
type claim struct {
	pid   int           // 0: the library stays probed for good
	user  uint32        // of the process (userOf)
	at    time.Duration // a time at which the process mapped the library: CLOCK_MONOTONIC
	only  int           // the process to which the probes are confined, 0 for none
	again bool          // a repeated claim, for which no other library of its user loses its probes
}

// A probedFile is a file in the table. It goes when no process maps it any more.
type probedFile struct {
	key     attachKey
	mappers map[int]*mapper // by process
	idle    time.Time       // when the last mapper left
	done    chan struct{}   // closed when its probes are on, or err says why not
	err     error
	// attachment is nil before done, and for a file without functions to probe.
	*attachment
}

// A mapper is a process that maps a file.
type mapper struct {
	user uint32
	at   time.Duration // a time at which it mapped the file: CLOCK_MONOTONIC
	gone int           // functions whose probes somebody removed, as far as known
}

func newLibraries(opts *Options, lost *loss.Set, w *warnings) *libraries {
	l := &libraries{opts: opts, loss: lost, warnings: w, max: cmp.Or(opts.attachments, maxAttachments),
		table: map[attachKey]*probedFile{}, closing: map[*probedFile]uint32{}, windows: map[*window]bool{}, unseen: newUnseen()}
	l.closeAll = sync.OnceValue(l.close)
	return l
}

// use adds a claim.
func (f *probedFile) use(c claim) {
	m := keyed.At(f.mappers, c.pid)
	m.user, m.at = c.user, max(m.at, c.at)
}

// pending reports whether another goroutine puts the probes on.
func (f *probedFile) pending() bool { return f.attachment == nil && f.err == nil }

// attach puts probes on a library because of a claim, unless it has them. It owns lib from then
// on.
func (l *libraries) attach(lib Library, c claim) (err error) {
	defer func() {
		if errors.Is(err, errNotProbed) {
			err = fmt.Errorf("probe %s: %w", lib.Path, err)
		}
	}()
	f, added, old, err := l.claim(attachKey{lib.id, lib.Level, c.only}, c)
	if old != nil {
		l.evict(old)
	}
	if added {
		l.probe(f, lib, c.user)
		return f.err
	}
	lib.Close()
	if f == nil {
		return err
	}
	select {
	case <-f.done:
		return f.err
	case <-time.After(attachPatience):
		return errNotProbed
	}
}

// claim adds a claim to a file. If it had to add the file, the claimant must probe it. old then
// lost its place. There is no file without functions to probe, nor with an error.
func (l *libraries) claim(key attachKey, c claim) (f *probedFile, added bool, old *probedFile, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return nil, false, nil, errStopped
	}
	if f = l.find(key); f != nil {
		if f.err != nil {
			return nil, false, nil, nil
		}
		f.use(c)
		return f, false, nil, nil
	}
	old, ok := l.makeRoom(c)
	if !ok {
		return nil, false, nil, errNotProbed
	}
	f = &probedFile{key: key, mappers: map[int]*mapper{}, done: make(chan struct{})}
	f.use(c)
	l.table[key] = f
	return f, true, old, nil
}

// find returns a file, nil if it is not in the table. Probes for all processes are for one, too.
func (l *libraries) find(key attachKey) *probedFile {
	if f := l.table[attachKey{key.id, key.level, 0}]; f != nil {
		return f
	}
	return l.table[key]
}

// attachAll attaches libraries and returns the error of each.
func (l *libraries) attachAll(libs []Library, c claim) []error {
	errs := make([]error, len(libs))
	inParallel(len(libs), sideBySide, func(i int) { errs[i] = l.attach(libs[i], c) })
	return errs
}

// probe puts the probes on a file that was added to the table. It may wait for its file system.
func (l *libraries) probe(f *probedFile, lib Library, uid uint32) {
	a, err := l.attachGated(lib, f.key.pid)
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
	defer close(f.done)
	switch {
	case err == nil && l.table[f.key] != f: // close did not wait for it
		go func() { _ = a.close() }()
		err = errStopped
	case err == nil:
		if f.attachment = a; l.stopped {
			err = a.gate.shut()
		}
	case errors.Is(err, ErrNoSymbols): // it stays for a while, so that it is not opened again and again
		clear(f.mappers)
	default:
		delete(l.table, f.key)
	}
	if f.err = err; len(f.mappers) == 0 {
		f.idle = time.Now()
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

// evict removes the probes of a file that lost its place.
func (l *libraries) evict(old *probedFile) {
	go l.detach(old)
	if len(old.mappers) == 0 {
		return
	}
	l.loss.Add(lossEvicted, 1)
	for pid, m := range old.mappers { // the warning names any one of them
		l.warnings.addFor(m.user, fmt.Sprintf("process %d of %s is not traced in full any more: %s lost its probes, because more libraries are mapped than can be probed and this user maps the most", pid, tenant.Name(m.user), old.library.Path))
		return
	}
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
		l.inherit(pid, int(e.Child.PID), at)
	case event.OpExec, event.OpExit:
		l.leave(pid, at, time.Now())
	}
}

// leave removes the claims of a process that ended, or replaced its image, at the moment at.
// A claim of a later mapping stays: its report can come before that of the exec.
func (l *libraries) leave(pid int, at time.Duration, now time.Time) {
	if p := l.unseen.processes[pid]; p != nil && p.at <= at {
		l.unseen.remove(pid)
	}
	for _, f := range l.table {
		if m := f.mappers[pid]; m == nil || m.at > at {
			continue
		}
		if delete(f.mappers, pid); len(f.mappers) == 0 {
			f.idle = now
		}
	}
}

// inherit adds the claims of a child, which began with its parent's mappings at the moment at.
func (l *libraries) inherit(parent, child int, at time.Duration) {
	for _, f := range l.table {
		if m := f.mappers[parent]; m != nil && m.at <= at {
			f.use(claim{pid: child, user: m.user, at: at})
		}
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
	l.unseen.add(c.pid, c.user, why, c.at, time.Now())
}

// retried updates a process that a repeated claim was for, which ended with err.
func (l *libraries) retried(c claim, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil, noMapping(err):
		l.unseen.remove(c.pid)
	case l.unseen.processes[c.pid] != nil:
		l.unseen.add(c.pid, c.user, absenceOf(err), c.at, time.Now())
	}
}

// count returns the number of probed libraries that a process maps, and whether the process is
// marked as unseen.
func (l *libraries) count(pid int) (n int, unseen bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.table {
		if f.mappers[pid] != nil {
			n++
		}
	}
	return n, l.unseen.processes[pid] != nil
}

// probedAt reports whether a file has probes, and whether one of them is for the function at an
// offset.
func (l *libraries) probedAt(id proc.FileID, offset uint64) (file, function bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, f := range l.table {
		if key.id == id && f.attachment != nil {
			file = true
			function = function || f.probed[offset]
		}
	}
	return file, function
}

// noteGap compares the time at which a library was mapped with that of its probes. A library
// without any, which was not refused, belonged to a process that ended too soon.
func (l *libraries) noteGap(m mapping, level Level, id proc.FileID) {
	counted := Driver
	if l.opts.API == APIRuntime {
		counted = Runtime
	}
	if level != counted {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.find(attachKey{id, level, m.pid})
	if f == nil {
		l.loss.Add(lossUnseen, 1)
	} else if f.attachment != nil && f.since > m.time {
		l.loss.Add(lossProbedLate, 1)
		l.longest = max(l.longest, f.since-m.time)
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
	for _, a := range l.attachments() {
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

// attachments returns those of all files. Lock mu.
func (l *libraries) attachments() (all []*attachment) {
	for _, f := range l.table {
		if f.attachment != nil {
			all = append(all, f.attachment)
		}
	}
	return all
}

func (l *libraries) notSeen() []NotSeen {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unseen.summary()
}

// due returns claims for the unseen processes whose time has come.
func (l *libraries) due(now time.Time) []claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unseen.due(now)
}

// unused removes the files that no process has mapped for a while, and returns those with probes.
// It first looks for a few processes whose exit event was lost.
func (l *libraries) unused(now time.Time, round *rounds.Rounds[int]) (out []*probedFile) {
	at := clock.Monotonic()
	gone := slices.DeleteFunc(round.Next(leaversAtOnce, l.mappers), func(pid int) bool { return pid == 0 || !proc.Ended(pid) })
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, pid := range gone {
		l.leave(pid, at, now)
	}
	for key, f := range l.table {
		if f.pending() || len(f.mappers) > 0 || now.Sub(f.idle) < linger {
			continue
		}
		delete(l.table, key)
		if f.attachment != nil {
			l.closing[f] = others
			out = append(out, f)
		}
	}
	return out
}

// mappers returns the processes that map a library to probe.
func (l *libraries) mappers() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	pids := map[int]bool{}
	for pid := range l.unseen.processes {
		pids[pid] = true
	}
	for _, f := range l.table {
		for pid := range f.mappers {
			pids[pid] = true
		}
	}
	return slices.Collect(maps.Keys(pids))
}

// detach removes the probes of files that are no longer in the table, many at a time: they share
// the kernel's grace periods, which last tens of milliseconds.
func (l *libraries) detach(all ...*probedFile) {
	inParallel(len(all), maxDetaching, func(i int) {
		f := all[i]
		err := f.close()
		l.mu.Lock()
		delete(l.closing, f)
		l.mu.Unlock()
		if err != nil {
			l.warnings.add(fmt.Sprintf("the probes of %s did not come off cleanly: %v", f.library.Path, err))
		}
	})
}

// shut shuts the gates, and lets no probe come on any more: none makes events.
func (l *libraries) shut() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	var errs []error
	for _, a := range l.attachments() {
		errs = append(errs, a.gate.shut())
	}
	for w := range l.windows {
		errs = append(errs, w.gate.shut())
	}
	return errors.Join(errs...)
}

// close removes every probe. It waits as long as probes come off.
func (l *libraries) close() error {
	var mu sync.Mutex
	var errs []error
	failed := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	failed(l.shut())
	l.mu.Lock()
	files, windows := slices.Collect(maps.Values(l.table)), slices.Collect(maps.Keys(l.windows))
	l.mu.Unlock()
	patience, cancel := context.WithTimeout(context.Background(), attachPatience)
	defer cancel()
	for _, f := range files {
		select {
		case <-f.done:
		case <-patience.Done():
		}
	}
	l.mu.Lock()
	all := l.attachments()
	clear(l.table)
	l.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		inParallel(len(windows), maxDetaching, func(i int) { failed(l.closeWindow(windows[i])) })
		inParallel(len(all), maxDetaching, func(i int) { failed(all[i].close()) })
	}()
	failed(removal.Wait(done))
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(errs...)
}
