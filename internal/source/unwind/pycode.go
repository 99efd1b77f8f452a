package unwind

import (
	"encoding/binary"
	"errors"
	"math"
	"unicode/utf8"

	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/gpumemtrace/gpumemtrace/internal/heap"
)

// Code objects of CPython are read from a process that may change or free them at any
// time, and that may be hostile: each pointer, length and character can be anything. A name
// is used only if the object was alive and the same before and after the read. A live
// object holds references to its name, file and line table, and these never change. If the
// object is gone, the names that the kernel side saved are used (texts.go).
//
// Nothing is remembered from one stack to the next, because new code objects come to lie at
// the addresses of freed ones, together with their names and line tables.

// A codeLayout is where a PyCodeObject has its fields, as offsets in bytes.
type codeLayout struct {
	flags, argcount, kwonly, first uint16
	version                        uint16 // co_version, 0 for none
	file, name, table              uint16
	traceable                      uint16 // _co_firsttraceable, 0 for none
	code                           uint16 // the instructions, 0 where they lie elsewhere
	ascii                          uint16 // size of PyASCIIObject
	compact                        uint16 // size of PyCompactUnicodeObject
	line                           func(t *heap.LineTable, i int) (int, error)
}

// codeLayouts are those of 64-bit builds, by version as in 0x030c. The name is
// co_qualname where there is one. Sources: struct PyCodeObject in Include/code.h
// (3.6 to 3.8), Include/cpython/code.h (3.9 and later); Include/cpython/unicodeobject.h.
var codeLayouts = map[uint16]codeLayout{
	0x0306: {flags: 32, argcount: 16, kwonly: 20, first: 36, file: 96, name: 104, table: 112, ascii: 48, compact: 72, line: (*heap.LineTable).Line36},
	0x0307: {flags: 32, argcount: 16, kwonly: 20, first: 36, file: 96, name: 104, table: 112, ascii: 48, compact: 72, line: (*heap.LineTable).Line36},
	0x0308: {flags: 36, argcount: 16, kwonly: 24, first: 40, file: 104, name: 112, table: 120, ascii: 48, compact: 72, line: (*heap.LineTable).Line36},
	0x0309: {flags: 36, argcount: 16, kwonly: 24, first: 40, file: 104, name: 112, table: 120, ascii: 48, compact: 72, line: (*heap.LineTable).Line36},
	0x030a: {flags: 36, argcount: 16, kwonly: 24, first: 40, file: 104, name: 112, table: 120, ascii: 48, compact: 72, line: (*heap.LineTable).Line310},
	0x030b: {flags: 48, argcount: 56, kwonly: 64, first: 72, file: 112, name: 128, table: 136, traceable: 168, code: 184, ascii: 48, compact: 72, line: (*heap.LineTable).Line311},
	0x030c: {flags: 48, argcount: 52, kwonly: 60, first: 68, version: 92, file: 112, name: 128, table: 136, traceable: 176, code: 192, ascii: 40, compact: 56, line: (*heap.LineTable).Line311},
	0x030d: {flags: 48, argcount: 52, kwonly: 60, first: 68, version: 92, file: 112, name: 128, table: 136, traceable: 184, code: 200, ascii: 40, compact: 56, line: (*heap.LineTable).Line311},
	0x030e: {flags: 48, argcount: 52, kwonly: 60, first: 68, version: 92, file: 112, name: 128, table: 136, traceable: 192, code: 208, ascii: 40, compact: 56, line: (*heap.LineTable).Line311},
}

// layoutOf returns the layout of a process's code objects. The offsets that the interpreter
// itself reports must agree, because debug builds have other layouts.
func layoutOf(info *support.PyProcInfo) (*codeLayout, bool) {
	l, ok := codeLayouts[info.Version]
	return &l, ok &&
		l.flags == uint16(info.PyCodeObject_co_flags) &&
		l.argcount == uint16(info.PyCodeObject_co_argcount) &&
		l.kwonly == uint16(info.PyCodeObject_co_kwonlyargcount) &&
		l.first == uint16(info.PyCodeObject_co_firstlineno) &&
		(l.code == 0 || l.code == uint16(info.PyCodeObject_sizeof))
}

