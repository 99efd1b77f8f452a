package probes

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/removal"
	"github.com/gpumemtrace/gpumemtrace/internal/source/rounds"
)

const (
	// maxAttachments bounds the libraries probed at one time.
	maxAttachments = 1024
	// linger is how long a library keeps its probes after the last traced
	// process that mapped it. It is short: a link keeps a file system busy.
	linger = 5 * time.Second
	// attachPatience bounds how long anybody waits for one library's probes:
	// its file system may not answer.
	attachPatience = 5 * time.Second
)

var (
	errNotProbed = errors.New("too many libraries are being probed, or its file does not answer")
	errStopped   = errors.New("no library is probed any more")
)

// attachments are the probed libraries, and who maps them. Nothing that can
// wait is done under Tracer.mu, which guards them: the reader of events takes it.
type attachments struct {
	max       int
	table     map[attachKey]*attachment
	pending   map[attachKey]*pending
	processes map[int]*mapper // those with neither libraries nor unseen are none
	users     map[uint32]*user
	closing   int // removed, and their probes not off yet
	stopped   bool
}

// attachKey is a library, and a process when only that one is probed.
type attachKey struct {
	id    proc.FileID
	level Level // a process may map any file under any name
	pid   int
}

// A claim is what a process has on the probes of a library that it maps.
type claim struct {
	pid   int           // 0 keeps the library probed for good
	user  uint32        // who answers for the process (proc.User)
	at    time.Duration // a time at which it mapped the library: CLOCK_MONOTONIC
	only  int           // the process to which the probes are confined, 0 for none
	again bool          // it was made before: no other library of its user goes for it
}

// A mapper is a process that maps libraries to probe.
type mapper struct {
	user   uint32
	libs   map[attachKey]bool // those that are probed
	unseen *unseen            // nil if all are, as far as is known
}

// A pending is a library that is being probed.
type pending struct {
	done   chan struct{}
	err    error // once done
	claims map[int]claim
}

func newAttachments(most int) attachments {
	return attachments{
		max:       most,
		table:     map[attachKey]*attachment{},
		pending:   map[attachKey]*pending{},
		processes: map[int]*mapper{},
		users:     map[uint32]*user{},
	}
}

// attach probes a library once, because of a claim on it. It owns lib from then on.
func (t *Tracer) attach(lib Library, c claim) error {
	err := t.probeOnce(lib, c)
	if errors.Is(err, errNotProbed) {
		err = fmt.Errorf("probe %s: %w", lib.Path, err)
	}
	return err
}

func (t *Tracer) probeOnce(lib Library, c claim) error {
	key := attachKey{lib.id, lib.Level, c.only}
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
		t.libs.use(key, a, c)
		t.mu.Unlock()
		lib.Close()
		return nil
	case p != nil:
		c.at = max(c.at, p.claims[c.pid].at)
		p.claims[c.pid] = c
		t.mu.Unlock()
		lib.Close()
		select {
		case <-p.done:
			return p.err
		case <-time.After(attachPatience):
			return errNotProbed
		}
	case t.libs.user(c.user).refuses(key, time.Now()):
		t.mu.Unlock()
		lib.Close()
		return nil
	}
	old, lost, ok := t.libs.makeRoom(c)
	if !ok {
		t.mu.Unlock()
		lib.Close()
		return errNotProbed
	}
	p = &pending{done: make(chan struct{}), claims: map[int]claim{c.pid: c}}
	t.libs.pending[key] = p
	t.mu.Unlock()
	if old != nil {
		t.evicted(old, lost)
	}
	t.attachPending(key, p, lib, c.user)
	return p.err
}

// sideBySide is how many libraries are probed at one time where several are at hand:
// of each, the kernel makes us wait until every processor has passed by.
const sideBySide = 8

// attachAll probes libraries as attach does, and returns its error for each.
func (t *Tracer) attachAll(libs []Library, c claim) []error {
	errs := make([]error, len(libs))
	places := make(chan struct{}, sideBySide)
	var all sync.WaitGroup
	for i, lib := range libs {
		places <- struct{}{}
		all.Go(func() {
			errs[i] = t.attach(lib, c)
			<-places
		})
	}
	all.Wait()
	return errs
}

