package unwind

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/source/filememo"
)

// A file in parts has the table that it has as a whole. A file of Go is one part.
func TestPartsOfTable(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	for _, path := range largeLibraries(t) {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := readTable(f)
		if err != nil {
			t.Logf("%s: %v", path, err)
			f.Close()
			continue
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		parts := 0
		memo := filememo.InMemory(tableKind, memoryLimit)
		got, _, err := memo.Derive(filememo.File{ReaderAt: f, Size: info.Size()}, func(r io.ReaderAt) ([]byte, error) {
			p := split(r, 7)
			parts = len(p)
			parts, err := readParts(p...)
			if err != nil {
				return nil, err
			}
			return encodeTable(parts...)
		})
		if err != nil || !bytes.Equal(got, whole) {
			t.Errorf("%s in %d parts: %d bytes of table, %v; as a whole %d", path, parts, len(got), err, len(whole))
		}
		memo.Close()
		most = max(most, parts)
		if path == self && parts != 1 {
			t.Errorf("this program, which is of Go, in %d parts", parts)
		}
		t.Logf("%s: %d parts", filepath.Base(path), parts)
		f.Close()
	}
	if most < 2 {
		t.Error("no file in parts")
	}
}

// A damaged file in parts neither ends the program nor goes on for ever.
func FuzzParts(f *testing.F) {
	self, err := os.ReadFile("/bin/true")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(0), []byte{})
	f.Add(uint32(0x28), []byte{1, 2, 3})
	for _, field := range []int{8, 24, 32} { // flags, offset and size of .eh_frame
		for _, value := range []uint64{compressed | 2, ^uint64(9), ^uint64(0), ^uint64(15), 1 << 62} {
			f.Add(headerOf(f, self, ".eh_frame")+uint32(field), binary.LittleEndian.AppendUint64(nil, value))
		}
	}
	f.Fuzz(func(t *testing.T, at uint32, damage []byte) {
		b := bytes.Clone(self)
		copy(b[int(at)%len(b):], damage)
		parts := split(bytes.NewReader(b), 5)
		if len(parts) > 5 {
			t.Errorf("%d parts", len(parts))
		}
		if parts, err := readParts(parts...); err == nil {
			_, _ = encodeTable(parts...)
		}
	})
}

// headerOf returns where the header of a section is.
func headerOf(t testing.TB, file []byte, section string) uint32 {
	e, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	table := binary.LittleEndian.Uint64(file[0x28:])
	return uint32(table) + 64*uint32(slices.IndexFunc(e.Sections, func(s *elf.Section) bool { return s.Name == section }))
}
