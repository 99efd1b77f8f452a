package proc

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
)

// Object returns the address, in the file, of the data that it exports by a name.
// The error is, or wraps, ErrTooLarge or ErrMalformed.
func (e *ELF) Object(name string) (address uint64, ok bool, err error) {
	table := e.SectionByType(elf.SHT_DYNSYM)
	symbol := make([]byte, elf.Sym64Size)
	err = e.symbols(table, definedObject, func(i uint32, n []byte) error {
		if string(n) != name {
			return nil
		}
		if _, err := table.ReadAt(symbol, int64(i)*elf.Sym64Size); err != nil {
			return fmt.Errorf("%w: read symbols: %w", ErrMalformed, err)
		}
		address, ok = binary.LittleEndian.Uint64(symbol[8:]), true
		return nil
	})
	return address, ok && err == nil, err
}

// definedObject tells whether a symbol is data of this file.
func definedObject(symbol []byte) bool {
	return elf.ST_TYPE(symbol[4]) == elf.STT_OBJECT && !undefined(symbol)
}

// Relocations by where the file is loaded, by machine. Those of the packed table
// (SHT_RELR) add to the word that the file has there.
var relative = map[elf.Machine]uint32{
	elf.EM_X86_64:  uint32(elf.R_X86_64_RELATIVE),
	elf.EM_AARCH64: uint32(elf.R_AARCH64_RELATIVE),
}

// Pointers returns the addresses, in the file, that the pointers at some addresses
// hold once the loader is done with them, less where it loads the file. One that the
// file does not tell alone is 0. The error is, or wraps, ErrTooLarge or ErrMalformed.
func (e *ELF) Pointers(at ...uint64) ([]uint64, error) {
	out := make([]uint64, len(at))
	which := map[uint64]int{}
	for i, address := range at {
		which[address] = i
		if word := e.Data(address, 8); len(word) == 8 {
			out[i] = binary.LittleEndian.Uint64(word)
		}
	}
	left := uint64(maxRelocations)
	for _, s := range e.Sections {
		if s.Type != elf.SHT_RELA || s.Flags&elf.SHF_ALLOC == 0 || s.Flags&elf.SHF_COMPRESSED != 0 {
			continue // what the loader does not read, the linker has done already
		}
		count := s.FileSize / relocationSize
		if count > left {
			return nil, fmt.Errorf("relocations: %w", ErrTooLarge)
		}
		left -= count
		err := entries(s, relocationSize, func(_ uint64, b []byte) {
			i, ok := which[binary.LittleEndian.Uint64(b)]
			if !ok {
				return
			}
			out[i] = 0
			if kind, ok := relative[e.Machine]; ok && elf.R_TYPE64(binary.LittleEndian.Uint64(b[8:])) == kind {
				out[i] = binary.LittleEndian.Uint64(b[16:])
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Data returns the size bytes that the file has for an address, or fewer.
func (e *ELF) Data(address, size uint64) []byte {
	var segments []*elf.Prog
	for _, p := range e.Progs {
		if p.Type == elf.PT_LOAD {
			segments = append(segments, p)
		}
	}
	return loaded(segments, address, size)
}

// Code returns the offset in the file of the code at an address: it lies behind the
// file's header, in a segment that is loaded executably.
func (e *ELF) Code(address uint64) (offset uint64, ok bool) {
	code, err := e.code()
	if err != nil {
		return 0, false
	}
	return e.offset(code, address)
}