// Why a Python frame has no name.
var (
	errCodeUnknown  = errors.New("its version of Python is not known")
	errCodeUnread   = errors.New("its code object could not be read")
	errCodeReplaced = errors.New("its code object was gone before it could be read")
	errCodeStrange  = errors.New("its code object has names or lines of an unknown form")
)

// Limits: on names and paths in characters, which are cut beyond that; on line tables in
// bytes, for one and for all of a stack.
const (
	maxCodeName   = 1 << 10
	maxCodeFile   = 4 << 10
	maxLineTable  = 1 << 20
	maxLineTables = 16 << 20
)

// A codeID is what the kernel side reports of a code object: its address, and uw_code of
// the object that was there when the stack was captured (bpf/unwind_python.h).
type codeID struct {
	object uint64
	check  uint32
}

// A code is the content of a code object. err says why there is none.
type code struct {
	err       error
	name      string
	file      string
	lines     heap.LineTable
	traceable int // the first instruction of the function proper
}

// codeHead has the fields of a code object.
type codeHead struct {
	typ, name, file, table uint64
	counts, version        uint32
	first, traceable       uint32
}

// Offsets that all versions share, in bytes: ob_type and ob_size of an object, the
// bytes of a PyBytesObject, state of a PyASCIIObject and its end, tp_name of a
// PyTypeObject (Include/object.h and Include/cpython/{object,bytesobject,
// unicodeobject}.h).
const (
	objectType = 8
	objectSize = 16
	bytesHead  = 32
	textState  = 32
	textHead   = textState + 4
	typeName   = 24
)

// codeType is tp_name of PyCode_Type.
const codeType = "code\x00"

// head reads the fields from an object. It fails unless the object is alive.
func (l *codeLayout) head(b []byte) (codeHead, error) {
	u32 := func(at uint16) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	u64 := func(at uint16) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	// The count of references has 32 bits, and from 3.14 on flags above bit 48. It is
	// 0 when an object is freed; then the allocator links free memory there.
	if uint32(u64(0)) == 0 || u64(0)>>32&0xffff != 0 {
		return codeHead{}, errCodeReplaced
	}
	h := codeHead{
		typ: u64(objectType), name: u64(l.name), file: u64(l.file), table: u64(l.table), first: u32(l.first),
	}
	h.counts = u32(l.argcount)<<25 + u32(l.kwonly)<<18 + u32(l.flags)<<10 + h.first
	if l.version != 0 {
		h.version = u32(l.version)
	}
	if l.traceable != 0 {
		h.traceable = u32(l.traceable)
	}
	return h, nil
}

// size returns how many bytes of an object head needs.
func (l *codeLayout) size() int { return int(max(l.table+8, l.traceable+4)) }

// A codeReader reads one code object, in four steps: its head, the beginning of the objects
// that it refers to, the rest of these, and its head again. All code objects of a stack do
// each step together.
type codeReader struct {
	code
	codeHead
	id                    codeID
	object, typ, typeName *span
	name, file, table     *span // the objects
	nameForm, fileForm    text
	tableSize             int
}

