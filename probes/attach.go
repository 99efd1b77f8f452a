package probes

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/removal"
)

// An attachment holds the links of one library. It also holds the library open, so that no other
// file gets its id.
type attachment struct {
	library Library
	links   []*removal.Probe
	gate    *gate // nil: always open
	// probed are the file offsets of the functions with a probe, missing the table's symbols
	// that the library does not export.
	probed  map[uint64]bool
	missing []string
	places  map[uint64]uint16 // the entry of each probe, by its offset in the file
	tensors bool              // it has probes on PyTorch's tensors, or has them in windows
	later   []point           // that have probes in windows only

	file   sync.RWMutex // held while the library's file is used for a window
	closed bool

	since time.Duration // when the gate opened: CLOCK_MONOTONIC
}

// A point is one function to probe.
type point struct {
	entry  uint16
	offset uint64 // of the function in its file,
	at     uint64 // of the instruction with the entry probe, 0 for none,
	back   uint64 // and of the one at which the return program runs: 0 for a return probe
}

// sites are the points of a library.
type sites struct {
	points  []point
	missing []string // the table's symbols that the library does not export
	code    extent   // of its functions, if they lie in one segment
}

// sites finds the places of probes for the rows wanted.
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
	e, err := l.elf()
	if err != nil {
		return s, err
	}
	s.code.offset, s.code.size = e.Code()
	if s.points = locate(e, l.Level, s.points); len(s.points) == 0 {
		err = fmt.Errorf("it exports none of the functions that allocate: %w", ErrNoSymbols)
	}
	return s, err
}

// choose selects the points of one library for the rows wanted: each symbol that it exports, each
// address once.
func choose(level Level, offsets map[string]uint64, want func(*Row) bool) (points []point, missing []string) {
	taken := map[uint64]bool{}
	for i, e := range Entries {
		if i == 0 || e.Level != level && (level != Vendor || !e.imported()) || !want(e.Row) {
			continue
		}
		off, ok := offsets[e.Symbol]
		switch {
		case !ok && optional(level): // each version of PyTorch has one of two symbols
		case !ok:
			missing = append(missing, e.Symbol)
		case !taken[off]:
			taken[off] = true
			points = append(points, point{entry: uint16(i), offset: off, at: off})
		}
	}
	return points, missing
}

