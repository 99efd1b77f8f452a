package proc

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// Limits on a table of symbols. The worst file costs 8 MiB
// of memory and some tens of milliseconds. A libcuda has 682 symbols; a large
// static program has a few hundred thousand, with 50 MiB of names.
const (
	maxSymbols     = 1 << 20
	maxSymbolNames = 128 << 20 // bytes
	maxSymbolName  = 256       // bytes; longer ones are not looked at
	maxCode        = 16        // executable segments; linkers make one
	maxDynamic     = 1 << 16   // bytes of the dynamic section; a libcuda has 496
)

// Functions returns the offsets in the file of the functions that it defines
// and whose names match, by name: those that it exports or, if none of these
// match, those of its .symtab. Each offset lies in the file, behind its header,
// in a segment that is loaded executably. name is valid during the call alone.
// The error is, or wraps, ErrTooLarge or ErrMalformed.
func (e *ELF) Functions(match func(name []byte) bool) (map[string]uint64, error) {
	for _, kind := range []elf.SectionType{elf.SHT_DYNSYM, elf.SHT_SYMTAB} {
		offsets, err := e.functions(e.SectionByType(kind), match)
		if err != nil || len(offsets) > 0 {
			return offsets, err
		}
	}
	return nil, nil
}

func (e *ELF) functions(table *elf.Section, match func([]byte) bool) (map[string]uint64, error) {
	code, offsets := e.code(), map[string]uint64{}
	err := e.values(table, definedFunction, match, func(name []byte, address uint64) {
		if offset, ok := e.offset(code, address); ok {
			offsets[string(name)] = offset
		}
	})
	if err != nil {
		return nil, err
	}
	return offsets, nil
}

// values calls visit with the name and the value of each symbol of a table that is of a
// kind and whose name matches.
func (e *ELF) values(table *elf.Section, kind, match func([]byte) bool, visit func(name []byte, value uint64)) error {
	symbol := make([]byte, elf.Sym64Size)
	return e.symbols(table, kind, func(i uint32, name []byte) error {
		if !match(name) {
			return nil
		}
		if _, err := table.ReadAt(symbol, int64(i)*elf.Sym64Size); err != nil {
			return fmt.Errorf("%w: read symbols: %w", ErrMalformed, err)
		}
		visit(name, binary.LittleEndian.Uint64(symbol[8:]))
		return nil
	})
}

// definedFunction reports whether a symbol is a function of this file.
func definedFunction(symbol []byte) bool {
	return elf.ST_TYPE(symbol[4]) == elf.STT_FUNC && !undefined(symbol)
}

// undefined reports whether a symbol stands for another file's.
func undefined(symbol []byte) bool {
	return elf.SectionIndex(binary.LittleEndian.Uint16(symbol[6:])) == elf.SHN_UNDEF
}

// symbols calls visit with the index and the name of each symbol of a table that
// is of a kind and has a name, until it returns an error. A table that is nil,
// or that no loader could read, has no symbols.
func (e *ELF) symbols(table *elf.Section, kind func(symbol []byte) bool, visit func(i uint32, name []byte) error) error {
	if table == nil || int64(table.Link) >= int64(len(e.Sections)) {
		return nil
	}
	names := e.Sections[table.Link]
	if names.Type != elf.SHT_STRTAB || (table.Flags|names.Flags)&elf.SHF_COMPRESSED != 0 {
		return nil
	}
	if table.FileSize > maxSymbols*elf.Sym64Size || names.FileSize > maxSymbolNames {
		return fmt.Errorf("symbols: %w", ErrTooLarge)
	}
	// The offset of the name above, the index below 32 bits.
	found := make([]uint64, 0, table.FileSize/elf.Sym64Size)
	err := entries(table, elf.Sym64Size, func(i uint64, symbol []byte) {
		if name := binary.LittleEndian.Uint32(symbol); name != 0 && kind(symbol) {
			found = append(found, uint64(name)<<32|i)
		}
	})
	if err != nil {
		return err
	}
	// In the order of their names, these are read from front to back.
	slices.Sort(found)
	w := window{r: names.ReaderAt, end: names.FileSize}
	for _, f := range found {
		if name := w.name(f >> 32); len(name) > 0 {
			if err := visit(uint32(f), name); err != nil {
				return err
			}
		}
	}
	return nil
}