// readCodes reads the code objects of a stack.
func readCodes(m memory, l *codeLayout, ids []codeID) []code {
	var p pieces
	readers := make([]codeReader, len(ids))
	step := func(next func(*codeReader) error) {
		for i := range readers {
			if r := &readers[i]; r.err == nil {
				r.err = next(r)
			}
		}
		p.read(m)
	}
	for i := range readers {
		readers[i].id = ids[i]
	}
	step(func(r *codeReader) error {
		r.object = p.want(r.id.object, l.size())
		return nil
	})
	step(func(r *codeReader) (err error) {
		if !r.object.ok {
			return errCodeUnread
		}
		if r.codeHead, err = l.head(r.object.to); err != nil {
			return err
		}
		r.typ = p.want(r.codeHead.typ+typeName, 8)
		r.name = p.begin(r.codeHead.name, textHead)
		r.file = p.begin(r.codeHead.file, textHead)
		r.table = p.begin(r.codeHead.table, bytesHead)
		return nil
	})
	tables := maxLineTables
	step(func(r *codeReader) error {
		if !r.typ.ok || !r.name.ok || !r.file.ok || !r.table.ok {
			return errCodeUnread
		}
		var nameOK, fileOK bool
		r.nameForm, nameOK = l.text(r.name.to, maxCodeName)
		r.fileForm, fileOK = l.text(r.file.to, maxCodeFile)
		size := binary.NativeEndian.Uint64(r.table.to[objectSize:])
		if !nameOK || !fileOK || r.nameForm.length == 0 || size > uint64(min(maxLineTable, tables)) {
			return errCodeStrange
		}
		tables -= int(size)
		r.tableSize = int(size)
		r.typeName = p.want(binary.NativeEndian.Uint64(r.typ.to), len(codeType))
		r.name = p.complete(r.name, r.nameForm.end())
		r.file = p.complete(r.file, r.fileForm.end())
		r.table = p.complete(r.table, bytesHead+r.tableSize)
		return nil
	})
	step(func(r *codeReader) error {
		if !r.typeName.ok || !r.name.ok || !r.file.ok || !r.table.ok {
			return errCodeUnread
		}
		if string(r.typeName.to) != codeType {
			return errCodeReplaced
		}
		r.object = p.want(r.id.object, l.size())
		return nil
	})
	codes := make([]code, len(ids))
	for i := range readers {
		codes[i] = readers[i].finish(l)
	}
	return codes
}

// finish returns what was read, if the object is what it was before.
func (r *codeReader) finish(l *codeLayout) code {
	if r.err == nil && !r.object.ok {
		r.err = errCodeUnread
	}
	if r.err != nil {
		return code{err: r.err}
	}
	if h, err := l.head(r.object.to); err != nil || h != r.codeHead || r.check() != r.id.check {
		return code{err: errCodeReplaced}
	}
	return code{
		name:      r.nameForm.utf8(r.name.to),
		file:      r.fileForm.utf8(r.file.to),
		lines:     heap.LineTable{Bytes: r.table.to[bytesHead:][:r.tableSize], First: int(int32(r.codeHead.first))},
		traceable: int(int32(r.codeHead.traceable)),
	}
}

// check is uw_code of what was read (bpf/unwind_python.h).
func (r *codeReader) check() uint32 {
	if r.version != 0 {
		return r.version
	}
	h := content(0, r.file.to[r.fileForm.at:r.fileForm.end()])
	h = content(h, r.name.to[r.nameForm.at:r.nameForm.end()])
	h = content(h, r.table.to[bytesHead:][:r.tableSize])
	return r.counts ^ uint32(h^h>>32)
}

// content is uw_content (bpf/unwind_python.h) of an object's bytes.
func content(h uint64, b []byte) uint64 {
	var end [256]byte // UW_CONTENT
	n := copy(end[:], b[max(0, len(b)-len(end)):])
	for i := 0; i < n; i += 8 {
		h = mix(h, binary.NativeEndian.Uint64(end[i:]))
	}
	return max(mix(h, uint64(len(b))), 1)
}

// mix is gm_mix (bpf/stacks.h).
func mix(h, w uint64) uint64 {
	h = (h ^ w) * 0xff51afd7ed558ccd
	return h ^ h>>32
}

// A text is the form of a compact string: PyASCIIObject or PyCompactUnicodeObject,
// with the characters behind it.
type text struct {
	at     int  // of the characters, bytes from the object
	kind   int  // bytes of a character: 1, 2 or 4
	length int  // characters that are read
	cut    bool // there are more
}

// end is how many bytes of the object they need.
func (t text) end() int { return t.at + t.kind*t.length }

