package unwind

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/nativeunwind"
	sdtypes "go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"
	"go.opentelemetry.io/ebpf-profiler/process"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
	"github.com/gpumemtrace/gpumemtrace/internal/source/filememo"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// An analysis reads one process: its files, as the unwinder's Go side sees them, and their
// tables. Files are opened by internal/source/proc and never mapped: reading a mapped file
// that its owner truncates ends in a SIGBUS.
type analysis struct {
	process.Process
	tables *tables
	memo   *filememo.Memo

	// The process's mappings in order of address, and why they are not complete.
	mappings []proc.Mapping
	err      error

	opened map[mappingKey]*executable

	making sync.WaitGroup      // of tables that prepare makes
	room   *semaphore.Weighted // maxAtOnce bytes

	mu    sync.Mutex
	found map[proc.FileID]*found
}

// maxAtOnce bounds the unwind information that is read at a time, in bytes. Reading needs about nine
// times the memory. A file that has more is read alone.
const maxAtOnce = 12 << 20

// roomOf returns how much of maxAtOnce a file takes. A file that is not read alone leaves at least a
// quarter. Otherwise processors would be idle: while one of them encodes the table of a large file,
// the next large file could not be read.
func roomOf(size int64) int64 {
	if size > maxAtOnce {
		return maxAtOnce
	}
	return min(size, maxAtOnce/4*3)
}

// found is what a file's analysis gave. It is valid once made is done.
type found struct {
	made    sync.Once
	content filememo.Sum
	table   *loadable // nil if it is loaded already, or was handed over
	err     error
}

func (u *Unwinder) newAnalysis(pid int) *analysis {
	return &analysis{Process: process.New(libpf.PID(pid), libpf.PID(pid)), tables: u.tables, memo: u.memo, opened: make(map[mappingKey]*executable), room: semaphore.NewWeighted(maxAtOnce), found: make(map[proc.FileID]*found)}
}

// An executable is a file that a process maps. A kept one stays open until the end of its
// analysis.
type executable struct {
	*proc.File
	analysis *analysis
	kept     bool
}

// Close closes the file unless it is kept.
func (e *executable) Close() error {
	if e.kept {
		return nil
	}
	return e.File.Close()
}

// prepare starts to make the tables of the process's files, several at a time. The
// unwinder's Go side goes through the mappings one by one, and waits for the table of each.
// Known mappings are left out.
func (a *analysis) prepare(known []proc.Mapping) {
	before := make(map[mappingKey]bool, len(known))
	for _, m := range known {
		before[mappingKey{m.Start, m.File}] = true
	}
	files := make(map[proc.FileID]*executable)
	for i := range a.mappings {
		m := &a.mappings[i]
		if before[mappingKey{m.Start, m.File}] || !m.HasFile() || len(a.opened) >= maxOpen {
			continue
		}
		if f, err := a.open(m); err == nil {
			files[f.ID] = f
		}
	}
	// The largest first, so that no worker begins a large file when the others are done.
	order := slices.SortedFunc(maps.Values(files), func(a, b *executable) int { return cmp.Compare(b.Size, a.Size) })
	next := make(chan *executable, len(order))
	for _, f := range order {
		next <- f
	}
	close(next)
	for range min(maxAnalyzed, runtime.GOMAXPROCS(0), len(order)) {
		a.making.Go(func() {
			for f := range next {
				f.find()
			}
		})
	}
}

// maxKept bounds the mappings of a process that are remembered between analyses.
const maxKept = 8192

// readMappings returns the mappings of a process that the unwinder uses: those of files
// and of the vdso.
func readMappings(pid int) (out []proc.Mapping, err error) {
	for m, err := range proc.Mappings(pid) {
		if err != nil {
			return out, err
		}
		if m.HasFile() || m.Path == "[vdso]" {
			out = append(out, m)
		}
	}
	return out, nil
}

// merge returns the known mappings and the fresh ones, which replace those that they
// overlap.
func merge(known, fresh []proc.Mapping) []proc.Mapping {
	out := slices.Clone(known)
	for _, m := range fresh {
		if !m.HasFile() {
			continue
		}
		out = slices.DeleteFunc(out, func(o proc.Mapping) bool { return o.Start < m.End && m.Start < o.End })
		out = append(out, m)
	}
	sorting.Stable(out, func(a, b proc.Mapping) int { return cmp.Compare(a.Start, b.Start) })
	return out
}

