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
