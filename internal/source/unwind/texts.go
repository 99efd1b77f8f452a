package unwind

import (
	"encoding/binary"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/internal/heap"
)

// Bytes that the kernel side saves of each object of a code object (UW_TEXT_NAME,
// UW_TEXT_FILE and UW_TEXT_LINES of bpf/unwind_slot.h).
const (
	maxTextName  = 256
	maxTextFile  = 256
	maxTextLines = 1024
)

// A codeText is struct unwind_text of bpf/unwind_slot.h: the names of a code object, which
// the kernel side read while a frame ran it.
type codeText struct {
	_                uint64
	First, Traceable int32
	Name             [maxTextName]byte
	File             [maxTextFile]byte
	Lines            [maxTextLines]byte
}

// A textKey is struct unwind_text_key of bpf/unwind_texts.h.
type textKey struct {
	object     uint64
	pid, check uint32
}

// A textOf returns the saved text of a code object, false if there is none.
type textOf func(codeID) (*codeText, bool)

// textsOf looks up the code objects of a process in the map unwind_texts.
func textsOf(kept *ebpf.Map, pid uint32) textOf {
	return func(id codeID) (*codeText, bool) {
		key := textKey{id.object, pid, id.check}
		var t codeText
		if kept.Lookup(unsafe.Pointer(&key), unsafe.Pointer(&t)) != nil {
			return nil, false
		}
		return &t, true
	}
}

// code returns the code object, false if the name or the file has an unknown form.
func (t *codeText) code(l *codeLayout) (code, bool) {
	name, nameOK := l.beginning(t.Name[:])
	file, fileOK := l.beginning(t.File[:])
	size := binary.NativeEndian.Uint64(t.Lines[objectSize:])
	if !nameOK || !fileOK || name == "" {
		return code{}, false
	}
	lines := t.Lines[bytesHead:]
	cut := size > uint64(len(lines))
	if !cut {
		lines = lines[:size]
	}
	return code{name: name, file: file, lines: heap.LineTable{Bytes: lines, First: int(t.First), Cut: cut}, traceable: int(t.Traceable)}, true
}

// beginning returns the characters of a string object that may be cut.
func (l *codeLayout) beginning(object []byte) (string, bool) {
	t, ok := l.text(object, len(object))
	if !ok {
		return "", false
	}
	if room := (len(object) - t.at) / t.kind; t.length > room {
		t.length, t.cut = room, true
	}
	return t.utf8(object), true
}