// IterateMappings implements process.Process.
func (a *analysis) IterateMappings(f func(process.RawMapping) bool) (parseErrors uint32, err error) {
	for _, m := range a.mappings {
		raw := process.RawMapping{
			Vaddr: m.Start, Length: m.End - m.Start, Flags: readable | executableFlag,
			FileOffset: m.Offset, Device: m.File.Dev, Inode: m.File.Ino, Path: m.Name(),
		}
		if m.Path == "[vdso]" {
			raw.Device, raw.Inode, raw.Path = 0, vdsoInode, process.VdsoPathName
		}
		if !f(raw) {
			return 0, process.ErrCallbackStopped
		}
	}
	if a.err == nil && len(a.mappings) == 0 {
		return 0, process.ErrNoMappings
	}
	return 0, a.err
}

const (
	// Flags as of an ELF file's segment, PF_R and PF_X.
	readable, executableFlag = 4, 1
	// vdsoInode is the inode by which the unwinder knows the vdso.
	vdsoInode = 50
)

// maxOpen bounds the files that are open at a time.
const maxOpen = 512

// A mappingKey identifies a mapping of a process.
type mappingKey struct {
	start uint64
	file  proc.FileID
}

// close closes the files and drops the tables that were not used.
func (a *analysis) close() {
	a.making.Wait()
	for _, f := range a.opened {
		f.File.Close()
	}
	for _, f := range a.found {
		if f.table != nil {
			a.tables.drop(f.table)
		}
	}
}

// open opens a mapped file, or returns one that is open. It is for one goroutine at a time.
func (a *analysis) open(m *proc.Mapping) (*executable, error) {
	if f := a.opened[mappingKey{m.Start, m.File}]; f != nil {
		return f, nil
	}
	f, err := proc.OpenMapped(int(a.PID()), m)
	if err != nil {
		return nil, a.explain(err)
	}
	e := &executable{File: f, analysis: a, kept: len(a.opened) < maxOpen}
	if e.kept {
		a.opened[mappingKey{m.Start, m.File}] = e
	}
	return e, nil
}

// explain turns an error of a file into os.ErrNotExist if the process has ended. The
// unwinder remembers any other error of a file for hours, for every process that maps it,
// and a process may end while its files are read.
func (a *analysis) explain(err error) error {
	if err != nil && !errors.Is(err, os.ErrNotExist) && gone(int(a.PID())) {
		return fmt.Errorf("%w: %w", err, os.ErrNotExist)
	}
	return err
}

func (a *analysis) openRaw(m *process.RawMapping) (*executable, error) {
	i, ok := slices.BinarySearchFunc(a.mappings, m.Vaddr, func(m proc.Mapping, start uint64) int { return cmp.Compare(m.Start, start) })
	if ok {
		return a.open(&a.mappings[i])
	}
	return a.open(&proc.Mapping{
		Start: m.Vaddr, End: m.Vaddr + m.Length, Offset: m.FileOffset,
		File: proc.FileID{Dev: m.Device, Ino: m.Inode}, Path: m.Path,
	})
}

