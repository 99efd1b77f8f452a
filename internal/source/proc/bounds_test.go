package proc

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// A hostile file costs at most this much: bytes allocated, and bytes read of it.
const (
	mostBytes = 16 << 20
	mostRead  = 192 << 20
)

// metered counts the bytes that are read.
type metered struct {
	io.ReaderAt
	read int
}

func (m *metered) ReadAt(p []byte, off int64) (int, error) {
	n, err := m.ReaderAt.ReadAt(p, off)
	m.read += n
	return n, err
}

// A shape is an ELF file that is made up as it is read: what is not written
// down is filled in.
type shape struct {
	head     elf.Header64
	segments []elf.Prog64
	sections []elf.Section64
	fill     func(p []byte, off int64) // nil for zeroes, as in a sparse file
	table    []byte
}

const (
	segmentsAt = 0x1000
	sectionsAt = 0x100000
	tera       = 1 << 40
)

// newShape returns a file with one executable segment and these sections.
func newShape(sections ...elf.Section64) *shape {
	s := &shape{
		segments: []elf.Prog64{{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_X), Vaddr: 0x1000, Off: 0x1000, Filesz: tera}},
		sections: append([]elf.Section64{{}}, sections...),
	}
	copy(s.head.Ident[:], "\x7fELF\x02\x01\x01")
	s.head.Type, s.head.Machine, s.head.Version, s.head.Ehsize = uint16(elf.ET_DYN), uint16(elf.EM_X86_64), 1, headerSize
	s.head.Phoff, s.head.Phentsize = segmentsAt, segmentSize
	s.head.Shoff, s.head.Shentsize = sectionsAt, sectionSize
	return s
}

// counted sets the counts of the header.
func (s *shape) counted() *shape {
	s.head.Phnum, s.head.Shnum = uint16(len(s.segments)), uint16(len(s.sections))
	return s
}

func (s *shape) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if s.fill != nil {
		s.fill(p, off)
	}
	if s.table == nil {
		s.table = make([]byte, sectionsAt+len(s.sections)*sectionSize)
		put := func(at int, v any) {
			if _, err := binary.Encode(s.table[at:], binary.LittleEndian, v); err != nil {
				panic(err)
			}
		}
		put(0, s.head)
		put(segmentsAt, s.segments)
		put(sectionsAt, s.sections)
	}
	for _, r := range [][2]int{{0, headerSize}, {segmentsAt, segmentsAt + len(s.segments)*segmentSize}, {sectionsAt, len(s.table)}} {
		if lo, hi := max(int(off), r[0]), min(int(off)+len(p), r[1]); lo < hi {
			copy(p[lo-int(off):], s.table[lo:hi])
		}
	}
	return len(p), nil
}

const (
	tableAt = 1 << 30
	namesAt = 2 << 30
)

// symbols returns a shape with a table of symbols and one of names.
func symbols(kind elf.SectionType, bytes, names uint64, fill func(p []byte, off int64)) *shape {
	s := newShape(
		elf.Section64{Type: uint32(kind), Off: tableAt, Size: bytes, Link: 2, Entsize: elf.Sym64Size},
		elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: namesAt, Size: names},
	)
	s.fill = fill
	return s.counted()
}

// symbol writes the i-th of many symbols, all functions.
func symbol(p []byte, off int64, name func(i uint32) uint32) {
	for at := -(off - tableAt) % elf.Sym64Size; at < int64(len(p)); at += elf.Sym64Size {
		if at < 0 || off+at < tableAt || off+at >= namesAt || at+elf.Sym64Size > int64(len(p)) {
			continue
		}
		i := uint32((off + at - tableAt) / elf.Sym64Size)
		binary.LittleEndian.PutUint32(p[at:], name(i))
		p[at+4] = byte(elf.STT_FUNC)
		binary.LittleEndian.PutUint16(p[at+6:], 1)
		binary.LittleEndian.PutUint64(p[at+8:], 0x2000+uint64(i))
	}
}

