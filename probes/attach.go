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

	"github.com/gpumemtrace/gpumemtrace/internal/source/removal"
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

// programs are the entry and return programs, loaded for one way of attaching
// (attachType). Where a link holds many probes, one system call is enough for all
// points, and one grace period to detach.
type programs struct {
	enter, exit *ebpf.Program
	attach      ebpf.AttachType
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
	if err := g.shut(); err != nil {
		return nil, err
	}
	if err := a.attach(lib.file.Link(), progs, s.points, pid); err != nil {
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

// attach puts both programs at every point of the file at a path, which the kernel
// follows to the open file. Those of returns go first: a call that comes between then
// ends without an entry, and none stays pending for ever.
func (a *attachment) attach(path string, progs programs, points []point, pid int) error {
	if progs.attach == attachSession {
		return a.attachSession(path, progs, points, pid)
	}
	// An Executable parses the file only to find what has a name and no address, or
	// the address 0: no point has those.
	ex, err := link.OpenExecutable(path)
	if err != nil {
		return err
	}
	if progs.attach == ebpf.AttachTraceUprobeMulti {
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

// places are file offsets with their cookies.
type places struct{ offsets, cookies []uint64 }

func (p *places) add(offset, cookie uint64) {
	if offset != 0 {
		p.offsets, p.cookies = append(p.offsets, offset), append(p.cookies, cookie)
	}
}

// places returns where functions are entered, those of them that take a return probe,
// and where the returns of the others are seen.
func (a *attachment) places(points []point) (entries, functions, backs places) {
	for _, p := range points {
		entries.add(p.at, a.cookie(p))
		backs.add(p.back, a.cookie(p))
		if p.back == 0 {
			functions.add(p.at, a.cookie(p))
		}
	}
	return entries, functions, backs
}

func (a *attachment) attachMulti(ex *link.Executable, progs programs, points []point, pid int) error {
	entries, functions, backs := a.places(points)
	var errs []error
	add := func(at places, prog *ebpf.Program, put func([]string, *ebpf.Program, *link.UprobeMultiOptions) (link.Link, error)) {
		if len(at.offsets) > 0 {
			errs = append(errs, a.put(func() (io.Closer, error) {
				return put(nil, prog, &link.UprobeMultiOptions{Addresses: at.offsets, Cookies: at.cookies, PID: uint32(pid)})
			}))
		}
	}
	add(functions, progs.exit, ex.UretprobeMulti)
	add(backs, progs.exit, ex.UprobeMulti)
	add(entries, progs.enter, ex.UprobeMulti)
	return errors.Join(errs...)
}

// attachSession does so with sessions, in which the entry program hands a return on to
// the return program.
func (a *attachment) attachSession(path string, progs programs, points []point, pid int) error {
	entries, _, backs := a.places(points)
	var errs []error
	for _, x := range []struct {
		prog *ebpf.Program
		at   places
	}{{progs.exit, backs}, {progs.enter, entries}} {
		if len(x.at.offsets) > 0 {
			errs = append(errs, a.put(func() (io.Closer, error) { return session(path, x.prog, x.at.offsets, x.at.cookies, pid) }))
		}
	}
	return errors.Join(errs...)
}

// cookie tells the programs which row a probe is of, which gate it has, and whether the
// return has a probe of its own (gm_cookie_row, gm_cookie_gate, gm_cookie_apart).
func (a *attachment) cookie(p point) uint64 {
	cookie := uint64(p.entry) | uint64(a.gate.slot())<<16
	if p.back != 0 {
		cookie |= 1 << 63
	}
	return cookie
}

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
