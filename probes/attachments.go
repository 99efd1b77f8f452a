package probes

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/removal"
	"github.com/gpumemtrace/gpumemtrace/internal/rounds"
)

const (
	// maxAttachments bounds the libraries probed at one time.
	maxAttachments = 1024
	// linger is how long a library keeps its probes after the last traced
	// process that mapped it. It is short: a link keeps a file system busy.
	linger = 5 * time.Second
	// refusal is how long a file that could not be traced is not looked at
	// again. Its inode number may mean another file later.
	refusal = 10 * time.Second
	// attachPatience bounds how long anybody waits for one library's probes:
	// its file system may not answer, nor those of the libraries before it.
	attachPatience = 5 * time.Second
	// maxAttaching bounds the libraries being attached to at one time.
	maxAttaching = 32
)

var (
	errNotProbed = errors.New("too many libraries are being probed, or its file does not answer")
	errStopped   = errors.New("no library is probed any more")
)

// attachments are the probed libraries, and who maps them. Nothing that can
// wait is done under Tracer.mu, which guards them: the reader of events takes it.
type attachments struct {
	table   map[attachKey]*attachment
	pending map[attachKey]*pending  // those that wait for a place, too
	places  chan struct{}           // one for each that is attached to now
	refused map[attachKey]time.Time // until when
	byPID   map[int]map[attachKey]bool
	closing int // removed, and their probes not off yet
	stopped bool
}

// attachKey is a library, and a process when only that one is probed.
type attachKey struct {
	id    proc.FileID
	level Level // a process may map any file under any name
	pid   int
}

// A pending is a library that is to be probed.
type pending struct {
	done  chan struct{}
	err   error // once done
	users map[int]time.Duration
}

func newAttachments() attachments {
	return attachments{
		table:   map[attachKey]*attachment{},
		pending: map[attachKey]*pending{},
		places:  make(chan struct{}, maxAttaching),
		refused: map[attachKey]time.Time{},
		byPID:   map[int]map[attachKey]bool{},
	}
}

// attach probes a library once, because the process user had mapped it at the
// moment at. With user 0 its probes stay for good. It owns lib from then on. If
// only is not 0, no other process is probed.
func (t *Tracer) attach(lib Library, only, user int, at time.Duration) error {
	err := t.probeOnce(lib, only, user, at)
	if errors.Is(err, errNotProbed) {
		t.loss.Add(lossNotProbed, 1)
		err = fmt.Errorf("probe %s: %w", lib.Path, err)
	}
	return err
}

func (t *Tracer) probeOnce(lib Library, only, user int, at time.Duration) error {
	key := attachKey{lib.id, lib.Level, only}
	t.mu.Lock()
	if all := (attachKey{lib.id, lib.Level, 0}); t.libs.table[all] != nil {
		key = all
	}
	p := t.libs.pending[key]
	switch a := t.libs.table[key]; {
	case t.libs.stopped:
		t.mu.Unlock()
		lib.Close()
		return errStopped
	case a != nil:
		t.libs.use(key, a, user, at)
		t.mu.Unlock()
		lib.Close()
		return nil
	case p != nil:
		p.users[user] = max(p.users[user], at)
		t.mu.Unlock()
		lib.Close()
	case time.Now().Before(t.libs.refused[key]):
		t.mu.Unlock()
		lib.Close()
		return nil
	case !t.makeRoom():
		t.mu.Unlock()
		lib.Close()
		return errNotProbed
	default:
		p = &pending{done: make(chan struct{}), users: map[int]time.Duration{user: at}}
		t.libs.pending[key] = p
		t.mu.Unlock()
		go t.attachPending(key, p, lib)
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(attachPatience):
		return errNotProbed
	}
}

// sideBySide is how many libraries are probed at one time where several are at hand:
// of each, the kernel makes us wait until every processor has passed by.
const sideBySide = 8