// scatter spreads names over the largest table that is read.
func scatter(i uint32) uint32 { return i * 2654435761 % maxSymbolNames }

const (
	relocationsAt = 3 << 30
	stubsAt       = 4 << 30
	slotsAt       = 5 << 30
	shortNamesAt  = 6 << 30

	stubSize = 16
	nameSize = 8
)

// imports returns a shape that calls imported functions: as many symbols, each
// of a name of its own, but the first of none; relocations of one after the
// other, each with a slot of its own; stubs of the slots, all in each of some
// sections.
func imports(symbols, relocations, stubs uint64, sections int) *shape {
	s := newShape(
		elf.Section64{Type: uint32(elf.SHT_DYNSYM), Off: tableAt, Size: symbols * elf.Sym64Size, Link: 2},
		elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: namesAt, Size: symbols * nameSize},
		elf.Section64{Type: uint32(elf.SHT_RELA), Off: relocationsAt, Size: relocations * relocationSize, Link: 1},
		elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: shortNamesAt, Size: nameSize},
	)
	for range sections {
		s.sections = append(s.sections, elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Addr: stubsAt, Off: stubsAt, Size: stubs * stubSize})
	}
	word := binary.LittleEndian
	s.fill = func(p []byte, off int64) {
		repeat(p, off, tableAt, symbols, elf.Sym64Size, func(b []byte, i uint64) { word.PutUint32(b, uint32(i*nameSize)) })
		repeat(p, off, namesAt, symbols, nameSize, func(b []byte, i uint64) { copy(b, fmt.Sprint(i)) })
		repeat(p, off, relocationsAt, relocations, relocationSize, func(b []byte, i uint64) {
			word.PutUint64(b, slotsAt+i*8)
			word.PutUint64(b[8:], elf.R_INFO(uint32(i%symbols), uint32(elf.R_X86_64_JMP_SLOT)))
		})
		repeat(p, off, stubsAt, stubs, stubSize, func(b []byte, i uint64) {
			copy(b, "\xff\x25")
			word.PutUint32(b[2:], uint32(slotsAt+i*8-(stubsAt+i*stubSize+6)))
		})
		repeat(p, off, shortNamesAt, 1, nameSize, func(b []byte, _ uint64) { copy(b, "\x00.plt") })
	}
	s.counted()
	s.head.Shstrndx = 4
	return s
}

// repeat writes what lies at off of n entries that begin at an offset.
func repeat(p []byte, off int64, at, n, size uint64, put func(b []byte, i uint64)) {
	for o := max(uint64(off), at); o < min(uint64(off)+uint64(len(p)), at+n*size); {
		i := (o - at) / size
		b := make([]byte, size)
		put(b, i)
		o += uint64(copy(p[o-uint64(off):], b[o-at-i*size:]))
	}
}

