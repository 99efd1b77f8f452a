package proc

import (
	"debug/elf"
	"encoding/binary"
)

// ShadowStack reports whether code of the file may run with a second stack of return
// addresses that the processor keeps and compares: as it says of itself, as all
// files of a process must for that (x86-64 psABI, GNU_PROPERTY_X86_FEATURE_1_SHSTK).
func (e *ELF) ShadowStack() bool {
	const (
		head    = 16 // bytes: sizes of name and contents, type, "GNU"
		feature = 0xc0000002
		shadow  = 1 << 1
	)
	for _, p := range e.Progs {
		if p.Type != elf.PT_GNU_PROPERTY || p.Filesz <= head || p.Filesz > maxNotes {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			continue
		}
		// Each property: type, size, contents up to a multiple of 8 bytes.
		for b = b[head:]; len(b) >= 12; {
			size := (uint64(binary.LittleEndian.Uint32(b[4:])) + 7) &^ 7
			if binary.LittleEndian.Uint32(b) == feature {
				return binary.LittleEndian.Uint32(b[8:])&shadow != 0
			}
			b = b[min(8+size, uint64(len(b))):]
		}
	}
	return false
}