// attachAll probes libraries as attach does, and returns its error for each.
func (t *Tracer) attachAll(libs []Library, only, user int, at time.Duration) []error {
	errs := make([]error, len(libs))
	places := make(chan struct{}, sideBySide)
	var all sync.WaitGroup
	for i, lib := range libs {
		places <- struct{}{}
		all.Go(func() {
			errs[i] = t.attach(lib, only, user, at)
			<-places
		})
	}
	all.Wait()
	return errs
}

// attachPending does the work of attach. It may take long where the library's
// file system does.
func (t *Tracer) attachPending(key attachKey, p *pending, lib Library) {
	a, err := t.attachInTurn(lib, key.pid)
	if lib.Level == Torch && t.opts.Tensors && (err == nil && !a.tensors || errors.Is(err, ErrNoSymbols)) {
		t.warn(lib.Path + ": this PyTorch tells of its tensors by no function that is known: what its segments hold is not seen")
	}
	if lib.Level == TorchCUDA && errors.Is(err, ErrNoSymbols) {
		t.warn(lib.Path + ": no function that is known tells of this PyTorch's private pools (CUDA graphs, torch.cuda.MemPool): what is cached in them counts as cached for every request")
	}
	if err != nil {
		lib.Close()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer close(p.done)
	delete(t.libs.pending, key)
	p.err = err
	switch {
	case err == nil && t.libs.stopped:
		go a.close()
		p.err = errStopped
	case err == nil:
		t.libs.table[key] = a
		for user, at := range p.users {
			t.libs.use(key, a, user, at)
		}
	case errors.Is(err, ErrNoSymbols):
		if len(t.libs.refused) >= maxAttachments {
			clear(t.libs.refused)
		}
		t.libs.refused[key] = time.Now().Add(refusal)
	}
}

// attachInTurn probes a library once there is a place, if that is soon.
func (t *Tracer) attachInTurn(lib Library, pid int) (*attachment, error) {
	select {
	case t.libs.places <- struct{}{}:
		defer func() { <-t.libs.places }()
		return t.attachGated(lib, pid)
	case <-time.After(attachPatience):
		return nil, errNotProbed
	}
}

// attachGated probes a library with a gate of its own.
func (t *Tracer) attachGated(lib Library, pid int) (*attachment, error) {
	find := lib.ahead
	if find == nil {
		find = func() (sites, error) { return lib.sites(t.wants) }
	}
	s, err := find()
	if err != nil {
		return nil, err
	}
	g := t.gates.take()
	if g == nil {
		return nil, errNotProbed
	}
	return attach(lib, s, t.progs, g, pid)
}

// use says that the process pid mapped a library by the moment at, on
// CLOCK_MONOTONIC; 0 keeps it probed for good.
func (l *attachments) use(key attachKey, a *attachment, pid int, at time.Duration) {
	a.users[pid] = max(a.users[pid], at)
	if l.byPID[pid] == nil {
		l.byPID[pid] = map[attachKey]bool{}
	}
	l.byPID[pid][key] = true
}

// left says that a process ended or replaced its image at the moment at. What it
// mapped later stays: the news of that may come first.
func (l *attachments) left(pid int, at time.Duration, now time.Time) {
	for key := range l.byPID[pid] {
		a := l.table[key]
		if a != nil && a.users[pid] > at {
			continue
		}
		if delete(l.byPID[pid], key); a != nil {
			if delete(a.users, pid); len(a.users) == 0 {
				a.idle = now
			}
		}
	}
	if len(l.byPID[pid]) == 0 {
		delete(l.byPID, pid)
	}
}

// inherited says that a child began with its parent's mappings at the moment at.
func (l *attachments) inherited(parent, child int, at time.Duration) {
	for key := range l.byPID[parent] {
		if a := l.table[key]; a != nil && a.users[parent] <= at {
			l.use(key, a, child, at)
		}
	}
}

// evict removes the library that nobody has mapped for longest and returns it,
// for its probes to be taken off; nil if every one is mapped.
func (l *attachments) evict() *attachment {
	var oldest attachKey
	var found *attachment
	for key, a := range l.table {
		if len(a.users) == 0 && (found == nil || a.idle.Before(found.idle)) {
			oldest, found = key, a
		}
	}
	if found == nil {
		return nil
	}
	delete(l.table, oldest)
	l.closing++
	return found
}

// lived follows what a step of a process's life means for its libraries. It is
// for the reader of events: it waits for nothing.
func (t *Tracer) lived(e *event.Event) {
	switch e.Op {
	case event.OpFork, event.OpExec, event.OpExit:
	default:
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at := time.Duration(e.Time)
	if e.Op == event.OpFork {
		t.libs.inherited(int(e.Proc.PID), int(e.Child.PID), at)
		return
	}
	t.libs.left(int(e.Proc.PID), at, time.Now())
}

const (
	// tidyInterval is how often what nobody uses is looked for.
	tidyInterval = time.Second
	// tidyAtOnce bounds the processes that are looked at each time.
	tidyAtOnce = 32
)

// tidy takes probes off libraries that no traced process maps any more, until
// stop is closed. A process whose exit was lost is looked for here.
func (t *Tracer) tidy(stop <-chan struct{}) {
	tick := time.NewTimer(clock.Until(tidyInterval))
	defer tick.Stop()
	var users rounds.Rounds[int]
	for {
		select {
		case <-stop:
			return
		case now := <-tick.C:
			tick.Reset(clock.Until(tidyInterval))
			t.takeOff(t.unused(now, &users)...)
		}
	}
}

// unused removes and returns the attachments whose time is over, after a look at the
// next of the processes that map a library.
func (t *Tracer) unused(now time.Time, users *rounds.Rounds[int]) (out []*attachment) {
	at := clock.Monotonic()
	var gone []int
	for _, pid := range users.Next(tidyAtOnce, t.userPIDs) {
		if pid != 0 && proc.Ended(pid) {
			gone = append(gone, pid)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, pid := range gone {
		t.libs.left(pid, at, now)
	}
	for key, a := range t.libs.table {
		if len(a.users) == 0 && now.Sub(a.idle) >= linger {
			delete(t.libs.table, key)
			t.libs.closing++
			out = append(out, a)
		}
	}
	return out
}

// userPIDs returns the processes that map a probed library.
func (t *Tracer) userPIDs() []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.libs.byPID))
}

// makeRoom tells whether one more library may be probed, after one that nobody
// maps has gone if need be. t.mu is held.
func (t *Tracer) makeRoom() bool {
	if len(t.libs.table)+len(t.libs.pending) < maxAttachments {
		return true
	}
	if t.libs.closing >= maxAttachments/4 {
		return false
	}
	old := t.libs.evict()
	if old != nil {
		go t.takeOff(old)
	}
	return old != nil
}

func (t *Tracer) takeOff(all ...*attachment) {
	closeAttachments(all, func(a *attachment, err error) {
		t.mu.Lock()
		t.libs.closing--
		t.mu.Unlock()
		if err != nil {
			t.warn(fmt.Sprintf("the probes of %s did not come off cleanly: %v", a.library.Path, err))
		}
	})
}

// closeAttachments closes many at a time, and tells how each went. They wait for
// grace periods of the kernel's, tens of milliseconds, which they can share.
func closeAttachments(all []*attachment, closed func(*attachment, error)) {
	var wait sync.WaitGroup
	slots := make(chan struct{}, maxAttaching)
	for _, a := range all {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			closed(a, a.close())
		})
	}
	wait.Wait()
}

// shutGates ends what the probes tell.
func (t *Tracer) shutGates() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, a := range t.libs.table {
		errs = append(errs, a.gate.shut())
	}
	return errors.Join(errs...)
}

// closeAll takes every probe off and lets none come on any more. It waits for as long as
// probes come off.
func (t *Tracer) closeAll() error {
	t.mu.Lock()
	t.libs.stopped = true
	var waits []*pending
	for _, p := range t.libs.pending {
		waits = append(waits, p)
	}
	var all []*attachment
	for key, a := range t.libs.table {
		all = append(all, a)
		delete(t.libs.table, key)
	}
	t.mu.Unlock()
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
		failed(t.endGlimpses())
		closeAttachments(all, func(_ *attachment, err error) { failed(err) })
	}()
	failed(removal.Wait(done))
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(errs...)
}
