package unwind

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
	"unsafe"
)

// An arena is memory in which a test lays out what CPython 3.12 would.
type arena struct {
	mem  []byte
	used uint64
}

func newArena() *arena { return &arena{mem: make([]byte, 8<<20)} }

func (a *arena) take(size int) uint64 {
	at := uint64(uintptr(unsafe.Pointer(&a.mem[0]))) + a.used
	a.used += uint64(size+15) &^ 15
	return at
}

func (a *arena) at(addr uint64) []byte {
	return a.mem[addr-uint64(uintptr(unsafe.Pointer(&a.mem[0]))):]
}

func (a *arena) put(addr uint64, words ...uint64) {
	for i, w := range words {
		binary.NativeEndian.PutUint64(a.at(addr)[8*i:], w)
	}
}

func (a *arena) c(s string) uint64 {
	at := a.take(len(s) + 1)
	copy(a.at(at), s)
	return at
}

func (a *arena) bytes(b []byte) uint64 {
	at := a.take(33 + len(b))
	a.put(at+16, uint64(len(b)))
	copy(a.at(at)[32:], b)
	return at
}

// str lays out a string with characters of kind bytes, ASCII for kind 0.
func (a *arena) str(s string, kind int) uint64 {
	runes, head, size, state := []rune(s), uint64(56), kind, uint64(kind)<<2|1<<5
	if kind == 0 {
		head, size, state = 40, 1, 1<<2|1<<5|1<<6
	}
	at := a.take(int(head) + size*len(runes))
	a.put(at+16, uint64(len(runes)))
	a.put(at+32, state)
	data := a.at(at + head)
	for i, r := range runes {
		switch size {
		case 1:
			data[i] = byte(r)
		case 2:
			binary.NativeEndian.PutUint16(data[2*i:], uint16(r))
		default:
			binary.NativeEndian.PutUint32(data[4*i:], uint32(r))
		}
	}
	return at
}

const codeSize = 192 // of a code object up to its instructions

// codeType lays out PyCode_Type.
func (a *arena) codeType() uint64 {
	members := []struct {
		name   string
		offset uint64
	}{{"co_argcount", 52}, {"co_kwonlyargcount", 60}, {"co_flags", 48}, {"co_qualname", 128}, {"co_name", 120},
		{"co_filename", 112}, {"co_firstlineno", 68}, {"co_linetable", 136}}
	table := a.take(40 * (len(members) + 1))
	for i, m := range members {
		a.put(table+uint64(40*i), a.c(m.name), 0, m.offset)
	}
	typ := a.take(400)
	a.put(typ+32, codeSize)
	a.put(typ+240, table)
	return typ
}

func (a *arena) code(typ, name, file, lines uint64) uint64 {
	at := a.take(codeSize)
	a.put(at+8, typ)
	a.put(at+112, file, file, name, lines)
	return at
}

// Names with characters of every width.
func TestCodeNames(t *testing.T) {
	a, codes := newArena(), newCodeObjects()
	typ, lines := a.codeType(), a.bytes([]byte{0x80 | 13<<3, 0})
	for kind, name := range map[int]string{0: "plain", 1: "ümlaut", 2: "中文", 4: "𠀀"} {
		object := a.code(typ, a.str(name, kind), a.str("/"+name+".py", kind), lines)
		c, err := codes.at(uint32(os.Getpid()), python312, object, 0)
		if err != nil || c.function != name || c.file != "/"+name+".py" {
			t.Errorf("%q: %+v, %v", name, c, err)
		}
	}
}

// What lies at the address of a code object by now is what is read, and what is not
// the code object of the stack is not.
func TestCodeIsReadAgain(t *testing.T) {
	a, codes := newArena(), newCodeObjects()
	typ, lines := a.codeType(), a.bytes(make([]byte, 40))
	name, file := a.str("first", 0), a.str("/first.py", 0)
	object := a.code(typ, name, file, lines)
	a.put(object+68, 7) // co_firstlineno
	want := func(function, path string, check uint32) {
		t.Helper()
		c, err := codes.at(uint32(os.Getpid()), python312, object, check)
		if err != nil || c.function != function || c.file != path {
			t.Errorf("%+v, %v, want %s of %s", c, err, function, path)
		}
	}
	want("first", "/first.py", 7)
	copy(a.at(name)[40:], "other") // in the same place
	want("other", "/first.py", 7)
	a.put(object+112, a.str("/second.py", 0))
	want("other", "/second.py", 7)
	if _, err := codes.at(uint32(os.Getpid()), python312, object, 8); !errors.Is(err, errCodeStale) {
		t.Errorf("%v for another code object", err)
	}
	want("other", "/second.py", 0) // one that the kernel side could not read
	codes.forget(uint32(os.Getpid()))
	if len(codes.known)+len(codes.layouts) != 0 {
		t.Error("it is known still")
	}
}

// What a process says of its code objects costs no more than a bound, and no fault.
func TestCodeOfAHostileProcess(t *testing.T) {
	a := newArena()
	typ, lines := a.codeType(), a.bytes(nil)
	name := a.str("name", 0)
	long := a.str(strings.Repeat("n", 1<<20), 0)
	endless, legacy, unprintable := a.str("x", 0), a.str("x", 0), a.str("a\nb\x00", 0)
	a.put(endless+16, 1<<63)
	a.put(legacy+32, 1<<2)
	huge := a.bytes(make([]byte, maxLineTable+1))
	noSize, noMembers, outside := a.codeType(), a.codeType(), a.codeType()
	a.put(noSize+32, 1<<40)
	a.put(noMembers+240, a.take(40))
	a.put(outside+32, 64)
	for _, tt := range []struct {
		name             string
		object           uint64
		function, failed string
	}{
		{"a name without end", a.code(typ, long, name, lines), strings.Repeat("n", maxCodeName), ""},
		{"a name of more than there is", a.code(typ, endless, name, lines), "bounded", ""},
		{"no compact name", a.code(typ, legacy, name, lines), "", errCode.Error()},
		{"a name that cannot be shown", a.code(typ, unprintable, name, lines), "a\uFFFDb\uFFFD", ""},
		{"a huge line table", a.code(typ, name, name, huge), "", errLineTable.Error()},
		{"a huge code object", a.code(noSize, name, name, lines), "", errCode.Error()},
		{"no members", a.code(noMembers, name, name, lines), "", errCode.Error()},
		{"members outside", a.code(outside, name, name, lines), "", errCode.Error()},
		{"no type", a.code(8, name, name, lines), "", "bad address"},
		{"no name", a.code(typ, 8, name, lines), "", "bad address"},
		{"no code object", 8, "", "bad address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := newCodeObjects().at(uint32(os.Getpid()), python312, tt.object, 0)
			if got := errText(err); got != tt.failed {
				t.Fatalf("error %q, want %q", got, tt.failed)
			}
			switch {
			case err != nil:
			case tt.function == "bounded":
				if n := utf8.RuneCountInString(c.function); n != maxCodeName {
					t.Errorf("%d characters", n)
				}
			case c.function != tt.function:
				t.Errorf("function %.40q of %d, want %.40q of %d", c.function, len(c.function), tt.function, len(tt.function))
			}
		})
	}
}