// locate chooses the instruction of each point's probe in its function. The probes of libcuda's
// ioctl stub go to its calls (spread). This takes a while, so the sites of a library are found before
// a process maps it if possible: else the process would make its first requests in that time. A
// function by which an allocator reports tensors has a probe at its entry alone. No two points get the same
// instruction.
func locate(e *proc.ELF, level Level, points []point) (located []point) {
	taken := map[uint64]bool{}
	for _, p := range points {
		taken[p.offset] = true
	}
	for _, p := range points {
		if Entries[p.entry].class == classEscape && level == Driver && e.X86() {
			located = append(located, spread(e, p)...)
			continue
		}
		if at := e.Probe(p.offset); !taken[at] {
			taken[at] = true
			p.at = at
		}
		located = append(located, p)
	}
	return located
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

// known reports whether the table has a function.
func known(name []byte) bool { return symbols[string(name)] }

// programs are the entry and return programs, that of tensors, and the way to attach them (attachType).
type programs struct {
	enter, exit, tensor *ebpf.Program
	attach              ebpf.AttachType
}

// attach puts probes on a library's points, for one process or, with pid 0, for all that map it. The
// attachment owns the library. The probes make events for the calls that are entered when all of
// them are on, and that return before detach shuts the gate.
func attach(lib Library, s sites, progs programs, g *gate, pid int) (_ *attachment, err error) {
	a := &attachment{library: lib, gate: g, probed: map[uint64]bool{}, places: map[uint64]uint16{}, missing: s.missing}
	defer func() {
		if err != nil {
			err = fmt.Errorf("probe %s: %w", lib.Path, errors.Join(err, a.detach()))
		}
	}()
	if g != nil {
		g.code = s.code
	}
	if err := g.shut(); err != nil {
		return nil, err
	}
	if err := a.attach(lib.file.Link(), progs, s.points, pid); err != nil {
		return nil, err
	}
	for _, p := range s.points {
		a.probed[p.offset] = true
		for _, at := range []uint64{p.at, p.back} {
			if at != 0 {
				a.places[at] = p.entry
			}
		}
		a.tensors = a.tensors || Entries[p.entry].class == classTensor
	}
	a.since, err = g.open()
	return a, err
}

// places are file offsets with their cookies.
type places struct{ offsets, cookies []uint64 }

func (p *places) add(offset, cookie uint64) {
	if offset != 0 {
		p.offsets, p.cookies = append(p.offsets, offset), append(p.cookies, cookie)
	}
}

// attach puts both programs at every point of the file at a path, which the kernel follows to the open
// file. Returns come first: a call that begins in between then ends without an entry, and none stays
// pending for ever.
func (a *attachment) attach(path string, progs programs, points []point, pid int) error {
	// returns are the functions with a return probe, backs the other places of the return program.
	var entries, returns, backs, tensors places
	for _, p := range points {
		if Entries[p.entry].class == classTensor {
			tensors.add(p.at, a.cookie(p, p.at))
			continue
		}
		entries.add(p.at, a.cookie(p, p.at))
		backs.add(p.back, a.cookie(p, p.back))
		if p.back == 0 {
			returns.add(p.at, a.cookie(p, p.at))
		}
	}
	if progs.attach == attachSession { // whose entry program calls the return program
		session := func(prog *ebpf.Program) func(at places) (io.Closer, error) {
			return func(at places) (io.Closer, error) { return session(path, prog, at.offsets, at.cookies, pid) }
		}
		return errors.Join(a.put(backs, session(progs.exit)), a.put(tensors, session(progs.tensor)), a.put(entries, session(progs.enter)))
	}
	// An Executable parses the file only for names and the address 0. There are none here.
	ex, err := link.OpenExecutable(path)
	if err != nil {
		return err
	}
	if progs.attach == ebpf.AttachTraceUprobeMulti {
		many := func(put func([]string, *ebpf.Program, *link.UprobeMultiOptions) (link.Link, error), prog *ebpf.Program) func(places) (io.Closer, error) {
			return func(at places) (io.Closer, error) {
				return put(nil, prog, &link.UprobeMultiOptions{Addresses: at.offsets, Cookies: at.cookies, PID: uint32(pid)})
			}
		}
		return errors.Join(a.put(returns, many(ex.UretprobeMulti, progs.exit)), a.put(backs, many(ex.UprobeMulti, progs.exit)),
			a.put(tensors, many(ex.UprobeMulti, progs.tensor)), a.put(entries, many(ex.UprobeMulti, progs.enter)))
	}
	one := func(put func(string, *ebpf.Program, *link.UprobeOptions) (link.Link, error), prog *ebpf.Program) func(places) (io.Closer, error) {
		return func(at places) (io.Closer, error) {
			return put("", prog, &link.UprobeOptions{Address: at.offsets[0], Cookie: at.cookies[0], PID: pid})
		}
	}
	return errors.Join(a.putEach(returns, one(ex.Uretprobe, progs.exit)), a.putEach(backs, one(ex.Uprobe, progs.exit)),
		a.putEach(tensors, one(ex.Uprobe, progs.tensor)), a.putEach(entries, one(ex.Uprobe, progs.enter)))
}

// put adds a link for all places.
func (a *attachment) put(at places, attach func(places) (io.Closer, error)) error {
	if len(at.offsets) == 0 {
		return nil
	}
	p, err := removal.Put("the probe on "+a.library.Path, func() (io.Closer, error) { return attach(at) })
	if err == nil {
		a.links = append(a.links, p)
	}
	return err
}

// putEach adds a link for each place.
func (a *attachment) putEach(at places, attach func(places) (io.Closer, error)) error {
	for i := range at.offsets {
		if err := a.put(places{at.offsets[i : i+1], at.cookies[i : i+1]}, attach); err != nil {
			return fmt.Errorf("%s: %w", Entries[uint16(at.cookies[i])].Symbol, err)
		}
	}
	return nil
}

// cookie returns the row of a probe, its gate, its offset in the file, and whether the return
// has a probe of its own (gm_cookie_row, gm_cookie_gate, gm_cookie_offset, gm_cookie_apart).
func (a *attachment) cookie(p point, offset uint64) uint64 {
	cookie := uint64(p.entry) | uint64(a.gate.slot())<<16 | offset<<29>>1
	if p.back != 0 {
		cookie |= 1 << 63
	}
	return cookie
}

// detach shuts the gate and removes the probes.
func (a *attachment) detach() error {
	err := errors.Join(a.gate.shut(), a.unlink())
	if err == nil { // else a probe may still use the gate
		a.gate.release()
		a.gate = nil
	}
	return err
}

// unlink removes the probes.
func (a *attachment) unlink() error {
	var errs []error
	for _, l := range a.links {
		errs = append(errs, l.Close())
	}
	a.links = nil
	return errors.Join(errs...)
}

func (a *attachment) close() error {
	err := a.detach()
	a.file.Lock()
	defer a.file.Unlock()
	a.closed = true
	return errors.Join(err, a.library.Close())
}

// inParallel calls f for 0 to n-1, at most limit at a time.
func inParallel(n, limit int, f func(i int)) {
	var all sync.WaitGroup
	places := make(chan struct{}, limit)
	for i := range n {
		places <- struct{}{}
		all.Go(func() {
			f(i)
			<-places
		})
	}
	all.Wait()
}