// OpenMappingFile implements process.Process.
func (a *analysis) OpenMappingFile(m *process.RawMapping) (process.ReadAtCloser, error) {
	f, err := a.openRaw(m)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// OpenELF implements pfelf.ELFOpener: it opens no file that a mapped one names.
func (a *analysis) OpenELF(path string) (*pfelf.File, error) { return linkless{}.OpenELF(path) }

// GetMappingFileLastModified implements process.Process: the unwinder's knowledge of a
// file is valid until this time changes. It is the inode's change time, because a program
// can set the modification time.
func (a *analysis) GetMappingFileLastModified(m *process.RawMapping) int64 {
	f, err := a.openRaw(m)
	if err != nil {
		return 0
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return 0
	}
	return st.Ctim.Nano()
}

// CalculateMappingFileID implements process.Process. Files with one id share a table and
// the knowledge of an interpreter. They have the same owner, and the same bytes wherever
// the table was read from.
func (a *analysis) CalculateMappingFileID(m *process.RawMapping) (libpf.FileID, error) {
	if m.IsVDSO() {
		id, err := a.Process.CalculateMappingFileID(m)
		return id, a.explain(err)
	}
	f, err := a.openRaw(m)
	if err != nil {
		return libpf.FileID{}, err
	}
	defer f.Close()
	found := f.find()
	if found.err == nil {
		return libpf.FileIDFromBytes(found.content[:16])
	}
	// A file whose table cannot be shared has an id of its own.
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return libpf.FileID{}, a.explain(err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %d %d %d", st.Dev, st.Ino, st.Uid, st.Size, st.Ctim.Nano()))
	return libpf.FileIDFromBytes(sum[:16])
}

// find returns the file's table, and makes it at the first call.
func (e *executable) find() *found {
	e.analysis.mu.Lock()
	f := e.analysis.found[e.ID]
	if f == nil {
		f = new(found)
		e.analysis.found[e.ID] = f
	}
	e.analysis.mu.Unlock()
	f.made.Do(func() { e.make(f, false) })
	return f
}

// maxAnalyzed bounds the files that are analysed at a time. A large one takes several
// processors.
const maxAnalyzed = 8

// minPart is the unwind information that is worth a goroutine, in bytes. It takes about 30
// ms.
const minPart = 1 << 20

// readTable waits for room, and reads the table. Most of the room is free again before the table is
// encoded, because the parts take less memory than what they were read from.
func (e *executable) readTable(r io.ReaderAt) ([]byte, error) {
	size := e.unwindInformation(r)
	room := roomOf(size)
	if err := e.analysis.room.Acquire(context.Background(), room); err != nil {
		return nil, err // impossible
	}
	parts, err := readParts(split(r, min(int64(runtime.GOMAXPROCS(0)), size/minPart))...)
	e.analysis.room.Release(room - room/4)
	defer e.analysis.room.Release(room / 4)
	if err != nil {
		return nil, err
	}
	return encodeTable(parts...)
}

// unwindInformation returns how many bytes of it the file r has at most.
func (e *executable) unwindInformation(r io.ReaderAt) int64 {
	elf, err := proc.ReadELF(r, e.Size)
	if err != nil {
		return 0
	}
	if section := elf.Section(".eh_frame"); section != nil {
		return int64(min(section.FileSize, uint64(e.Size)))
	}
	return e.Size
}

// make makes the file's table. If the table is loaded already, it does so only if again is
// set.
func (e *executable) make(f *found, again bool) {
	encoded, content, err := e.analysis.memo.Derive(filememo.File{ReaderAt: e.File, Size: e.Size, Owner: e.Owner}, e.readTable)
	if err != nil {
		f.err = e.analysis.explain(err)
		return
	}
	f.content = content
	if again || !e.analysis.tables.has(content) {
		f.table, f.err = e.analysis.tables.prepare(content, encoded)
	}
}

// table returns the file's table, for the caller to load.
func (e *executable) table() (*loadable, error) {
	f := e.find()
	if f.err == nil && f.table == nil { // it was unloaded in between
		e.make(f, true)
	}
	l := f.table
	f.table = nil
	return l, f.err
}

// provider passes the tables to the unwinder's Go side.
type provider struct{ tables *tables }

// GetIntervalDataForFile implements nativeunwind.StackDeltaProvider.
func (p provider) GetIntervalDataForFile(ref *pfelf.Reference) (*sdtypes.IntervalData, error) {
	p.tables.offered = nil
	elf, err := ref.GetELF()
	if err != nil {
		return nil, err
	}
	var l *loadable
	if e, ok := elf.Underlying().(*executable); ok {
		l, err = e.table()
	} else { // the vdso
		l, err = p.tables.fromReference(ref)
	}
	if err != nil {
		return nil, fmt.Errorf("read the unwind table of %s: %w", ref.FileName(), err)
	}
	p.tables.offered = l
	return l.intervals(), nil
}

// fromReference makes a table of a file that is not remembered.
func (t *tables) fromReference(ref *pfelf.Reference) (*loadable, error) {
	whole, err := extract(ref)
	if err != nil {
		return nil, err
	}
	encoded, err := encodeTable(whole)
	if err != nil {
		return nil, err
	}
	return t.prepare(filememo.Sum{}, encoded)
}

// GetAndResetStatistics implements nativeunwind.StackDeltaProvider.
func (provider) GetAndResetStatistics() nativeunwind.Statistics { return nativeunwind.Statistics{} }
