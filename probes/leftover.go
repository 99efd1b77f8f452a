package probes

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/removal"
)

// A tracer that is killed while the kernel puts its probes on, or takes them off, leaves
// breakpoints behind (internal/source/removal). A program that meets one goes on as if it was
// not there, by way of the kernel, which costs it about a microsecond each time.

// A Leftover is a breakpoint in the memory of a process, where a tracer puts one, that no
// BPF link accounts for.
type Leftover struct {
	PID      int
	Path     string // of the library, as the process sees it
	Function string
	// Debugged says that a debugger is attached to the process. The breakpoint is probably its.
	Debugged bool
	offset   uint64 // of the breakpoint in its file
	mapping  proc.Mapping
}

// breakpoint is what the kernel puts where a probe lies (UPROBE_SWBP_INSN).
var breakpoint = map[string][]byte{"amd64": {0xcc}, "arm64": {0xa0, 0x00, 0x20, 0xd4}}[runtime.GOARCH]

// Leftovers looks for such breakpoints in processes, in CUDA's and PyTorch's libraries.
// accounted is false if the kernel does not say which links there are: then the probes of
// a running tracer are found, too.
func Leftovers(pids []int) (found []Leftover, accounted bool) {
	s := search{known: map[fileAt]*code{}}
	found, err := s.unlinked(pids)
	if len(found) == 0 {
		return nil, true
	}
	// A tracer may be putting them on, or taking them off: for a moment there is no link.
	time.Sleep(unlinkedFor)
	pids = nil
	for _, l := range found {
		pids = append(pids, l.PID)
	}
	again, err2 := s.unlinked(slices.Compact(pids))
	found = slices.DeleteFunc(found, func(l Leftover) bool { return !slices.Contains(again, l) })
	return found, err == nil && err2 == nil
}

// unlinkedFor is longer than the kernel takes to put the probes of a link on.
const unlinkedFor = 300 * time.Millisecond

// unlinked returns the breakpoints that no link accounts for, or all with an error.
func (s *search) unlinked(pids []int) (found []Leftover, err error) {
	for _, pid := range pids {
		found = append(found, s.process(pid)...)
	}
	if len(found) == 0 {
		return nil, nil
	}
	links, err := linkedPlaces()
	return slices.DeleteFunc(found, func(l Leftover) bool {
		return links[place{l.mapping.Path, l.offset}] || links[place{offset: l.offset}]
	}), err
}

// A fileAt is a file under the name by which it was mapped, which says what it is.
type fileAt struct {
	id   proc.FileID
	name string
}

// A code is what a file has where probes would lie.
type code struct {
	functions map[uint64]string
	original  map[uint64][]byte // what is not a breakpoint
}

// A search looks at each file once.
type search struct{ known map[fileAt]*code }

// maxSearched bounds the files that are looked at.
const maxSearched = 1024

func (s *search) process(pid int) (found []Leftover) {
	var memory *os.File
	status, _ := proc.ReadStatus(pid)
	for m, err := range proc.Mappings(pid) {
		if err != nil {
			break
		}
		if !m.HasFile() {
			continue
		}
		c := s.code(pid, &m)
		if c == nil {
			continue
		}
		if memory == nil {
			if memory, err = proc.OpenMemory(pid); err != nil {
				return nil
			}
			defer memory.Close()
		}
		now := make([]byte, len(breakpoint))
		for offset := range c.original {
			if offset < m.Offset || offset-m.Offset >= m.End-m.Start {
				continue
			}
			if _, err := memory.ReadAt(now, int64(m.Start+(offset-m.Offset))); err == nil && bytes.Equal(now, breakpoint) {
				found = append(found, Leftover{pid, m.Name(), c.functions[offset], status.Debugger != 0, offset, m})
			}
		}
	}
	sorting.Stable(found, func(a, b Leftover) int { return int(a.offset) - int(b.offset) })
	return found
}

// code returns what a mapped file has where probes would lie, nil for a file of which no
// place is known.
func (s *search) code(pid int, m *proc.Mapping) *code {
	key := fileAt{m.File, m.Name()}
	if c, ok := s.known[key]; ok {
		return c
	}
	level, ok := libraryLevel(m.Name())
	if !ok || len(s.known) >= maxSearched {
		return nil
	}
	s.known[key] = nil
	f, err := proc.OpenMapped(pid, m)
	if err != nil {
		return nil
	}
	defer f.Close()
	c := &code{functions: libraryPlaces(m.Name(), level, f), original: map[uint64][]byte{}}
	for offset := range c.functions {
		was := make([]byte, len(breakpoint))
		if _, err := f.ReadAt(was, int64(offset)); err == nil && !bytes.Equal(was, breakpoint) {
			c.original[offset] = was
		}
	}
	s.known[key] = c
	return c
}

