package proc

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Limits on what Stubs reads. A libcuda has 36,000 relocations, 220 imports and
// 4 KiB of stubs.
const (
	maxRelocations = 1 << 21 // in all tables
	maxSlots       = 1 << 14 // wanted symbols, and relocations of them
	maxStubs       = 1 << 20 // bytes of code in all sections
)

// Stubs returns the offsets in the file of the stubs by which it calls functions
// that it imports and whose names match, by name. A stub is code in a section
// named .plt or .plt.*: it jumps to the address in a slot of memory, which the
// loader fills in by a relocation. A function that is called in other ways alone
// (-fno-plt, dlsym, a table of pointers) has none; of several, the first counts.
// Each offset lies in the file, behind its header, in a segment that is loaded
// executably. name is valid during the call alone. The error is, or wraps,
// ErrTooLarge or ErrMalformed.
func (e *ELF) Stubs(match func(name []byte) bool) (map[string]uint64, error) {
	a, ok := arches[e.Machine]
	if !ok {
		return nil, nil
	}
	slots, err := e.slots(a, match)
	if err != nil || len(slots) == 0 {
		return nil, err
	}
	code := e.code()
	stubs, left := map[string]uint64{}, uint64(maxStubs)
	for _, s := range e.Sections {
		if s.Name != ".plt" && !strings.HasPrefix(s.Name, ".plt.") {
			continue
		}
		if s.Size > left {
			return nil, fmt.Errorf("stubs: %w", ErrTooLarge)
		}
		left -= s.Size
		// What is loaded there, whatever the section says of where it is.
		b := loaded(code, s.Addr, s.Size)
		for i := uint64(0); i < uint64(len(b)); i += a.align {
			slot, ok := a.slot(b[i:], s.Addr+i)
			if !ok {
				continue
			}
			name, ok := slots[slot]
			if _, twice := stubs[name]; !ok || twice {
				continue // by bti and without, a stub of AArch64 is found twice
			}
			if offset, ok := e.offset(code, s.Addr+i); ok {
				stubs[name] = offset
			}
		}
	}
	return stubs, nil
}

// slots returns the addresses of the slots of the imported functions whose names
// match, each with its name.
func (e *ELF) slots(a arch, match func([]byte) bool) (map[uint64]string, error) {
	table := slices.IndexFunc(e.Sections, func(s *elf.Section) bool { return s.Type == elf.SHT_DYNSYM })
	if table < 0 {
		return nil, nil
	}
	wanted := map[uint32]string{}
	err := e.symbols(e.Sections[table], undefined, func(i uint32, name []byte) error {
		if match(name) {
			wanted[i] = string(name)
		}
		if len(wanted) > maxSlots {
			return fmt.Errorf("imports: %w", ErrTooLarge)
		}
		return nil
	})
	if err != nil || len(wanted) == 0 {
		return nil, err
	}
	slots, left := map[uint64]string{}, uint64(maxRelocations)
	for _, s := range e.Sections {
		if s.Type != elf.SHT_RELA || int64(s.Link) != int64(table) || s.Flags&elf.SHF_COMPRESSED != 0 {
			continue
		}
		count := s.FileSize / relocationSize
		if count > left {
			return nil, fmt.Errorf("relocations: %w", ErrTooLarge)
		}
		left -= count
		err := entries(s, relocationSize, func(_ uint64, b []byte) {
			info := binary.LittleEndian.Uint64(b[8:])
			kind := elf.R_TYPE64(info)
			if kind != a.jumpSlot && kind != a.globDat {
				return
			}
			if name, ok := wanted[elf.R_SYM64(info)]; ok && len(slots) <= maxSlots {
				slots[binary.LittleEndian.Uint64(b)] = name
			}
		})
		if err != nil {
			return nil, err
		}
	}
	if len(slots) > maxSlots {
		return nil, fmt.Errorf("relocations: %w", ErrTooLarge)
	}
	return slots, nil
}

// relocationSize is the size of a relocation, in bytes. elf(5), Elf64_Rela.
const relocationSize = 24

// loaded returns the code at an address, less what the file does not have of it.
func loaded(code []*elf.Prog, address, size uint64) []byte {
	for _, p := range code {
		if at := address - p.Vaddr; address >= p.Vaddr && at < p.Filesz {
			b := make([]byte, min(size, p.Filesz-at))
			n, _ := p.ReadAt(b, int64(at))
			return b[:n]
		}
	}
	return nil
}

// An arch is how a machine's linkers write stubs.
type arch struct {
	jumpSlot, globDat uint32 // kinds of relocations that fill in a slot
	align             uint64 // of a stub in its section, in bytes
	// slot returns the address of the slot by which the code at an address,
	// which may be short, jumps.
	slot func(code []byte, at uint64) (uint64, bool)
}

var arches = map[elf.Machine]arch{
	elf.EM_X86_64:  {uint32(elf.R_X86_64_JMP_SLOT), uint32(elf.R_X86_64_GLOB_DAT), 8, slotX86},
	elf.EM_AARCH64: {uint32(elf.R_AARCH64_JUMP_SLOT), uint32(elf.R_AARCH64_GLOB_DAT), 4, slotARM},
}

// slotX86 knows [endbr64] [bnd] jmp *slot(%rip).
func slotX86(code []byte, at uint64) (uint64, bool) {
	b := bytes.TrimPrefix(code, []byte{0xf3, 0x0f, 0x1e, 0xfa})
	b = bytes.TrimPrefix(b, []byte{0xf2})
	if len(b) < 6 || b[0] != 0xff || b[1] != 0x25 {
		return 0, false
	}
	next := at + uint64(len(code)-len(b)) + 6
	return next + uint64(int32(binary.LittleEndian.Uint32(b[2:]))), true
}

// slotARM knows [bti c]; adrp x16, page; ldr x17, [x16, offset]; [add x16, x16,
// offset]; [autia1716]; br x17.
func slotARM(code []byte, at uint64) (uint64, bool) {
	// next returns the next instruction if it equals want under the mask.
	next := func(mask, want uint32) (uint32, bool) {
		if len(code) < 4 {
			return 0, false
		}
		word := binary.LittleEndian.Uint32(code)
		if word&mask != want {
			return 0, false
		}
		code, at = code[4:], at+4
		return word, true
	}
	const exactly = 1<<32 - 1
	next(exactly, 0xd503245f) // bti c
	page := at &^ 0xfff
	adrp, ok := next(0x9f00001f, 0x90000010)
	if !ok {
		return 0, false
	}
	ldr, ok := next(0xffc003ff, 0xf9400211)
	if !ok {
		return 0, false
	}
	next(0xffc003ff, 0x91000210) // add
	next(exactly, 0xd503219f)    // autia1716
	if _, ok := next(exactly, 0xd61f0220); !ok {
		return 0, false
	}
	// 21 bits with a sign: 19 at bit 5, and the lowest two at bit 29.
	pages := int64(int32(adrp<<8)>>13)<<2 | int64(adrp>>29&3)
	return page + uint64(pages<<12) + uint64(ldr>>10&0xfff)*8, true
}
