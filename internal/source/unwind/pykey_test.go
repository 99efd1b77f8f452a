package unwind

import (
	"encoding/binary"
	"runtime"
	"strings"
	"testing"
)

// The code of PyGILState_GetThisThreadState, as Debian's Pythons for arm64 have it, and
// where its key is.
func TestKeyARM(t *testing.T) {
	for _, c := range []struct {
		name string
		at   uint64
		code []uint32
		key  uint64 // 0: not known
	}{
		{"3.9: adrp, add, add, ldr, cbz, ldr, b", 0x473880, []uint32{0xb0002520, 0x91220002, 0x91004043, 0xf9413041, 0xb4000061, 0xb9425c60, 0x17feb1c2}, 0x918aec},
		{"3.11: adrp, add, ldr, cbz, ldr, b", 0x471314, []uint32{0xb0002e20, 0x91002000, 0xf9412c01, 0xb4000061, 0xb9426400, 0x17feba0e}, 0xa3626c},
		{"3.13: bti, adrp, add, ldr, cbz, ldr, b", 0x495640, []uint32{0xd503245f, 0xd0003100, 0x9122a000, 0xb9487001, 0x34000061, 0xb9487400, 0x17fe2d9e}, 0xab811c},
		{"3.14: bti, adrp, ldr, cbz, adrp, add, b", 0x425658, []uint32{0xd503245f, 0xf0003920, 0xb946a000, 0x34000080, 0xf0003920, 0x911a8000, 0x14023e06}, 0xb4c6a4},
		{"adrp and add to another register, bl", 0x400000, []uint32{0xa9be7bfd, 0x910003fd, 0xf9000bf3, 0xb0000013, 0x911a6273, 0x9121c260, 0x94003d5f}, 0x401f0c},
		{"before the code", 0x400000, []uint32{0xf0ffffe0, 0x91002000, 0x14000000}, 0x3ff00c},
		{"a library's, by a table: paciasp, stp, mov, str, adrp, ldr, add, bl", 0x2f7068, []uint32{0xd503233f, 0xa9be7bfd, 0x910003fd, 0xf9000bf3, 0x90001f53, 0xf9464273, 0x9121c260, 0x94003d5f}, 0},
		{"an address that other code has changed", 0x400000, []uint32{0xb0000000, 0x91002000, 0xaa0103e0, 0x14000000}, 0},
		{"no call", 0x400000, []uint32{0xb0000000, 0x91002000}, 0},
	} {
		var code []byte
		for _, word := range c.code {
			code = binary.LittleEndian.AppendUint32(code, word)
		}
		key, ok := keyARM(code, c.at)
		if ok != (c.key != 0) || ok && key != c.key {
			t.Errorf("%s: %#x, %v; want %#x", c.name, key, ok, c.key)
		}
	}
}

// The counter of code objects of CPython 3.12 and 3.13 is found, and no code object has a greater
// number.
func TestCodeCounter(t *testing.T) {
	library := buildLibrary(t)
	for _, python := range pythonsToCompare(t) {
		searched := strings.HasSuffix(python.name, "3.12") && runtime.GOARCH == "amd64"
		if !searched && !strings.HasSuffix(python.name, "3.13") {
			continue
		}
		t.Run(python.name, func(t *testing.T) {
			p := startTarget(t, python.path, "testdata/deep.py", "100", "13")
			c := newCapture(t, Options{}, p.pid)
			c.attach(library, symbol, 1)
			p.run()
			c.detach(100)
			var known knownProcess
			if err := c.u.known.kernel.Lookup(uint32(p.pid), &known); err != nil {
				t.Fatal(err)
			}
			if known.Uncounted != 0 || searched != (known.Counter != 0) {
				t.Errorf("%+v", known)
			}
		})
	}
}
