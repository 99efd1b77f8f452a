package proc

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// checkObjects reads the objects of a file that may hold anything: it comes to no more
// than was asked for, of what is in the file.
func checkObjects(t *testing.T, e *ELF, b []byte) {
	t.Helper()
	address, ok, err := e.Object("pointers")
	if !ok && address != 0 && err == nil {
		t.Errorf("no object, at %#x", address)
	}
	for _, p := range []uint64{address, 0, ^uint64(0)} {
		if data := e.Data(p, 5); len(data) > 5 || len(data) > 0 && !bytes.Contains(b, data) {
			t.Errorf("%d bytes at %#x", len(data), p)
		}
	}
}

// Whatever a process names libpython, on both machines.
func FuzzObjects(f *testing.F) {
	seeds := [][]byte{small(f, "objects-amd64.so"), small(f, "objects-arm64.so")}
	for machine, seed := range seeds {
		whole := uint32(len(seed))
		f.Add(uint8(machine), uint32(0), binary.LittleEndian.Uint64(seed), whole)
		// The segments, the sections, and the relocations, word by word.
		for at := uint32(headerSize); at < whole; at += 8 {
			f.Add(uint8(machine), at, uint64(1<<64-1), whole)
		}
	}
	f.Fuzz(func(t *testing.T, machine uint8, at uint32, word uint64, size uint32) {
		seed := seeds[int(machine)%len(seeds)]
		b := bytes.Clone(seed[:min(int(size), len(seed))])
		if len(b) >= 8 {
			binary.LittleEndian.PutUint64(b[int(at)%(len(b)-7):], word)
		}
		if e, err := ReadELF(bytes.NewReader(b), int64(len(b))); err == nil {
			checkObjects(t, e, b)
		}
	})
}

// wantObjects fails unless a file has the objects of testdata/objects.c.
func wantObjects(t *testing.T, b []byte) {
	t.Helper()
	e, err := ReadELF(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	address, ok, err := e.Object("pointers")
	if err != nil || !ok {
		t.Fatalf("object: %v, %v", ok, err)
	}
	if data := e.Data(address, 32); len(data) != 32 || !bytes.Contains(b, data) {
		t.Errorf("%d bytes of four pointers", len(data))
	}
	empty, ok, err := e.Object("empty")
	if err != nil || !ok || len(e.Data(empty, 8)) != 0 {
		t.Errorf("%v, %v, %d bytes of an array without any", ok, err, len(e.Data(empty, 8)))
	}
	for _, name := range []string{"", "none", "elsewhere", "here"} {
		if address, ok, err := e.Object(name); ok || err != nil {
			t.Errorf("%q at %#x, %v", name, address, err)
		}
	}
}

// Files linked in each way that this machine's linkers have.
func TestObjects(t *testing.T) {
	for _, name := range []string{"objects-amd64.so", "objects-arm64.so"} {
		t.Run(name, func(t *testing.T) { wantObjects(t, small(t, name)) })
	}
	other := filepath.Join(t.TempDir(), "libelsewhere.so")
	source := filepath.Join(t.TempDir(), "elsewhere.c")
	if err := os.WriteFile(source, []byte("void elsewhere(void) {}\nvoid _start(void) {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "gcc", "-shared", "-nostdlib", "-fPIC", "-o", other, source)
	for name, flags := range map[string]string{
		"library":     "-shared -fPIC",
		"address":     "-shared -fPIC -Wl,-Ttext-segment=0x10000000",
		"program":     "-no-pie -fno-pic -Wl,--export-dynamic",
		"any address": "-pie -fPIE -Wl,--export-dynamic",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "objects")
			command(t, "gcc", append(strings.Fields(flags), "-nostdlib", "-Os", "-o", path, "testdata/objects.c", other)...)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			wantObjects(t, b)
		})
	}
}
