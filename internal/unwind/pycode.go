package unwind

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unsafe"

	"go.opentelemetry.io/ebpf-profiler/support"
	"golang.org/x/sys/unix"
)

// CPython's versions whose structures differ.
const (
	python310 = 0x030a
	python311 = 0x030b
	python312 = 0x030c
	python314 = 0x030e
)

const (
	maxCodes     = 4096
	maxLayouts   = 4096
	maxMembers   = 64
	maxCode      = 1 << 10 // bytes of a PyCodeObject up to its instructions
	maxCodeName  = 4096    // characters of a name; longer ones are cut
	maxLineTable = 1 << 20
)

var (
	errCode      = errors.New("no code object")
	errCodeStale = errors.New("another code object lies there by now")
)

// A code is what a PyCodeObject says of itself.
type code struct {
	function, file string
	lines          lineTable
	// traceable is the first of the function's own instructions, from 3.11 on. A
	// frame before it is of a call that has not begun (_PyFrame_IsIncomplete).
	traceable int
}

// line returns the line of the instruction at last, which is -1 where none has run.
func (c *code) line(version uint16, last int) (int, error) {
	switch {
	case last < 0:
		return c.lines.first, nil
	case version < python310:
		return c.lines.line38(last)
	case version < python311:
		return c.lines.line310(last)
	default:
		return c.lines.line311(last)
	}
}

// A codeLayout has offsets in PyCodeObject, as Python itself describes them.
type codeLayout struct {
	typ  uint64 // address of PyCode_Type
	size uint64 // up to the instructions, or all of it

	args, kwargs, flags, first, function, file, lineTable uint64
}

// codeObjects reads the code objects of other processes.
type codeObjects struct {
	layouts map[uint32]codeLayout
	known   map[codeID]knownCode
}

type codeID struct {
	pid    uint32
	object uint64 // address of the PyCodeObject
}

// A knownCode was made of memory that must be the same still: another code object
// can come to lie at the address of one that is gone, and so can its strings.
type knownCode struct {
	code
	check  uint32 // what the unwinder tells code objects apart by
	source []span
}

func newCodeObjects() *codeObjects {
	return &codeObjects{layouts: map[uint32]codeLayout{}, known: map[codeID]knownCode{}}
}

func (c *codeObjects) forget(pid uint32) {
	delete(c.layouts, pid)
	maps.DeleteFunc(c.known, func(id codeID, _ knownCode) bool { return id.pid == pid })
}

// at returns what the code object at an address says. check is the unwinder's hash of
// it at the time of the stack, 0 for one that it could not read.
func (c *codeObjects) at(pid uint32, version uint16, object uint64, check uint32) (*code, error) {
	id := codeID{pid, object}
	k, ok := c.known[id]
	m := memory{pid: pid}
	if !ok || !m.same(k.source) {
		k = m.code(c.layout(&m, object), version, object)
		if !m.same(k.source) { // it was replaced while it was read
			m.fail(errCodeStale)
		}
		if m.err != nil {
			delete(c.layouts, pid)
			delete(c.known, id)
			return nil, m.err
		}
		if len(c.known) >= maxCodes {
			clear(c.known)
		}
		c.known[id] = k
	}
	if check != 0 && check != k.check {
		return nil, errCodeStale
	}
	return &k.code, nil
}

// layout returns that of a process's code objects.
func (c *codeObjects) layout(m *memory, object uint64) codeLayout {
	typ := m.word(object + 8)
	layout := c.layouts[m.pid]
	if layout.typ != typ {
		layout = m.layout(typ)
		if len(c.layouts) >= maxLayouts {
			clear(c.layouts)
		}
		c.layouts[m.pid] = layout
	}
	return layout
}

// layout asks a PyTypeObject's tp_members for the members that are needed.
func (m *memory) layout(typ uint64) codeLayout {
	const tpBasicsize, tpMembers, sizeofMember = 32, 240, 40
	layout := codeLayout{typ: typ, size: m.word(typ + tpBasicsize)}
	members := m.word(typ + tpMembers)
	for i := range uint64(maxMembers) {
		// PyMemberDef: name at 0, offset at 16.
		at, offset := m.word(members+i*sizeofMember), m.word(members+i*sizeofMember+16)
		if at == 0 {
			break
		}
		var name [24]byte
		m.read(at, name[:])
		field := map[string]*uint64{
			"co_argcount": &layout.args, "co_kwonlyargcount": &layout.kwargs, "co_flags": &layout.flags,
			"co_firstlineno": &layout.first, "co_name": &layout.function, "co_qualname": &layout.function,
			"co_filename": &layout.file, "co_lnotab": &layout.lineTable, "co_linetable": &layout.lineTable,
		}[text(name[:])]
		if field == nil || text(name[:]) == "co_name" && layout.function != 0 {
			continue // co_qualname says more
		}
		*field = offset
	}
	for _, offset := range []uint64{layout.args, layout.kwargs, layout.flags, layout.first, layout.function, layout.file, layout.lineTable} {
		if layout.size > maxCode || offset == 0 || offset+8 > layout.size {
			m.fail(errCode)
		}
	}
	return layout
}

