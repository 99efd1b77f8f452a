package probes

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// An attachment holds the links of one library, and the library open, so that no
// other file gets its id. They must stay reachable: a link that the garbage
// collector finds detaches its probe.
type attachment struct {
	library Library
	links   []link.Link
	// probed are the file offsets of the functions with a probe; missing the table's symbols
	// that the library does not export.
	probed  map[uint64]bool
	missing []string

	// Of the table of attachments.
	since time.Duration // when the probes were on: CLOCK_MONOTONIC
	idle  time.Time     // when the last of its users left
	// users are the processes that map the library, with a time at which they
	// did (CLOCK_MONOTONIC). The user 0 keeps it probed for good.
	users map[int]time.Duration
}

// A point is one function to probe.
type point struct {
	entry  uint16
	offset uint64 // of the function in its file,
	at     uint64 // and of the instruction with the probe
}

// choose picks the points of one library among the rows wanted: each symbol that
// it exports, each address once.
func choose(level Level, offsets map[string]uint64, want func(*Row) bool) (points []point, missing []string) {
	taken := map[uint64]bool{}
	for i, e := range Entries {
		if i == 0 || e.Level != level && (level != Vendor || !e.imported()) || !want(e.Row) {
			continue
		}
		off, ok := offsets[e.Symbol]
		switch {
		case !ok && optional(level): // of PyTorch's, any version has one of the two
		case !ok:
			missing = append(missing, e.Symbol)
		case !taken[off]:
			taken[off] = true
			points = append(points, point{uint16(i), off, off})
		}
	}
	return points, missing
}

// programs are the entry and return programs. With multi they are loaded for
// uprobe_multi links: one system call for all points, and one grace period to
// detach, from Linux 6.6. Else each point has a link of its own.
type programs struct {
	enter, exit *ebpf.Program
	multi       bool
}

// attach puts probes on a library. pid 0 means every process that maps it.
// Return probes go first: a call that is under way meanwhile then ends without
// an entry, which is counted, and none stays pending for ever. The library must
// stay open as long as the attachment is there.
func attach(lib Library, progs programs, pid int, want func(*Row) bool) (*attachment, error) {
	offsets, err := lib.functions(known)
	if err != nil {
		return nil, fmt.Errorf("probe %s: %w", lib.Path, err)
	}
	points, missing := choose(lib.Level, offsets, want)
	if len(points) == 0 {
		return nil, fmt.Errorf("probe %s: it exports none of the functions that allocate: %w", lib.Path, ErrNoSymbols)
	}
	if err := lib.settle(points); err != nil {
		return nil, fmt.Errorf("probe %s: %w", lib.Path, err)
	}
	// An Executable hands its path on to the kernel, which follows this one to
	// the open file. It parses the file only to find what has a name and no
	// address, or the address 0: no point has those.
	ex, err := link.OpenExecutable(lib.file.Link())
	if err != nil {
		return nil, fmt.Errorf("probe %s: %w", lib.Path, err)
	}
	a := &attachment{library: lib, missing: missing, probed: map[uint64]bool{}, users: map[int]time.Duration{}}
	err = errors.Join(
		a.attach(ex, true, progs.exit, progs.multi, points, pid),
		a.attach(ex, false, progs.enter, progs.multi, points, pid),
	)
	if err != nil {
		return nil, fmt.Errorf("probe %s: %w", lib.Path, errors.Join(err, a.detach()))
	}
	for _, p := range points {
		a.probed[p.offset] = true
	}
	return a, nil
}

// ErrNoSymbols is the error of a library without CUDA's functions.
var ErrNoSymbols = errors.New("not a CUDA library that can be traced")

var symbols = func() map[string]bool {
	m := map[string]bool{}
	for _, e := range Entries[1:] {
		m[e.Symbol] = true
	}
	return m
}()

// known tells whether the table has a function.
func known(name []byte) bool { return symbols[string(name)] }

// attach puts prog at every point, to run when the function there is entered, or
// with onReturn when it returns.
func (a *attachment) attach(ex *link.Executable, onReturn bool, prog *ebpf.Program, multi bool, points []point, pid int) error {
	if !multi {
		return a.attachEach(ex, onReturn, prog, points, pid)
	}
	opts := &link.UprobeMultiOptions{PID: uint32(pid)}
	for _, p := range points {
		opts.Addresses = append(opts.Addresses, p.at)
		opts.Cookies = append(opts.Cookies, uint64(p.entry))
	}
	f := ex.UprobeMulti
	if onReturn {
		f = ex.UretprobeMulti
	}
	l, err := f(nil, prog, opts)
	if err != nil {
		return err
	}
	a.links = append(a.links, l)
	return nil
}

func (a *attachment) attachEach(ex *link.Executable, onReturn bool, prog *ebpf.Program, points []point, pid int) error {
	f := ex.Uprobe
	if onReturn {
		f = ex.Uretprobe
	}
	for _, p := range points {
		l, err := f("", prog, &link.UprobeOptions{Address: p.at, Cookie: uint64(p.entry), PID: pid})
		if err != nil {
			return fmt.Errorf("%s: %w", Entries[p.entry].Symbol, err)
		}
		a.links = append(a.links, l)
	}
	return nil
}

// detach takes the probes off, returns first: the other way round, the return of
// a call that began meanwhile would count as one whose entry was missed.
func (a *attachment) detach() error {
	var errs []error
	for _, l := range a.links {
		errs = append(errs, l.Close())
	}
	a.links = nil
	return errors.Join(errs...)
}

func (a *attachment) close() error { return errors.Join(a.detach(), a.library.Close()) }

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
