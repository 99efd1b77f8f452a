package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A Mapping is one executable mapping of a process, as a line of
// /proc/PID/maps shows it (proc_pid_maps(5)).
type Mapping struct {
	Start, End uint64 // addresses
	Offset     uint64 // of Start in the file
	// File is zero for anonymous memory. Overlay and btrfs show another device
	// here than stat(2) does.
	File FileID
	// Path is as the process sees it, with the kernel's " (deleted)" if the
	// file was unlinked. The process chose it, and what lies there by now.
	Path string
}

// Holds reports whether the address lies in the mapping.
func (m *Mapping) Holds(address uint64) bool { return m.Start <= address && address < m.End }

// HasFile reports whether a file is mapped, not anonymous memory or the vdso.
func (m *Mapping) HasFile() bool { return m.File.Ino != 0 && strings.HasPrefix(m.Path, "/") }

// Name returns the path without what the kernel appends to that of an unlinked
// file. A file may really have such a name: only its id is certain.
func (m *Mapping) Name() string { return linked(m.Path) }

// linked returns a path without the kernel's mark of an unlinked file.
func linked(path string) string { return strings.TrimSuffix(path, " (deleted)") }

// A process chooses how many mappings it has, and their paths.
const (
	maxMaps = 32 << 20 // bytes of one /proc/PID/maps
	// maxLine is longer than any line that the kernel writes: a path is at
	// most a page, of which each newline becomes four bytes.
	maxLine = 32 << 10
)

// Mappings yields the executable mappings of a process in order of address. An
// error is the last that it yields: os.ErrNotExist for a process that is gone,
// os.ErrPermission for one that may not be looked at, ErrTooLarge.
func Mappings(pid int) iter.Seq2[Mapping, error] {
	return func(yield func(Mapping, error) bool) {
		// /proc/PID/maps is empty once the first thread has ended.
		if !mappings(pid, yield) {
			mappings(living(pid), yield)
		}
	}
}

// mappings yields those that /proc/PID/maps shows, and reports whether it yielded
// anything.
func mappings(pid int, yield func(Mapping, error) bool) (any bool) {
	f, err := os.Open(dirOf(pid) + "/maps")
	if errors.Is(err, unix.ESRCH) {
		return false // a thread without memory
	}
	if err != nil {
		yield(Mapping{}, fmt.Errorf("read mappings: %w", err))
		return true
	}
	defer f.Close()
	for m, err := range parseMaps(f) {
		any = true
		if errors.Is(err, unix.ESRCH) {
			err = fmt.Errorf("read mappings: %w", os.ErrNotExist) // it ended in between
		}
		if !yield(m, err) {
			break
		}
	}
	return any
}

// lineReaders has buffers of maxLine: an agent reads the mappings of each process that starts.
var lineReaders = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, maxLine) }}

// parseMaps yields the executable entries, in order. What the kernel would not
// write is an error.
func parseMaps(r io.Reader) iter.Seq2[Mapping, error] {
	return func(yield func(Mapping, error) bool) {
		limited := &io.LimitedReader{R: r, N: maxMaps}
		br := lineReaders.Get().(*bufio.Reader)
		br.Reset(limited)
		defer func() {
			br.Reset(nil)
			lineReaders.Put(br)
		}()
		var last Mapping
		for {
			line, err := br.ReadSlice('\n')
			if err != nil && err != io.EOF {
				yield(Mapping{}, fmt.Errorf("read mappings: %w", err))
				return
			}
			if limited.N == 0 {
				yield(Mapping{}, fmt.Errorf("read mappings: %w", ErrTooLarge))
				return
			}
			if len(line) > 0 {
				m, executable, perr := parseMapping(bytes.TrimSuffix(line, []byte("\n")), last.Path)
				if executable && perr == nil && m.Start < last.End {
					perr = errors.New("parse mappings: out of order")
				}
				if perr != nil {
					yield(Mapping{}, perr)
					return
				}
				if executable {
					if !yield(m, nil) {
						return
					}
					last = m
				}
			}
			if err == io.EOF {
				return
			}
		}
	}
}

// parseMapping parses "start-end perms offset major:minor inode   path". Where
// path is last, it shares last's memory.
func parseMapping(line []byte, last string) (m Mapping, executable bool, err error) {
	var field [5][]byte
	rest := line
	for i := range field {
		var ok bool
		field[i], rest, ok = bytes.Cut(rest, []byte(" "))
		if !ok && i < 4 {
			return m, false, errors.New("parse mappings: line too short")
		}
	}
	perms := field[1]
	if len(perms) != 4 {
		return m, false, errors.New("parse mappings: bad permissions")
	}
	start, end, ok1 := bytes.Cut(field[0], []byte("-"))
	major, minor, ok2 := bytes.Cut(field[3], []byte(":"))
	if !ok1 || !ok2 {
		return m, false, errors.New("parse mappings: bad range or device")
	}
	if perms[2] != 'x' {
		return m, false, nil
	}
	number := func(b []byte, base, bits int) uint64 {
		n, perr := strconv.ParseUint(string(b), base, bits)
		if perr != nil && err == nil {
			err = fmt.Errorf("parse mappings: %w", perr)
		}
		return n
	}
	m = Mapping{
		Start:  number(start, 16, 64),
		End:    number(end, 16, 64),
		Offset: number(field[2], 16, 64),
		File: FileID{
			Dev: unix.Mkdev(uint32(number(major, 16, 32)), uint32(number(minor, 16, 32))),
			Ino: number(field[4], 10, 64),
		},
		Path: last,
	}
	if path := bytes.TrimLeft(rest, " "); string(path) != last {
		m.Path = strings.ReplaceAll(string(path), `\012`, "\n")
	}
	if err == nil && m.End <= m.Start {
		err = errors.New("parse mappings: empty range")
	}
	return m, true, err
}
