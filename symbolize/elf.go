package symbolize

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/proc"
)

// debugLink returns the file name and CRC-32 that .gnu_debuglink holds.
func debugLink(f *elf.File) (name string, crc uint32, ok bool) {
	b, err := proc.SectionData(f.Section(".gnu_debuglink"), 8<<10)
	if err != nil {
		return "", 0, false
	}
	end := bytes.IndexByte(b, 0)
	if end <= 0 {
		return "", 0, false
	}
	at := (end + 4) &^ 3
	if at+4 > len(b) {
		return "", 0, false
	}
	name = string(b[:end])
	if strings.Contains(name, "/") || name == "." || name == ".." {
		return "", 0, false
	}
	return name, binary.LittleEndian.Uint32(b[at:]), true
}

// virtual turns a file offset into the address that the file's symbols and
// debug information use.
func virtual(f *elf.File, off uint64) (uint64, bool) {
	const page = 1 << 12
	for _, slack := range []uint64{0, page - 1} { // segments are mapped in whole pages
		for _, executable := range []elf.ProgFlag{elf.PF_X, 0} {
			for _, p := range f.Progs {
				if p.Type != elf.PT_LOAD || p.Flags&executable != executable {
					continue
				}
				if off >= p.Off&^slack && off-p.Off&^slack < p.Filesz+p.Off-p.Off&^slack+slack {
					return p.Vaddr + (off - p.Off), true
				}
			}
		}
	}
	return 0, false
}