// text reads the form of a string, of which at most `most` characters are read.
func (l *codeLayout) text(head []byte, most int) (text, bool) {
	const compact, ascii = 1 << 5, 1 << 6
	length := binary.NativeEndian.Uint64(head[objectSize:])
	state := binary.NativeEndian.Uint32(head[textState:])
	t := text{at: int(l.compact), kind: int(state >> 2 & 7), length: int(min(length, uint64(most))), cut: length > uint64(most)}
	if state&ascii != 0 {
		t.at = int(l.ascii)
	}
	ok := state&compact != 0 && (t.kind == 1 || state&ascii == 0 && (t.kind == 2 || t.kind == 4))
	return t, ok
}

// utf8 returns the characters of an object as UTF-8. Bytes of a path that are not UTF-8
// are lone surrogates in Python (PEP 383): they come back as they were.
func (t text) utf8(object []byte) string {
	b := object[t.at:t.end()]
	out := make([]byte, 0, len(b))
	for ; len(b) > 0; b = b[t.kind:] {
		var c uint32
		switch t.kind {
		case 1:
			c = uint32(b[0])
		case 2:
			c = uint32(binary.NativeEndian.Uint16(b))
		default:
			c = binary.NativeEndian.Uint32(b)
		}
		switch {
		case c >= 0xdc80 && c <= 0xdcff:
			out = append(out, byte(c))
		case c > utf8.MaxRune:
			out = utf8.AppendRune(out, utf8.RuneError)
		default:
			out = utf8.AppendRune(out, rune(c))
		}
	}
	if t.cut {
		out = append(out, "..."...)
	}
	return string(out)
}

// A pythonFrame is a Python frame as the kernel side reports it.
type pythonFrame struct {
	codeID
	at int32 // the instruction, as this Python counts them; negative: none yet
	// module is the first variable of a frame that was taken for a call of a module of
	// PyTorch, 0 for none.
	module uint64
}

// A namedFrame is a pythonFrame with its name. Python itself does not show a hidden one.
type namedFrame struct {
	Frame
	hidden bool
}

// nameFrames names the frames of a stack.
func nameFrames(m memory, l *codeLayout, kept textOf, frames []pythonFrame) []namedFrame {
	var ids []codeID
	seen := make(map[codeID]int) // where in ids
	for _, f := range frames {
		if _, ok := seen[f.codeID]; !ok {
			seen[f.codeID] = len(ids)
			ids = append(ids, f.codeID)
		}
	}
	codes := readCodes(m, l, ids)
	for i := range codes {
		if codes[i].err == nil {
			continue
		}
		if t, ok := kept(ids[i]); ok {
			if c, ok := t.code(l); ok {
				codes[i] = c
			}
		}
	}
	named := make([]namedFrame, len(frames))
	for i, f := range frames {
		named[i] = codes[seen[f.codeID]].frame(l, int(f.at))
	}
	return named
}

// unnamed returns a frame that cannot be named.
func unnamed(why error) Frame { return Frame{Kind: Python, Reason: why.Error()} }

// frame returns the frame at an instruction.
func (c *code) frame(l *codeLayout, at int) namedFrame {
	switch {
	case c.err != nil:
		return namedFrame{Frame: unnamed(c.err)}
	case l.traceable != 0 && at < c.traceable:
		// Shims for runs of the interpreter (3.12) and for calls of classes (3.13),
		// and functions whose cells or generator are being made
		// (_PyFrame_IsIncomplete, Include/internal/pycore_frame.h).
		return namedFrame{hidden: true}
	}
	line, err := c.lines.First, error(nil)
	if at >= 0 {
		if line, err = l.line(&c.lines, at); err != nil {
			err = errCodeReplaced
		}
	}
	if err == nil && (line < 0 || line > math.MaxInt32) {
		err = errCodeStrange
	}
	if err != nil {
		return namedFrame{Frame: unnamed(err)}
	}
	return namedFrame{Frame: Frame{Kind: Python, Function: c.name, File: c.file, Line: line}}
}
