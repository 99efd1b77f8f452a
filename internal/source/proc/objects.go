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
	address, ok := addressOf(e.code(), offset)
	if !ok {
		return nil
	}
	return loaded(e.loads(elf.PF_W), address+distance, size)
}

// Data returns the size bytes that the file has for an address, or fewer.
func (e *ELF) Data(address, size uint64) []byte {
	return loaded(e.loads(0), address, size)
}
