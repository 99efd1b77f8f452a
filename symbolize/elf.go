package symbolize

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Limits on what an ELF file may make debug/elf read before anything in it is
// believed. Each section's name is copied, and all may be one long name.
const (
	maxSegments     = 1 << 10
	maxSections     = 1 << 11
	maxSectionNames = 1 << 14
	maxNotes        = 1 << 16
)

var (
	errNotELF    = errors.New("not a 64-bit little-endian ELF file")
	errMalformed = errors.New("malformed ELF file")
)

// openELF reads the headers of the size bytes at r. The error is, or wraps,
// errNotELF or errMalformed.
func openELF(r io.ReaderAt, size int64) (f *elf.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			f, err = nil, fmt.Errorf("%w: %v", errMalformed, p)
		}
	}()
	if err := checkELF(r, size); err != nil {
		return nil, err
	}
	f, err = elf.NewFile(io.NewSectionReader(r, 0, size))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return f, nil
}

// checkELF bounds the counts and sizes that elf.NewFile allocates by.
func checkELF(r io.ReaderAt, size int64) error {
	var h elf.Header64
	if err := readStruct(r, 0, &h); err != nil {
		return errNotELF
	}
	if string(h.Ident[:4]) != elf.ELFMAG || h.Ident[elf.EI_CLASS] != byte(elf.ELFCLASS64) || h.Ident[elf.EI_DATA] != byte(elf.ELFDATA2LSB) {
		return errNotELF
	}
	if h.Phnum > maxSegments {
		return errMalformed
	}
	if h.Shoff == 0 {
		return nil
	}
	count, names := uint64(h.Shnum), uint64(h.Shstrndx)
	if count == 0 || names == uint64(elf.SHN_XINDEX) {
		var first elf.Section64
		if err := readStruct(r, h.Shoff, &first); err != nil {
			return errMalformed
		}
		if count == 0 {
			count = first.Size
		}
		if names == uint64(elf.SHN_XINDEX) {
			names = uint64(first.Link)
		}
	}
	if count > maxSections || h.Shoff > uint64(size) || count*uint64(h.Shentsize) > uint64(size)-h.Shoff {
		return errMalformed
	}
	if names >= count {
		return nil // debug/elf refuses it
	}
	var s elf.Section64
	if err := readStruct(r, h.Shoff+names*uint64(h.Shentsize), &s); err != nil {
		return errMalformed
	}
	if s.Size > maxSectionNames || elf.SectionFlag(s.Flags)&elf.SHF_COMPRESSED != 0 {
		return errMalformed
	}
	return nil
}

func readStruct(r io.ReaderAt, off uint64, v any) error {
	if off > 1<<62 {
		return errMalformed
	}
	return binary.Read(io.NewSectionReader(r, int64(off), int64(binary.Size(v))), binary.LittleEndian, v)
}

// readBounded returns the bytes of s as the file has them, which may be at
// most max.
func readBounded(s *elf.Section, max uint64) ([]byte, error) {
	if s == nil || s.Type == elf.SHT_NOBITS || s.Size > max || s.FileSize > max {
		return nil, errMalformed
	}
	return s.Data()
}

// buildID returns the GNU build id in lower-case hex, "" for none.
func buildID(f *elf.File) string {
	for _, p := range f.Progs {
		if p.Type == elf.PT_NOTE && p.Filesz <= maxNotes {
			b := make([]byte, p.Filesz)
			if _, err := p.ReadAt(b, 0); err == nil || errors.Is(err, io.EOF) {
				if id := noteBuildID(b, p.Align); id != "" {
					return id
				}
			}
		}
	}
	// Files made by objcopy --only-keep-debug keep the section, and the
	// program header with a size of nothing.
	if b, err := readBounded(f.Section(".note.gnu.build-id"), maxNotes); err == nil {
		return noteBuildID(b, 4)
	}
	return ""
}

// noteBuildID walks ELF notes: name size, description size, type, then both
// padded to align.
func noteBuildID(b []byte, align uint64) string {
	if align != 8 {
		align = 4
	}
	const typeBuildID = 3 // NT_GNU_BUILD_ID
	pad := func(n uint32) uint64 { return (uint64(n) + align - 1) &^ (align - 1) }
	for len(b) >= 12 {
		nameSize, descSize := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
		kind := binary.LittleEndian.Uint32(b[8:])
		desc := 12 + pad(nameSize)
		next := desc + pad(descSize)
		if desc+uint64(descSize) > uint64(len(b)) {
			return ""
		}
		if kind == typeBuildID && nameSize == 4 && string(b[12:16]) == "GNU\x00" && descSize > 0 && descSize <= 64 {
			return hex.EncodeToString(b[desc : desc+uint64(descSize)])
		}
		if next >= uint64(len(b)) {
			return ""
		}
		b = b[next:]
	}
	return ""
}

// debugLink returns the file name and CRC-32 that .gnu_debuglink holds.
func debugLink(f *elf.File) (name string, crc uint32, ok bool) {
	b, err := readBounded(f.Section(".gnu_debuglink"), 8<<10)
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
