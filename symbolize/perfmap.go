package symbolize

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

const (
	maxPerfMap     = 64 << 20
	maxPerfEntries = 1 << 20
	perfWalk       = 64 // entries looked back over for one that covers an address
)

// A perfMap names what a just-in-time compiler wrote to memory (perf's
// jit-interface.txt). It is read when an address is looked up, and again when
// it has grown.
type perfMap struct {
	file *proc.File

	mu      sync.Mutex
	read    int64 // bytes parsed, up to the end of a line
	entries []perfEntry
}

type perfEntry struct {
	start, size uint64
	name        string
}

// perfMap opens the process's map: /tmp/perf-PID.map in its own file system,
// with the number by which it knows itself. As perf does, it believes only a
// regular file that the process's user or root owns.
func (p *process) perfMap() *perfMap {
	if p.perfTried {
		return p.perf
	}
	p.perfTried = true
	status, err := proc.ReadStatus(int(p.pid))
	if err != nil {
		return nil
	}
	pid := int(p.pid)
	if n := len(status.Numbers); n > 0 {
		pid = status.Numbers[n-1]
	}
	root, err := proc.OpenRoot(int(p.pid))
	if err != nil {
		return nil
	}
	defer root.Close()
	f, err := root.Open(fmt.Sprintf("/tmp/perf-%d.map", pid), unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil
	}
	if f.Owner != 0 && f.Owner != status.User {
		f.Close()
		return nil
	}
	p.perf = &perfMap{file: f}
	fs := p.s.files
	fs.mu.Lock()
	fs.perfMaps.Add(p.perf, struct{}{})
	fs.mu.Unlock()
	return p.perf
}

// lookup returns the name of the code at addr. A nil map has none.
func (m *perfMap) lookup(addr uint64) (string, bool) {
	if m == nil {
		return "", false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.grow()
	i := sort.Search(len(m.entries), func(i int) bool { return m.entries[i].start > addr }) - 1
	for last := i; i >= 0 && i > last-perfWalk; i-- {
		if e := m.entries[i]; addr-e.start < e.size {
			return e.name, true
		}
	}
	return "", false
}

func (m *perfMap) grow() {
	st, err := m.file.Stat()
	if err != nil || st.Size() <= m.read {
		return
	}
	entries, n := parsePerfMap(io.NewSectionReader(m.file, m.read, min(st.Size(), maxPerfMap)-m.read), maxPerfEntries-len(m.entries))
	m.read += n
	if len(entries) == 0 {
		return
	}
	m.entries = append(m.entries, entries...)
	// Stable: of two entries for one address the later one holds.
	sorting.Stable(m.entries, func(a, b perfEntry) int { return cmp.Compare(a.start, b.start) })
}

// parsePerfMap reads whole lines "start size name", both numbers in hex, and
// returns how many bytes they are. Other lines are skipped.
func parsePerfMap(r io.Reader, max int) (entries []perfEntry, read int64) {
	br := bufio.NewReaderSize(r, maxName)
	long := false // inside a line that is too long
	for len(entries) < max {
		line, err := br.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return entries, read
		}
		read += int64(len(line))
		skip := long
		if long = errors.Is(err, bufio.ErrBufferFull); long || skip {
			continue
		}
		if e, ok := parsePerfLine(line); ok {
			entries = append(entries, e)
		}
	}
	return entries, read
}

func parsePerfLine(line []byte) (perfEntry, bool) {
	first, rest, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(" "))
	second, name, ok := bytes.Cut(rest, []byte(" "))
	if !ok || len(name) == 0 {
		return perfEntry{}, false
	}
	hex := func(b []byte) (uint64, bool) {
		n, err := strconv.ParseUint(string(bytes.TrimPrefix(b, []byte("0x"))), 16, 64)
		return n, err == nil
	}
	start, ok1 := hex(first)
	size, ok2 := hex(second)
	if !ok1 || !ok2 || size == 0 || start+size < start {
		return perfEntry{}, false
	}
	return perfEntry{start, size, string(name[:min(len(name), maxShown)])}, true
}