// code reads a code object, and what it was made of.
func (m *memory) code(layout codeLayout, version uint16, object uint64) knownCode {
	// Its other fields change as it runs, and so do the heads of strings.
	k := knownCode{check: m.number(object+layout.args)<<25 + m.number(object+layout.kwargs)<<18 + m.number(object+layout.flags)<<10}
	k.lines.first = int(int32(m.number(object + layout.first)))
	k.check += uint32(k.lines.first)
	k.function = m.string(version, m.pointer(object+layout.function))
	k.file = m.string(version, m.pointer(object+layout.file))
	k.lines.table = m.bytes(m.pointer(object + layout.lineTable))
	if version >= python311 {
		k.traceable = int(int32(m.number(object + layout.size - 16))) // _co_firsttraceable, before co_extra
	}
	k.source = m.spans
	return k
}

// bytes returns what a PyBytesObject has: ob_size at 16, the bytes at 32.
func (m *memory) bytes(object uint64) []byte {
	size := m.pointer(object + 16)
	if size > maxLineTable {
		m.fail(errLineTable)
	}
	return m.span(object+32, size)
}

// string returns what a compact PyUnicodeObject has (Include/cpython/unicodeobject.h):
// its length at 16, its state at 32, its characters after a header whose size
// depends on whether they are all ASCII.
func (m *memory) string(version uint16, object uint64) string {
	length, state := m.pointer(object+16), m.number(object+32)
	if version >= python314 {
		state >>= 16 // of how it is interned
	} else {
		state >>= 2
	}
	kind, compact, ascii := uint64(state&7), state>>3&1 != 0, state>>4&1 != 0
	data := object + 56
	switch {
	case !compact || kind != 1 && kind != 2 && kind != 4:
		m.fail(errCode)
	case ascii && version >= python312:
		data = object + 40
	case ascii:
		data = object + 48
	case version < python312:
		data = object + 72
	}
	b := m.span(data, min(length, maxCodeName)*kind)
	if m.err != nil {
		return ""
	}
	runes := make([]rune, uint64(len(b))/kind)
	for i := range runes {
		switch kind {
		case 1:
			runes[i] = rune(b[i])
		case 2:
			runes[i] = rune(binary.NativeEndian.Uint16(b[2*i:]))
		case 4:
			runes[i] = rune(binary.NativeEndian.Uint32(b[4*i:]))
		}
	}
	return shown(runes)
}

// shown puts a mark where a character is that cannot be shown.
func shown(runes []rune) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, string(runes))
}

// text returns a string of C.
func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// A span is a part of a process's memory, as it was read.
type span struct {
	addr uint64
	data []byte
}

// A memory is a process's. After an error it reads nothing more.
type memory struct {
	pid   uint32
	err   error
	spans []span // what was read by span
}

func (m *memory) fail(err error) {
	if m.err == nil {
		m.err = err
	}
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

// span reads a part of the memory, and remembers it.
func (m *memory) span(addr, size uint64) []byte {
	if m.err != nil {
		return nil
	}
	b := make([]byte, size)
	m.read(addr, b)
	m.spans = append(m.spans, span{addr, b})
	return b
}

// number returns the four bytes at an address, and pointer the eight: spans, 0 after
// an error.
func (m *memory) number(addr uint64) uint32 {
	if b := m.span(addr, 4); m.err == nil {
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}

func (m *memory) pointer(addr uint64) uint64 {
	if b := m.span(addr, 8); m.err == nil {
		return binary.NativeEndian.Uint64(b)
	}
	return 0
}

func (m *memory) read(addr uint64, b []byte) {
	if m.err == nil {
		m.err = m.gather([]span{{addr, b}})
	}
}

// same reports whether the memory has in it what it had.
func (m *memory) same(old []span) bool {
	if m.err != nil {
		return false
	}
	again := make([]span, len(old))
	for i, s := range old {
		again[i] = span{s.addr, make([]byte, len(s.data))}
	}
	return m.gather(again) == nil && slices.EqualFunc(old, again, func(a, b span) bool { return bytes.Equal(a.data, b.data) })
}

// gather fills spans in one call.
func (m *memory) gather(spans []span) error {
	var local []unix.Iovec
	var remote []unix.RemoteIovec
	size := 0
	for _, s := range spans {
		if len(s.data) == 0 {
			continue
		}
		local = append(local, unix.Iovec{Base: &s.data[0]})
		local[len(local)-1].SetLen(len(s.data))
		remote = append(remote, unix.RemoteIovec{Base: uintptr(s.addr), Len: len(s.data)})
		size += len(s.data)
	}
	if size == 0 {
		return nil
	}
	n, err := unix.ProcessVMReadv(int(m.pid), local, remote, 0)
	if err == nil && n != size {
		err = errCode
	}
	return err
}

// pythonVersion returns the version of the process's Python, 0 for none.
func (k *kernel) pythonVersion(pid uint32) uint16 {
	var info support.PyProcInfo
	if k.maps["py_procs"].Lookup(pid, unsafe.Pointer(&info)) != nil {
		return 0
	}
	return info.Version
}
