package probes

import (
	"debug/elf"
	"fmt"
	"os"
	"syscall"
)

// symbolOffsets returns the file offsets of the defined functions of an ELF
// file that match, by name. The file belongs to a traced process and may hold
// anything: what is no 64-bit ELF file is an ErrNoSymbols.
func symbolOffsets(file string, match func(string) bool) (offsets map[string]uint64, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("a malformed ELF file (%v): %w", r, ErrNoSymbols)
		}
	}()
	// O_NONBLOCK: the path may have become a FIFO since it was looked at.
	fd, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	f, err := elf.NewFile(fd)
	if err != nil {
		return nil, fmt.Errorf("no ELF file (%w): %w", err, ErrNoSymbols)
	}
	if f.Class != elf.ELFCLASS64 {
		return nil, fmt.Errorf("a 32-bit library: %w", ErrNoSymbols)
	}
	offsets = map[string]uint64{}
	add := func(syms []elf.Symbol) {
		for _, s := range syms {
			if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Section == elf.SHN_UNDEF || !match(s.Name) {
				continue
			}
			for _, p := range f.Progs {
				if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && s.Value >= p.Vaddr && s.Value-p.Vaddr < p.Filesz {
					offsets[s.Name] = s.Value - p.Vaddr + p.Off
				}
			}
		}
	}
	// libcuda has no .symtab; a static libcudart has nothing else.
	if syms, err := f.DynamicSymbols(); err == nil {
		add(syms)
	}
	if len(offsets) == 0 {
		if syms, err := f.Symbols(); err == nil {
			add(syms)
		}
	}
	return offsets, nil
}