func hostileShapes() map[string]io.ReaderAt {
	const strings = uint64(1 << 30)
	long := func(p []byte, off int64) {
		for i := range p {
			p[i] = 'A'
		}
		symbol(p, off, scatter)
	}
	out := map[string]io.ReaderAt{}
	for _, kind := range []elf.SectionType{elf.SHT_DYNSYM, elf.SHT_SYMTAB} {
		k := kind.String() + ": "
		out[k+"a terabyte of symbols"] = symbols(kind, tera, 16, nil)
		out[k+"a gigabyte of symbols"] = symbols(kind, 1<<30, 16, nil)
		out[k+"a terabyte of names"] = symbols(kind, 240, tera, nil)
		out[k+"the most symbols, all undefined"] = symbols(kind, maxSymbols*elf.Sym64Size, maxSymbolNames, nil)
		out[k+"the most functions, empty names all over"] = symbols(kind, maxSymbols*elf.Sym64Size, maxSymbolNames, func(p []byte, off int64) { symbol(p, off, scatter) })
		out[k+"the most functions, names without end"] = symbols(kind, maxSymbols*elf.Sym64Size, maxSymbolNames, long)
		out[k+"the most functions, one name at the end"] = symbols(kind, maxSymbols*elf.Sym64Size, maxSymbolNames, func(p []byte, off int64) {
			symbol(p, off, func(uint32) uint32 { return maxSymbolNames - 2 })
		})
		compressed := symbols(kind, 1<<20, 1<<20, func(p []byte, off int64) {
			for i := range p {
				p[i] = 1
			}
		})
		compressed.sections[1].Flags = uint64(elf.SHF_COMPRESSED)
		out[k+"compressed"] = compressed
	}

	out["a terabyte of relocations"] = imports(4, tera/relocationSize, 4, 1)
	out["the most relocations, of one import"] = imports(2, maxRelocations, 4, 1)
	out["the most relocations, of the most imports"] = imports(maxSlots, maxRelocations, 4, 1)
	out["the most symbols, all imports"] = imports(maxSymbols, maxRelocations, 4, 1)
	out["a terabyte of stubs"] = imports(4, 4, tera/stubSize, 1)
	out["the most stubs, in all sections"] = imports(maxSlots, maxSlots, maxStubs/stubSize/1000, 1000)
	out["too many stubs, in all sections"] = imports(maxSlots, maxSlots, maxStubs/stubSize, 1000)
	tables := imports(2, maxRelocations, 4, 1)
	for range 1000 {
		tables.sections = append(tables.sections, tables.sections[3])
	}
	out["the most relocations, in all tables"] = tables.counted()

	s := newShape().counted()
	s.head.Phnum, s.head.Phentsize = 0xffff, 0xffff
	out["the most segments of the largest size"] = s
	s = newShape().counted()
	s.head.Phnum, s.head.Phentsize = maxSegments, 0xffff
	out["segments of the largest size"] = s
	s = symbols(elf.SHT_DYNSYM, maxSymbols*elf.Sym64Size, 240, nil)
	for range maxSegments - 1 {
		s.segments = append(s.segments, s.segments[0])
	}
	out["all segments executable"] = s.counted()
	s = newShape()
	for range maxSegments - 1 {
		s.segments = append(s.segments, elf.Prog64{Type: uint32(elf.PT_NOTE), Off: tableAt, Filesz: maxNotes})
	}
	out["all segments notes"] = s.counted()

	s = newShape().counted()
	s.head.Shnum, s.head.Shentsize = maxSections, 0xffff
	out["sections of the largest size"] = s
	s = newShape().counted()
	s.head.Shnum = 0xfeff
	out["the most sections"] = s
	s = newShape(elf.Section64{})
	s.counted()
	s.head.Shnum, s.head.Shstrndx = 0, uint16(elf.SHN_XINDEX)
	s.sections[0].Size, s.sections[0].Link = 1<<31, 1<<30
	out["a count of sections in the first one"] = s
	s = newShape(elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: namesAt, Size: strings})
	s.counted()
	s.head.Shstrndx = 1
	out["a gigabyte of sections' names"] = s
	s = newShape(elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: namesAt, Size: maxStrings})
	s.fill = func(p []byte, off int64) {
		for i := range p {
			if off+int64(i) < namesAt+maxStrings-1 {
				p[i] = 'A'
			}
		}
	}
	for range maxSections - 2 {
		s.sections = append(s.sections, elf.Section64{Type: uint32(elf.SHT_NOTE)})
	}
	s.counted()
	s.head.Shstrndx = 1
	out["all sections with one long name"] = s
	out["headers that change"] = &changing{}
	return out
}

// changing is a file whose owner writes it all the time: good headers at first,
// then others.
type changing struct{ reads int }

