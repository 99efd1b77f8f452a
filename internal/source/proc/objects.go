package proc

import "debug/elf"

// Object returns the address, in the file, of the data that it exports by a name.
// The error is, or wraps, ErrTooLarge or ErrMalformed.
func (e *ELF) Object(name string) (address uint64, ok bool, err error) {
	match := func(n []byte) bool { return string(n) == name }
	err = e.values(e.SectionByType(elf.SHT_DYNSYM), definedObject, match, func(_ []byte, value uint64) {
		address, ok = value, true
	})
	return address, ok && err == nil, err
}

// definedObject reports whether a symbol is data of this file.
func definedObject(symbol []byte) bool {
	return elf.ST_TYPE(symbol[4]) == elf.STT_OBJECT && !undefined(symbol)
}

// Variable returns the size bytes that the file has for data that may be written, at a distance from
// the code at an offset in the file, or fewer.
func (e *ELF) Variable(offset, distance, size uint64) []byte {
	var data []*elf.Prog
	for _, p := range e.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && offset-p.Off < p.Filesz {
			distance += p.Vaddr - p.Off
		}
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_W != 0 {
			data = append(data, p)
		}
	}
	return loaded(data, offset+distance, size)
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