// SONAME returns what a library calls itself, whatever it is called elsewhere: ""
// for nothing, or what no loader could read.
func (e *ELF) SONAME() string {
	table := e.SectionByType(elf.SHT_DYNAMIC)
	if table == nil || int64(table.Link) >= int64(len(e.Sections)) {
		return ""
	}
	names := e.Sections[table.Link]
	if names.Type != elf.SHT_STRTAB || names.Flags&elf.SHF_COMPRESSED != 0 {
		return ""
	}
	b, err := SectionData(table, maxDynamic)
	if err != nil {
		return ""
	}
	const size = 16 // of an entry, elf(5), Elf64_Dyn
	for ; len(b) >= size; b = b[size:] {
		if elf.DynTag(binary.LittleEndian.Uint64(b)) == elf.DT_SONAME {
			w := window{r: names.ReaderAt, end: names.FileSize}
			return string(w.name(binary.LittleEndian.Uint64(b[8:])))
		}
	}
	return ""
}

// entries calls visit with the index and the bytes of each entry of a table.
func entries(table *elf.Section, size uint64, visit func(i uint64, entry []byte)) error {
	count := table.FileSize / size
	buf := make([]byte, 1024*size)
	for i := uint64(0); i < count; {
		n, err := table.ReadAt(buf[:min(uint64(len(buf)), (count-i)*size)], int64(i*size))
		if uint64(n) < size {
			return fmt.Errorf("%w: read %s: %w", ErrMalformed, table.Type, err)
		}
		for b := buf[:uint64(n)/size*size]; len(b) > 0; b = b[size:] {
			visit(i, b[:size])
			i++
		}
	}
	return nil
}

// loads returns the segments that are loaded with all of the flags.
func (e *ELF) loads(flags elf.ProgFlag) (segments []*elf.Prog) {
	for _, p := range e.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&flags == flags {
			segments = append(segments, p)
		}
	}
	return segments
}

// code returns the segments that are loaded executably, none if there are more than maxCode.
func (e *ELF) code() []*elf.Prog {
	if code := e.loads(elf.PF_X); len(code) <= maxCode {
		return code
	}
	return nil
}

// offset returns the offset in the file of the code at an address.
func (e *ELF) offset(code []*elf.Prog, address uint64) (uint64, bool) {
	for _, p := range code {
		if address >= p.Vaddr && address-p.Vaddr < p.Filesz {
			offset := p.Off + (address - p.Vaddr)
			return offset, offset >= headerSize && offset < e.size
		}
	}
	return 0, false
}

// A window shows the part of a table of names that was read last.
type window struct {
	r          io.ReaderAt
	start, end uint64 // of buf, and of the table
	buf, room  []byte
}

// name returns the name at an offset, nil for none or one that is too long. The
// offsets must not fall: then every byte is read about once.
func (w *window) name(at uint64) []byte {
	if at < w.start || at >= w.end {
		return nil
	}
	if last := w.start + uint64(len(w.buf)); at+maxSymbolName > last && last < w.end || w.room == nil {
		if w.room == nil {
			w.room = make([]byte, 64<<10)
		}
		want := min(uint64(len(w.room)), w.end-at)
		n, _ := w.r.ReadAt(w.room[:want], int64(at))
		w.start, w.buf = at, w.room[:n]
		if uint64(n) < want {
			w.end = at + uint64(n) // the file is shorter than its headers say
		}
	}
	b := w.buf[min(at-w.start, uint64(len(w.buf))):]
	b = b[:min(len(b), maxSymbolName)]
	return b[:max(bytes.IndexByte(b, 0), 0)]
}
