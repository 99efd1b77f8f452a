package heap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strconv"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// ErrNoPython is the error of a process in which no CPython was found.
var ErrNoPython = errors.New("no CPython in the process")

// A Runtime is where a process has its CPython.
type Runtime struct {
	Address uint64 // of _PyRuntime
	Minor   int    // of version 3, 0 if only the memory can say it
	// Allocator is the pointer to PyTorch's allocator of GPU memory, 0 if there is none.
	Allocator uint64
	// workspaces finds the functions that return tables of cuBLAS's workspaces, among all of a large library.
	workspaces func() []uint64
}

var pythonFile = regexp.MustCompile(`^(?:lib)?python3?\.?(\d+)?[a-z]*(?:\.so[.0-9]*)?(?:-[\w.-]+)?$`)

// FindRuntime finds the CPython of a process.
func FindRuntime(pid int) (Runtime, error) {
	var seen []proc.FileID
	var last error
	program := true
	for m, err := range proc.Mappings(pid) {
		if err != nil {
			return Runtime{}, err
		}
		if !m.HasFile() {
			continue
		}
		known := false
		for _, id := range seen {
			known = known || id == m.File
		}
		if known {
			continue
		}
		name := pythonFile.FindStringSubmatch(path.Base(m.Name()))
		// The program may be called anything: it is mapped first.
		if name == nil && !program {
			continue
		}
		program = false
		seen = append(seen, m.File)
		r, err := runtimeOf(pid, &m)
		if err != nil {
			last = err
			continue
		}
		if r.Minor == 0 && name != nil {
			r.Minor, _ = strconv.Atoi(name[1])
		}
		return r, nil
	}
	if last != nil && !errors.Is(last, ErrNoPython) {
		return Runtime{}, last
	}
	return Runtime{}, ErrNoPython
}

// runtimeOf finds _PyRuntime in a mapped file.
func runtimeOf(pid int, m *proc.Mapping) (Runtime, error) {
	f, err := proc.OpenMapped(pid, m)
	if err != nil {
		return Runtime{}, err
	}
	defer f.Close()
	e, err := f.ELF()
	if err != nil {
		return Runtime{}, err
	}
	address, ok, err := e.Object("_PyRuntime")
	if err != nil {
		return Runtime{}, err
	}
	if s := e.Section(".PyRuntime"); !ok && s != nil { // from 3.13 on
		address, ok = s.Addr, true
	}
	if !ok {
		return Runtime{}, ErrNoPython
	}
	var r Runtime
	if version, ok, err := e.Object("Py_Version"); ok && err == nil { // from 3.11 on
		if b := e.Data(version, 8); len(b) == 8 && b[3] == 3 {
			r.Minor = int(b[2])
		}
	}
	r.Address, err = loadedAt(e, m, address)
	return r, err
}

// loadedAt returns where a process has an address of a file, one of whose mappings is m.
func loadedAt(e *proc.ELF, m *proc.Mapping, address uint64) (uint64, error) {
	for _, p := range e.Progs {
		if p.Flags&1 != 0 && p.Type == 1 && m.Offset >= p.Off&^(pageSize-1) && m.Offset < p.Off+p.Filesz {
			return m.Start - m.Offset + p.Off - p.Vaddr + address, nil
		}
	}
	return 0, fmt.Errorf("%w: its segments do not fit the mapping", proc.ErrMalformed)
}

// Words of _Py_DebugOffsets, which begins _PyRuntime from 3.13 on.
type debugOffsets struct {
	words, free, interpreters, next, threads, gc, gcSize              int
	nextThread, frame, threadID, previous, executable, instr, localsp int
	owner, fileName, name, lineTable, firstLine, localNames, bytecode int
	objectType                                                        int // then the type's size and where its name is
	generatorFrame, generatorState                                    int
}

var debugTables = map[int]debugOffsets{
	13: {
		words: 73, free: 2, interpreters: 5, next: 8, threads: 9, gc: 10, gcSize: 71,
		nextThread: 21, frame: 23, threadID: 24, previous: 29, executable: 30, instr: 31, localsp: 32, owner: 33,
		fileName: 35, name: 36, lineTable: 38, firstLine: 39, localNames: 41, bytecode: 43,
		objectType: 45,
	},
	14: {
		words: 87, free: 2, interpreters: 5, next: 8, threads: 9, gc: 11, gcSize: 81,
		nextThread: 24, frame: 26, threadID: 27, previous: 32, executable: 33, instr: 34, localsp: 35, owner: 36,
		fileName: 40, name: 41, lineTable: 43, firstLine: 44, localNames: 46, bytecode: 48,
		objectType: 51, generatorFrame: 85, generatorState: 86,
	},
}

// adopt reads the layout of a version that says it itself.
func (l *layout) adopt(c *cache, runtime uint64) error {
	b := bytes.Clone(c.bytes(runtime, 24))
	if b == nil {
		return errors.New("the runtime's memory cannot be read")
	}
	if string(b[:8]) != "xdebugpy" {
		return errors.New("this CPython does not say where its objects are")
	}
	if binary.LittleEndian.Uint64(b[16:]) != 0 {
		return errors.New("it is a free-threaded CPython")
	}
	if minor := int(b[10]); b[11] != 3 || minor != l.minor {
		return fmt.Errorf("CPython %d.%d is not known", b[11], minor)
	}
	table := debugTables[l.minor]
	w := c.words(runtime, table.words)
	if len(w) != table.words {
		return errors.New("the runtime's memory cannot be read")
	}
	if w[table.objectType] != 8 || w[table.objectType+2] != typeName || w[table.objectType+4] != typeFlags {
		return errors.New("the offsets that this CPython says make no sense")
	}
	if table.generatorFrame != 0 {
		l.generatorFrame, l.generatorState = int(min(w[table.generatorFrame], 1<<10)), int(min(w[table.generatorState], 1<<10))
	}
	for _, f := range []struct {
		to   *int
		word int
	}{
		{&l.interpreters, table.interpreters},
		{&l.nextInterpreter, table.next},
		{&l.threads, table.threads},
		{&l.gc, table.gc},
		{&l.nextThread, table.nextThread},
		{&l.frame, table.frame},
		{&l.threadID, table.threadID},
		{&l.previous, table.previous},
		{&l.code, table.executable},
		{&l.instruction, table.instr},
		{&l.locals, table.localsp},
		{&l.frameOwner, table.owner},
		{&l.fileName, table.fileName},
		{&l.name, table.name},
		{&l.lineTable, table.lineTable},
		{&l.firstLine, table.firstLine},
		{&l.localNames, table.localNames},
		{&l.bytecode, table.bytecode},
	} {
		if w[f.word] >= 1<<20 {
			return errors.New("the offsets that this CPython says make no sense")
		}
		*f.to = int(w[f.word])
	}
	l.gcSize = int(min(w[table.gcSize], 1<<12))
	l.collecting = l.gc + int(min(w[table.gcSize+1], 1<<12))
	return nil
}
