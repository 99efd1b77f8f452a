package proc

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// Limits on the table of symbols that Functions reads. The worst file costs 8 MiB
// of memory and some tens of milliseconds. A libcuda has 682 symbols; a large
// static program has a few hundred thousand, with 50 MiB of names.
const (
	maxSymbols     = 1 << 20
	maxSymbolNames = 128 << 20 // bytes
	maxSymbolName  = 256       // bytes; longer ones are not looked at
	maxCode        = 16        // executable segments; linkers make one
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
	if table == nil || int64(table.Link) >= int64(len(e.Sections)) {
		return nil, nil
	}
	names := e.Sections[table.Link]
	if names.Type != elf.SHT_STRTAB || (table.Flags|names.Flags)&elf.SHF_COMPRESSED != 0 {
		return nil, nil
	}
	if table.FileSize > maxSymbols*elf.Sym64Size || names.FileSize > maxSymbolNames {
		return nil, fmt.Errorf("symbols: %w", ErrTooLarge)
	}
	code, err := e.code()
	if err != nil {
		return nil, err
	}
	found, err := definedFunctions(table)
	if err != nil {
		return nil, err
	}
	// In the order of their names, these are read from front to back.
	slices.Sort(found)
	offsets := map[string]uint64{}
	w := window{r: names.ReaderAt, end: names.FileSize}
	symbol := make([]byte, elf.Sym64Size)
	for _, f := range found {
		name := w.name(f >> 32)
		if len(name) == 0 || !match(name) {
			continue
		}
		if _, err := table.ReadAt(symbol, int64(uint32(f))*elf.Sym64Size); err != nil {
			return nil, fmt.Errorf("%w: read symbols: %w", ErrMalformed, err)
		}
		if offset, ok := e.offset(code, binary.LittleEndian.Uint64(symbol[8:])); ok {
			offsets[string(name)] = offset
		}
	}
	return offsets, nil
}

// definedFunctions returns the functions in a table of symbols that are defined
// there: the offset of the name above, the index below 32 bits.
func definedFunctions(table *elf.Section) ([]uint64, error) {
	count := table.FileSize / elf.Sym64Size
	found := make([]uint64, 0, count)
	buf := make([]byte, 1024*elf.Sym64Size)
	for i := uint64(0); i < count; {
		n, err := table.ReadAt(buf[:min(uint64(len(buf)), (count-i)*elf.Sym64Size)], int64(i*elf.Sym64Size))
		if n < elf.Sym64Size {
			return nil, fmt.Errorf("%w: read symbols: %w", ErrMalformed, err)
		}
		for b := buf[:n/elf.Sym64Size*elf.Sym64Size]; len(b) > 0; b = b[elf.Sym64Size:] {
			name := binary.LittleEndian.Uint32(b)
			section := elf.SectionIndex(binary.LittleEndian.Uint16(b[6:]))
			if elf.ST_TYPE(b[4]) == elf.STT_FUNC && section != elf.SHN_UNDEF && name != 0 {
				found = append(found, uint64(name)<<32|i)
			}
			i++
		}
	}
	return found, nil
}

// code returns the segments that are loaded executably.
func (e *ELF) code() (code []*elf.Prog, err error) {
	for _, p := range e.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
			code = append(code, p)
		}
	}
	if len(code) > maxCode {
		return nil, fmt.Errorf("%w: %d executable segments", ErrMalformed, len(code))
	}
	return code, nil
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