// attachPending does the work of attach. It may take long where the library's
// file system does.
func (t *Tracer) attachPending(key attachKey, p *pending, lib Library, who uint32) {
	a, err := t.attachGated(lib, key.pid)
	if lib.Level == Torch && t.opts.Tensors && (err == nil && !a.tensors || errors.Is(err, ErrNoSymbols)) {
		t.warnOf(who, lib.Path+": this PyTorch tells of its tensors by no function that is known: what its segments hold is not seen")
	}
	if lib.Level == TorchCUDA && errors.Is(err, ErrNoSymbols) {
		t.warnOf(who, lib.Path+": no function that is known tells of this PyTorch's private pools (CUDA graphs, torch.cuda.MemPool): what is cached in them counts as cached for every request")
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
		for _, c := range p.claims {
			t.libs.use(key, a, c)
		}
	case errors.Is(err, ErrNoSymbols):
		for _, c := range p.claims {
			t.libs.user(c.user).refuse(key, time.Now())
		}
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

// use says that a process has a claim on a library.
func (l *attachments) use(key attachKey, a *attachment, c claim) {
	a.mappers[c.pid] = max(a.mappers[c.pid], c.at)
	l.process(c.pid, c.user).libs[key] = true
}

// process returns what is known of a process of a user.
func (l *attachments) process(pid int, uid uint32) *mapper {
	m := l.processes[pid]
	if m == nil {
		m = &mapper{libs: map[attachKey]bool{}}
		l.processes[pid] = m
	}
	if m.unseen != nil && m.user != uid {
		l.user(m.user).unseen--
		l.user(uid).unseen++
	}
	m.user = uid
	return m
}

// forget forgets a process of which nothing need be known.
func (l *attachments) forget(pid int) {
	if m := l.processes[pid]; m != nil && len(m.libs) == 0 && m.unseen == nil {
		delete(l.processes, pid)
	}
}

// left says that a process ended or replaced its image at the moment at. What it
// mapped later stays: the news of that may come first.
func (l *attachments) left(pid int, at time.Duration, now time.Time) {
	m := l.processes[pid]
	if m == nil {
		return
	}
	if m.unseen != nil && m.unseen.at <= at {
		l.see(pid)
	}
	for key := range m.libs {
		a := l.table[key]
		if a != nil && a.mappers[pid] > at {
			continue
		}
		if delete(m.libs, key); a != nil {
			if delete(a.mappers, pid); len(a.mappers) == 0 {
				a.idle = now
			}
		}
	}
	l.forget(pid)
}

// inherited says that a child began with its parent's mappings at the moment at.
func (l *attachments) inherited(parent, child int, at time.Duration) {
	m := l.processes[parent]
	if m == nil {
		return
	}
	for key := range m.libs {
		if a := l.table[key]; a != nil && a.mappers[parent] <= at {
			l.use(key, a, claim{pid: child, user: m.user, at: at})
		}
	}
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
	var round rounds.Rounds[int]
	for {
		select {
		case <-stop:
			return
		case now := <-tick.C:
			tick.Reset(clock.Until(tidyInterval))
			t.takeOff(t.unused(now, &round)...)
			t.lookAgain(now)
		}
	}
}

// unused removes and returns the attachments whose time is over, after a look at the
// next of the processes that map a library.
func (t *Tracer) unused(now time.Time, round *rounds.Rounds[int]) (out []*attachment) {
	at := clock.Monotonic()
	var gone []int
	for _, pid := range round.Next(tidyAtOnce, t.mappingPIDs) {
		if pid != 0 && proc.Ended(pid) {
			gone = append(gone, pid)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, pid := range gone {
		t.libs.left(pid, at, now)
	}
	t.libs.forgetUsers(now)
	for key, a := range t.libs.table {
		if len(a.mappers) == 0 && now.Sub(a.idle) >= linger {
			delete(t.libs.table, key)
			t.libs.closing++
			out = append(out, a)
		}
	}
	return out
}

// mappingPIDs returns the processes that map a library to probe.
func (t *Tracer) mappingPIDs() []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.libs.processes))
}

func (t *Tracer) takeOff(all ...*attachment) {
	closeAttachments(all, func(a *attachment, err error) {
		t.mu.Lock()
		t.libs.closed(a)
		t.mu.Unlock()
		if err != nil {
			t.warn(fmt.Sprintf("the probes of %s did not come off cleanly: %v", a.library.Path, err))
		}
	})
}

// maxDetaching bounds the libraries whose probes come off at one time.
const maxDetaching = 32

// closeAttachments closes many at a time, and tells how each went. They wait for
// grace periods of the kernel's, tens of milliseconds, which they can share.
func closeAttachments(all []*attachment, closed func(*attachment, error)) {
	var wait sync.WaitGroup
	slots := make(chan struct{}, maxDetaching)
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
