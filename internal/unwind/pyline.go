package unwind

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"unsafe"

	"go.opentelemetry.io/ebpf-profiler/support"
	"golang.org/x/sys/unix"
)

// Line numbers of CPython 3.10 and later. The unwinder's own are wrong there:
// for 3.10 it takes instructions for bytes, and from 3.11 on every line after
// an instruction without one is too low by its distance to the function.

const (
	python310 = 0x030a
	python311 = 0x030b

	maxLineTable  = 1 << 20
	maxLineTables = 4096
	maxMembers    = 64
)

var errLineTable = errors.New("no line table")

// A lineTable is the part of a PyCodeObject that says which line an
// instruction belongs to.
type lineTable struct {
	first int
	table []byte
}

type codeID struct {
	pid    uint32
	object uint64 // address of the PyCodeObject
	check  uint32 // what the unwinder knows it by
}

// codeLayout has offsets in PyCodeObject, as Python itself describes them.
type codeLayout struct {
	typ              uint64 // address of PyCode_Type
	first, lineTable uint64
}

// lineTables finds the lines of code objects in other processes.
type lineTables struct {
	layouts map[uint32]codeLayout
	tables  map[codeID]lineTable
}

func (l *lineTables) forget(pid uint32) {
	delete(l.layouts, pid)
	maps.DeleteFunc(l.tables, func(id codeID, _ lineTable) bool { return id.pid == pid })
}

// line returns the line of a Python frame, given its two words. version is the
// process's Python, as in 0x030c.
func (l *lineTables) line(pid uint32, version uint16, object, position uint64) (int, error) {
	id := codeID{pid, object, uint32(position)}
	t, ok := l.tables[id]
	if !ok || id.check == 0 {
		var err error
		if t, err = l.read(pid, object); err != nil {
			return 0, err
		}
		if len(l.tables) >= maxLineTables {
			clear(l.tables)
		}
		l.tables[id] = t
	}
	unit := int(position>>32) & 0x0fffffff
	if version < python311 {
		return t.line310(unit)
	}
	return t.line311(unit)
}

// line311 returns the line of the code unit at i (Objects/locations.md, 3.11).
func (t lineTable) line311(i int) (int, error) {
	line, end := t.first, 0
	for b := t.table; len(b) > 0; {
		head := b[0]
		if head&0x80 == 0 {
			return 0, errLineTable
		}
		b = b[1:]
		end += int(head&7) + 1
		kind := head >> 3 & 15
		switch {
		case kind == 13, kind == 14: // no columns; long
			delta, n := signedVarint(b)
			if n == 0 {
				return 0, errLineTable
			}
			line += delta
		case kind >= 10 && kind <= 12: // this line or one of the next two
			line += int(kind) - 10
		}
		for len(b) > 0 && b[0]&0x80 == 0 { // the rest of the entry
			b = b[1:]
		}
		if i < end {
			if kind == 15 { // none
				return 0, errLineTable
			}
			return line, nil
		}
	}
	return 0, errLineTable
}

// signedVarint returns a number in six-bit groups, lowest first, its sign in
// the lowest bit, and how many bytes it takes; 0 when it is not whole.
func signedVarint(b []byte) (int, int) {
	var v uint32
	for i, shift := 0, 0; i < len(b) && shift < 32; i, shift = i+1, shift+6 {
		v |= uint32(b[i]&0x3f) << shift
		if b[i]&0x40 == 0 {
			if v&1 != 0 {
				return -int(v >> 1), i + 1
			}
			return int(v >> 1), i + 1
		}
	}
	return 0, 0
}

// line310 returns the line of the instruction at i (Objects/lnotab_notes.txt,
// 3.10): pairs of the bytes covered and the signed step to their line.
func (t lineTable) line310(i int) (int, error) {
	line, end := t.first, 0
	for b := t.table; len(b) >= 2; b = b[2:] {
		end += int(b[0])
		step := int(int8(b[1]))
		none := step == -128
		if !none {
			line += step
		}
		if 2*i < end {
			if none {
				return 0, errLineTable
			}
			return line, nil
		}
	}
	return 0, errLineTable
}

func (l *lineTables) read(pid uint32, object uint64) (lineTable, error) {
	m := memory{pid: pid}
	typ := m.word(object + 8)
	layout := l.layouts[pid]
	if layout.typ != typ {
		layout = m.layout(typ)
		if len(l.layouts) >= maxLineTables {
			clear(l.layouts)
		}
		l.layouts[pid] = layout
	}
	first := m.word(object + layout.first)
	// PyBytesObject: ob_size at 16, the bytes at 32.
	bytesAt := m.word(object + layout.lineTable)
	size := m.word(bytesAt + 16)
	if m.err == nil && size > maxLineTable {
		m.err = errLineTable
	}
	if m.err != nil {
		delete(l.layouts, pid)
		return lineTable{}, m.err
	}
	t := lineTable{first: int(int32(first)), table: make([]byte, size)}
	m.read(bytesAt+32, t.table)
	return t, m.err
}

// layout asks a PyTypeObject's tp_members for the members that are needed.
func (m *memory) layout(typ uint64) codeLayout {
	const tpMembers, sizeofMember = 240, 40
	layout := codeLayout{typ: typ}
	members := m.word(typ + tpMembers)
	for i := range uint64(maxMembers) {
		// PyMemberDef: name at 0, offset at 16.
		at, offset := m.word(members+i*sizeofMember), m.word(members+i*sizeofMember+16)
		if at == 0 {
			break
		}
		var name [16]byte
		m.read(at, name[:])
		switch s, _, _ := bytes.Cut(name[:], []byte{0}); string(s) {
		case "co_firstlineno":
			layout.first = offset
		case "co_linetable":
			layout.lineTable = offset
		}
	}
	if m.err == nil && (layout.first == 0 || layout.lineTable == 0) {
		m.err = errLineTable
	}
	return layout
}

type memory struct {
	pid uint32
	err error
}

// word returns the eight bytes at an address, 0 after an error.
func (m *memory) word(addr uint64) uint64 {
	var b [8]byte
	m.read(addr, b[:])
	if m.err != nil {
		return 0
	}
	return binary.NativeEndian.Uint64(b[:])
}

func (m *memory) read(addr uint64, b []byte) {
	if m.err != nil || len(b) == 0 {
		return
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMReadv(int(m.pid), local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err == nil && n != len(b) {
		err = errLineTable
	}
	m.err = err
}

// pythonVersion returns the version of the process's Python, 0 for none.
func (k *kernel) pythonVersion(pid uint32) uint16 {
	var info support.PyProcInfo
	if k.maps["py_procs"].Lookup(pid, unsafe.Pointer(&info)) != nil {
		return 0
	}
	return info.Version
}
