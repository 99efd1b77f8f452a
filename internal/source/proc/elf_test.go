package proc

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// note returns one ELF note, padded to align.
func note(align int, kind uint32, name string, desc []byte) []byte {
	pad := func(b []byte) []byte {
		for len(b)%align != 0 {
			b = append(b, 0)
		}
		return b
	}
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(name)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(desc)))
	b = binary.LittleEndian.AppendUint32(b, kind)
	return pad(append(pad(append(b, name...)), desc...))
}

func TestNoteBuildID(t *testing.T) {
	id := note(4, 3, "GNU\x00", []byte{0xab, 0xcd, 0x01})
	for name, c := range map[string]struct {
		notes []byte
		align uint64
		want  string
	}{
		"alone":           {id, 4, "abcd01"},
		"after others":    {slices.Concat(note(4, 1, "GNU\x00", make([]byte, 16)), note(4, 3, "Go\x00", []byte{9}), id), 4, "abcd01"},
		"aligned to 8":    {slices.Concat(note(8, 5, "GNU\x00", make([]byte, 20)), note(8, 3, "GNU\x00", []byte{7})), 8, "07"},
		"none":            {note(4, 1, "GNU\x00", make([]byte, 16)), 4, ""},
		"cut off":         {id[:len(id)-4], 4, ""},
		"too long":        {note(4, 3, "GNU\x00", make([]byte, 65)), 4, ""},
		"lengths too big": {[]byte("\xff\xff\xff\xff\xff\xff\xff\xff\x03\x00\x00\x00GNU\x00"), 4, ""},
		"empty":           {nil, 4, ""},
	} {
		if got := noteBuildID(c.notes, c.align); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func FuzzNoteBuildID(f *testing.F) {
	f.Add(note(4, 3, "GNU\x00", []byte{1, 2, 3, 4}), false)
	f.Add(note(8, 3, "GNU\x00", []byte{1, 2, 3, 4}), true)
	f.Fuzz(func(t *testing.T, notes []byte, wide bool) {
		align := uint64(4)
		if wide {
			align = 8
		}
		if id := noteBuildID(notes, align); len(id) > 128 {
			t.Errorf("a build id of %d digits", len(id))
		}
	})
}

// small returns a small library of testdata: the fuzzer's mutations of a large
// one would seldom hit its headers.
func small(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func all([]byte) bool { return true }

// Whatever a process names libcuda.so.1: no panic, and only offsets within the
// executable part of the file.
func FuzzFunctions(f *testing.F) {
	seed := small(f, "small.so")
	f.Add(uint32(0), uint64(0), uint32(len(seed)))
	// The header's tables and counts, one after the other.
	for _, at := range []uint32{4, 5, 16, 18, 24, 32, 40, 52, 54, 56, 58, 60, 62} {
		f.Add(at, uint64(1<<64-1), uint32(len(seed)))
		f.Add(at, uint64(0), uint32(len(seed)))
	}
	f.Add(uint32(0), binary.LittleEndian.Uint64(seed), uint32(64))
	f.Fuzz(func(t *testing.T, at uint32, word uint64, size uint32) {
		b := bytes.Clone(seed[:min(int(size), len(seed))])
		if len(b) >= 8 {
			binary.LittleEndian.PutUint64(b[int(at)%(len(b)-7):], word)
		}
		checkFile(t, b)
	})
}

// checkFile reads an ELF file that may hold anything.
func checkFile(t *testing.T, b []byte) {
	t.Helper()
	e, err := ReadELF(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		if !errors.Is(err, ErrNotELF) && !errors.Is(err, ErrMalformed) {
			t.Errorf("%v", err)
		}
		return
	}
	e.BuildID()
	e.ShadowStack()
	if name := e.SONAME(); len(name) > maxSymbolName {
		t.Errorf("a name of %d bytes", len(name))
	}
	functions, err := e.Functions(all)
	if err != nil && len(functions) != 0 {
		t.Errorf("%v, and %d functions", err, len(functions))
	}
	stubs, err := e.Stubs(all)
	if err != nil && len(stubs) != 0 {
		t.Errorf("%v, and %d stubs", err, len(stubs))
	}
	calls := map[string]uint64{}
	for name, stub := range stubs {
		for i, c := range e.Calls(stub) {
			calls[fmt.Sprintf("call %d of %q", i, name)] = c.Offset
			calls[fmt.Sprintf("return of call %d of %q", i, name)] = c.Return
		}
	}
	for _, offsets := range []map[string]uint64{functions, stubs, calls} {
		for name, offset := range offsets {
			within := slices.ContainsFunc(e.Progs, func(p *elf.Prog) bool {
				return p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && offset >= p.Off && offset-p.Off < p.Filesz
			})
			if !within || offset < headerSize || offset >= uint64(len(b)) {
				t.Errorf("%q at %#x, outside of the file's code", name, offset)
			}
			const reach = 100
			if code, start := e.CodeAround(offset, reach); len(code) > 2*reach || start > reach || start >= len(code) || code[start] != b[offset] {
				t.Errorf("%q at %#x: %d bytes around, at %d of them", name, offset, len(code), start)
			}
		}
	}
}

func TestFunctionsOfSmall(t *testing.T) {
	f, err := Open(filepath.Join("testdata", "small.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, err := f.ELF()
	if err != nil {
		t.Fatal(err)
	}
	offsets, err := e.Functions(all)
	if err != nil || len(offsets) != 2 || offsets["cuMemAlloc_v2"] == 0 || offsets["cuMemFree_v2"] <= offsets["cuMemAlloc_v2"] {
		t.Errorf("%v, %v", offsets, err)
	}
}

// otherHeader is a file whose header says, from the second reading on, that section 0 has the number of sections.
type otherHeader struct{ readings, bytes int }

func (f *otherHeader) ReadAt(b []byte, off int64) (int, error) {
	head := elf.Header64{Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Shoff: 4096, Ehsize: headerSize,
		Phentsize: segmentSize, Phnum: 2, Shentsize: 64, Shnum: 1} // the segments begin where the file does
	if f.readings > 0 {
		head.Shnum = 0
	}
	whole := make([]byte, 4096+64)
	_, _ = binary.Encode(whole, binary.LittleEndian, head)
	_, _ = binary.Encode(whole[4096:], binary.LittleEndian, elf.Section64{Size: 1 << 20})
	clear(b)
	if off < int64(len(whole)) {
		copy(b, whole[off:])
	}
	f.readings, f.bytes = f.readings+1, f.bytes+len(b)
	return len(b), nil
}

// ReadELF uses the header that it checked, even if the file has another one by then.
func TestHeadersStay(t *testing.T) {
	f := &otherHeader{}
	_, err := ReadELF(f, 1<<40)
	if f.bytes > 1<<20 {
		t.Errorf("read %d bytes (%v)", f.bytes, err)
	}
}