// libraryPlaces names the functions of a library that have probes, by their offset in the
// file.
func libraryPlaces(name string, level Level, f *proc.File) map[uint64]string {
	out := map[uint64]string{}
	s, err := newLibrary(f, level, name).sites(func(*Row) bool { return true })
	if err != nil {
		return out
	}
	for _, p := range s.points {
		for _, offset := range []uint64{p.offset, p.at, p.back} {
			if offset != 0 {
				out[offset] = Entries[p.entry].Symbol
			}
		}
	}
	return out
}

// A place is a probe's: in the file of this path, or with "" in any file. The kernel tells
// paths of links as it tells those of mappings.
type place struct {
	path   string
	offset uint64
}

// linkedPlaces are the places that BPF links hold, of all processes. One of them may be a link of this
// process. If it is closed while it is looked at, its probes come off only when the look ends.
func linkedPlaces() (out map[place]bool, err error) {
	if ending := removal.Hold("a link that is looked at", func() { out, err = readLinks() }); ending != nil {
		return nil, ending
	}
	return out, err
}

func readLinks() (map[place]bool, error) {
	out := map[place]bool{}
	var it link.Iterator
	defer it.Close()
	for it.Next() {
		if it.Link == nil {
			continue
		}
		info, err := it.Link.Info()
		if err != nil {
			continue // of another kind
		}
		if multi := info.UprobeMulti(); multi != nil {
			offsets, _ := multi.Offsets()
			for _, o := range offsets {
				out[place{multi.File, o.Offset}] = true
			}
		}
		if perf := info.PerfEvent(); perf != nil && perf.Uprobe() != nil {
			at := place{perf.Uprobe().File, uint64(perf.Uprobe().Offset)}
			if proc.IsLink(at.path) { // as it was given: a descriptor of the tracer's
				at.path = ""
			}
			out[at] = true
		}
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("list BPF links: %w", err)
	}
	return out, nil
}

// LeftBehind returns those without the places at which a debugger has a breakpoint: to remove one
// there would remove the debugger's, too.
func LeftBehind(found []Leftover) []Leftover {
	debugged := map[spot]bool{}
	for _, l := range found {
		if l.Debugged {
			debugged[l.spot()] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(found), func(l Leftover) bool { return debugged[l.spot()] })
}

// A spot is a place in a file that processes map.
type spot struct {
	file   fileAt
	offset uint64
}

func (l *Leftover) spot() spot {
	return spot{fileAt{l.mapping.File, l.mapping.Path}, l.offset}
}

// Mend takes breakpoints away that were left behind, and returns how many places were
// mended. When a probe comes off, the kernel writes the original instruction into every
// process that maps the file there and that nobody else probes. So a probe of this
// process's own, which does not run that code, is put there and taken off: nobody meets
// it, and a probe of another tracer stays.
func Mend(found []Leftover) (mended int, err error) {
	seen := map[spot]bool{}
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	slots := make(chan struct{}, sideBySide)
	for _, l := range found {
		s := l.spot()
		if seen[s] {
			continue
		}
		seen[s] = true
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			err := l.mend()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("remove a breakpoint at %s of %s: %w", l.Function, l.Path, err))
				return
			}
			mended++
		})
	}
	all.Wait()
	return mended, errors.Join(errs...)
}

func (l *Leftover) mend() error {
	f, err := proc.OpenMapped(l.PID, &l.mapping)
	if err != nil {
		return err
	}
	defer f.Close()
	kind, err := uprobeType()
	if err != nil {
		return err
	}
	file, err := unix.BytePtrFromString(f.Link())
	if err != nil {
		return err
	}
	attr := unix.PerfEventAttr{
		Type: kind, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Ext1: uint64(uintptr(unsafe.Pointer(file))), Ext2: l.offset, // uprobe_path, probe_offset
	}
	p, err := removal.Put("the probe on "+l.Path, func() (io.Closer, error) {
		fd, err := unix.PerfEventOpen(&attr, os.Getpid(), -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		runtime.KeepAlive(file)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), "uprobe"), nil
	})
	if err != nil {
		return err
	}
	return p.Close()
}

// uprobeType is that of perf events which are uprobes.
func uprobeType() (kind uint32, err error) {
	const file = "/sys/bus/event_source/devices/uprobe/type"
	text, err := os.ReadFile(file)
	if err == nil {
		_, err = fmt.Sscan(string(text), &kind)
	}
	if err != nil {
		return 0, fmt.Errorf("read the type of uprobes: %w", err)
	}
	return kind, nil
}
