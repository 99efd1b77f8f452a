package probes

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/gpumemtrace/gpumemtrace/internal/removal"
)

// An attachment holds the links of one library, and the library open, so that no
// other file gets its id.
type attachment struct {
	library Library
	links   []*removal.Probe
	gate    *gate // nil: always open
	// probed are the file offsets of the functions with a probe; missing the table's symbols
	// that the library does not export.
	probed  map[uint64]bool
	missing []string
	tensors bool // one of them tells of tensors

	// Of the table of attachments.
	since time.Duration // when the gate was opened: CLOCK_MONOTONIC
	idle  time.Time     // when the last of its mappers left
	// mappers are the processes that map the library, with a time at which they
	// did (CLOCK_MONOTONIC). The process 0 keeps it probed for good.
	mappers map[int]time.Duration
	evictor *user // whose claim had it removed, nil for nobody's
}

// A point is one function to probe.
type point struct {
	entry  uint16
	offset uint64 // of the function in its file,
	at     uint64 // of the instruction with the probe, 0 for none,
	back   uint64 // and of the one at which the return program runs: 0 for a return probe
}

// sites are the points of a library.
type sites struct {
	points  []point
	missing []string // the table's symbols that the library does not export
}

// sites finds where probes for the rows wanted go.
func (l Library) sites(want func(*Row) bool) (s sites, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("probe %s: %w", l.Path, err)
		}
	}()
	offsets, err := l.functions(known)
	if err != nil {
		return s, err
	}
	s.points, s.missing = choose(l.Level, offsets, want)
	if s.points, err = l.settle(s.points); err == nil && len(s.points) == 0 {
		err = fmt.Errorf("it exports none of the functions that allocate: %w", ErrNoSymbols)
	}
	return s, err
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
			points = append(points, point{entry: uint16(i), offset: off, at: off})
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

// attach puts probes on a library's points. pid 0 means every process that maps it. The
// library must stay open as long as the attachment is there. The probes tell of
// the calls that are entered when all of them are on and that return before detach
// shuts the gate. The attachment owns it.
func attach(lib Library, s sites, progs programs, g *gate, pid int) (_ *attachment, err error) {
	a := &attachment{library: lib, gate: g, probed: map[uint64]bool{}, missing: s.missing, mappers: map[int]time.Duration{}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("probe %s: %w", lib.Path, errors.Join(err, a.detach()))
		}
	}()
	// An Executable hands its path on to the kernel, which follows this one to
	// the open file. It parses the file only to find what has a name and no
	// address, or the address 0: no point has those.
	ex, err := link.OpenExecutable(lib.file.Link())
	if err != nil {
		return nil, err
	}
	if err := g.shut(); err != nil {
		return nil, err
	}
	if err := a.attach(ex, progs, s.points, pid); err != nil {
		return nil, err
	}
	for _, p := range s.points {
		a.probed[p.offset] = true
		a.tensors = a.tensors || Entries[p.entry].class == classTensor
	}
	a.since, err = g.open()
	return a, err
}

// settle moves each point's probe to where in its function it is to lie, and those
// of libcuda's ioctl stub to its calls (spread): finding these takes a while, in which
// another library, which is probed when a process has loaded it, would have made its
// first requests. Of a function that tells all at its entry the
// return program runs there. No two points get the same place.
func (l Library) settle(points []point) ([]point, error) {
	e, err := l.elf()
	if err != nil {
		return nil, err
	}
	taken := map[uint64]bool{}
	for _, p := range points {
		taken[p.offset] = true
	}
	var settled []point
	for _, p := range points {
		if Entries[p.entry].class == classEscape && l.Level == Driver && e.X86() {
			settled = append(settled, spread(e, p)...)
			continue
		}
		if at := e.Probe(p.offset); !taken[at] {
			taken[at] = true
			p.at = at
		}
		if Entries[p.entry].class == classTensor {
			p.at, p.back = 0, p.at
		}
		settled = append(settled, p)
	}
	return settled, nil
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

// attach puts both programs at every point. Those of returns go first: a call that
// comes between then ends without an entry, and none stays pending for ever.
func (a *attachment) attach(ex *link.Executable, progs programs, points []point, pid int) error {
	if progs.multi {
		return a.attachMulti(ex, progs, points, pid)
	}
	for _, p := range points {
		opts := &link.UprobeOptions{Address: p.at, Cookie: a.cookie(p), PID: pid}
		back := opts
		exit := ex.Uretprobe
		if p.back != 0 {
			back = &link.UprobeOptions{Address: p.back, Cookie: a.cookie(p), PID: pid}
			exit = ex.Uprobe
		}
		err := a.put(func() (io.Closer, error) { return exit("", progs.exit, back) })
		if p.at != 0 {
			err = errors.Join(err, a.put(func() (io.Closer, error) { return ex.Uprobe("", progs.enter, opts) }))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", Entries[p.entry].Symbol, err)
		}
	}
	return nil
}

func (a *attachment) attachMulti(ex *link.Executable, progs programs, points []point, pid int) error {
	functions, enter := &link.UprobeMultiOptions{PID: uint32(pid)}, &link.UprobeMultiOptions{PID: uint32(pid)}
	back := &link.UprobeMultiOptions{PID: uint32(pid)}
	for _, p := range points {
		cookie := a.cookie(p)
		if p.at != 0 {
			enter.Addresses, enter.Cookies = append(enter.Addresses, p.at), append(enter.Cookies, cookie)
		}
		if p.back == 0 {
			functions.Addresses, functions.Cookies = append(functions.Addresses, p.at), append(functions.Cookies, cookie)
		} else {
			back.Addresses, back.Cookies = append(back.Addresses, p.back), append(back.Cookies, cookie)
		}
	}
	var errs []error
	if len(functions.Addresses) > 0 {
		errs = append(errs, a.put(func() (io.Closer, error) { return ex.UretprobeMulti(nil, progs.exit, functions) }))
	}
	if len(back.Addresses) > 0 {
		errs = append(errs, a.put(func() (io.Closer, error) { return ex.UprobeMulti(nil, progs.exit, back) }))
	}
	if len(enter.Addresses) > 0 {
		errs = append(errs, a.put(func() (io.Closer, error) { return ex.UprobeMulti(nil, progs.enter, enter) }))
	}
	return errors.Join(errs...)
}

// cookie tells the programs which row a probe is of, and which gate it has
// (gm_cookie_row, gm_cookie_gate).
func (a *attachment) cookie(p point) uint64 { return uint64(p.entry) | uint64(a.gate.slot())<<16 }

func (a *attachment) put(attach func() (io.Closer, error)) error {
	p, err := removal.Put("the probe on "+a.library.Path, attach)
	if err == nil {
		a.links = append(a.links, p)
	}
	return err
}

// detach shuts the gate, and takes the probes off.
func (a *attachment) detach() error {
	errs := []error{a.gate.shut()}
	for _, l := range a.links {
		errs = append(errs, l.Close())
	}
	a.links = nil
	err := errors.Join(errs...)
	if err == nil { // else a probe may still go by the gate
		a.gate.release()
		a.gate = nil
	}
	return err
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
	s, err := held.library.sites(func(r *Row) bool { return !lasting(r) })
	if errors.Is(err, ErrNoSymbols) {
		return nil
	}
	var a *attachment
	if err == nil {
		a, err = attach(held.library, s, t.progs, nil, pid)
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
	errs := make([]error, len(all))
	var wait sync.WaitGroup
	for i, a := range all { // as many as targets that the user named in the last moment
		wait.Go(func() { errs[i] = a.detach() })
	}
	wait.Wait()
	return errors.Join(errs...)
}