func (c *changing) ReadAt(p []byte, off int64) (int, error) {
	s := symbols(elf.SHT_DYNSYM, 240, 16, nil)
	if c.reads++; c.reads > 1 {
		s.head.Phnum, s.head.Phentsize = 0xffff, 0xffff
		s.head.Shnum, s.head.Shentsize = 0xfeff, 0xffff
		s.sections[1].Size = 1 << 40
	}
	return s.ReadAt(p, off)
}

// cost returns what f allocates, in bytes.
func cost(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestHostileShapes(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine has nothing for the race detector")
	}
	for name, r := range hostileShapes() {
		t.Run(name, func(t *testing.T) {
			for what, read := range map[string]func(e *ELF) error{
				"build id": func(e *ELF) error { e.BuildID(); return nil },
				"functions": func(e *ELF) error {
					_, err := e.Functions(func(name []byte) bool { return string(name) == "cuMemAlloc_v2" })
					return err
				},
				"stubs": func(e *ELF) error { _, err := e.Stubs(all); return err },
			} {
				var err error
				m := &metered{ReaderAt: r}
				bytes := cost(func() {
					var e *ELF
					if e, err = ReadELF(m, 1<<41); err == nil {
						err = read(e)
					}
				})
				t.Logf("%s: %d KiB, %d KiB read: %v", what, bytes>>10, m.read>>10, err)
				if bytes > mostBytes || m.read > mostRead {
					t.Errorf("%s took %d MiB, and read %d", what, bytes>>20, m.read>>20)
				}
			}
		})
	}
}

// A sparse file on disk that a process maps.
func TestSparseFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := symbols(elf.SHT_DYNSYM, 512<<20, 512<<20, nil)
	head := make([]byte, sectionsAt+4*sectionSize)
	s.ReadAt(head, 0)
	if _, err := f.Write(head); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(3 << 30); err != nil {
		t.Fatal(err)
	}
	m := mapFile(t, path)
	bytes := cost(func() {
		g, err := OpenMapped(os.Getpid(), m)
		if err != nil {
			t.Error(err)
			return
		}
		defer g.Close()
		e, err := g.ELF()
		if err != nil {
			t.Error(err)
			return
		}
		if offsets, err := e.Functions(all); err == nil {
			t.Errorf("functions %v", offsets)
		}
	})
	if bytes > 1<<20 {
		t.Errorf("took %d MiB", bytes>>20)
	}
}

// Shapes with a valid table give what is in it: the bounds above are not kept
// by reading nothing.
func TestMostFunctions(t *testing.T) {
	s := symbols(elf.SHT_SYMTAB, maxSymbols*elf.Sym64Size, maxSymbolNames, func(p []byte, off int64) {
		symbol(p, off, func(i uint32) uint32 { return (maxSymbols - i) * 100 })
		for at := -(off - namesAt) % 100; at < int64(len(p)); at += 100 {
			if off+at > namesAt && at >= 0 && at+8 <= int64(len(p)) {
				binary.BigEndian.PutUint64(p[at:], 0x6e61_0000_0000_0000|uint64(0x41+(off+at-namesAt)/100%26)<<40)
			}
		}
	})
	e, err := ReadELF(s, 1<<41)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	offsets, err := e.Functions(func(name []byte) bool {
		n++
		return bytes.Equal(name, []byte("naB"))
	})
	if err != nil || len(offsets) != 1 || n < maxSymbols*9/10 {
		t.Errorf("%d names, %v, %v", n, offsets, err)
	}
}

func TestMostStubs(t *testing.T) {
	for _, n := range []uint64{2, 1000, maxSlots} {
		e, err := ReadELF(imports(n, n, n, 1), 1<<41)
		if err != nil {
			t.Fatal(err)
		}
		stubs, err := e.Stubs(all)
		if err != nil || uint64(len(stubs)) != n-1 {
			t.Fatalf("%d stubs of %d imports, %v", len(stubs), n-1, err)
		}
		for name, offset := range stubs {
			if fmt.Sprint((offset-stubsAt)/stubSize) != name {
				t.Fatalf("%s at %#x", name, offset)
			}
		}
	}
}
