package proc

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// Limits on what an ELF file may make debug/elf allocate before anything in it
// is believed. Each section's name is copied, and all may be one long name.
const (
	maxSegments = 1 << 10
	maxSections = 1 << 11
	maxStrings  = 1 << 14 // bytes of the table of sections' names
	maxNames    = 1 << 18 // bytes of the names themselves
	maxNotes    = 1 << 16 // bytes of notes
)

// The sizes of a 64-bit ELF file's own header, and of those of its segments and
// sections, in bytes. elf(5).
const (
	headerSize  = 64
	segmentSize = 56
	sectionSize = 64
)

var (
	// ErrNotELF is the error of a file that is no 64-bit little-endian ELF file.
	ErrNotELF = errors.New("not a 64-bit little-endian ELF file")
	// ErrMalformed is the error of an ELF file with headers that no linker
	// writes.
	ErrMalformed = errors.New("malformed ELF file")
)

// An ELF is an ELF file whose headers were read and are within bounds. The
// contents of its sections are not: read them by SectionData, or in pieces.
type ELF struct {
	*elf.File
	size uint64
}

// ELF reads the headers of f. Close f, not the ELF.
func (f *File) ELF() (*ELF, error) { return ReadELF(f, f.Size) }

// ReadELF reads the headers of the size bytes at r, which may hold anything and
// change meanwhile. The error is, or wraps, ErrNotELF or ErrMalformed.
func ReadELF(r io.ReaderAt, size int64) (e *ELF, err error) {
	defer func() {
		if p := recover(); p != nil {
			e, err = nil, fmt.Errorf("%w: %v", ErrMalformed, p)
		}
	}()
	h, err := readHeaders(r, size)
	if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(h)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return &ELF{f, uint64(size)}, nil
}

// A Patched shows a file with other bytes in some places.
type Patched struct {
	io.ReaderAt
	Patches []Patch
}

// A Patch is the bytes of a Patched from an offset on.
type Patch struct {
	At    int64
	Bytes []byte
}

// ReadAt implements io.ReaderAt.
func (f *Patched) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.ReaderAt.ReadAt(b, off)
	for _, p := range f.Patches {
		if from, to := max(off, p.At), min(off+int64(n), p.At+int64(len(p.Bytes))); from < to {
			copy(b[from-off:to-off], p.Bytes[from-p.At:])
		}
	}
	return n, err
}

// headers are an ELF file with a copy of its headers, so that debug/elf reads
// those that were checked.
type headers struct{ Patched }

// copy reads n bytes of the file once and for all: what an earlier copy has stays as it was.
func (h *headers) copy(size, at, n uint64) ([]byte, error) {
	if at > size || n > size-at {
		return nil, ErrMalformed
	}
	b := make([]byte, n)
	if got, err := h.ReadAt(b, int64(at)); uint64(got) < n {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	h.Patches = append(h.Patches, Patch{int64(at), b})
	return b, nil
}

// readHeaders bounds the counts and sizes that elf.NewFile allocates by.
func readHeaders(r io.ReaderAt, fileSize int64) (*headers, error) {
	h, size := &headers{Patched{ReaderAt: r}}, uint64(max(fileSize, 0))
	b, err := h.copy(size, 0, headerSize)
	if err != nil || string(b[:4]) != elf.ELFMAG || b[elf.EI_DATA] != byte(elf.ELFDATA2LSB) {
		return nil, ErrNotELF
	}
	if b[elf.EI_CLASS] == byte(elf.ELFCLASS32) {
		return nil, fmt.Errorf("a 32-bit file: %w", ErrNotELF)
	}
	var head elf.Header64
	_, _ = binary.Decode(b, binary.LittleEndian, &head) // b has its size
	if head.Phnum > maxSegments || head.Phnum > 0 && head.Phentsize != segmentSize {
		return nil, ErrMalformed
	}
	if _, err := h.copy(size, head.Phoff, uint64(head.Phnum)*segmentSize); head.Phnum > 0 && err != nil {
		return nil, err
	}
	if head.Shoff == 0 {
		return h, nil // debug/elf refuses it with a count of sections
	}
	// A count of zero says that it is too large for the header.
	if head.Shnum == 0 || head.Shnum > maxSections || head.Shentsize != sectionSize || head.Shstrndx >= head.Shnum {
		return nil, ErrMalformed
	}
	table, err := h.copy(size, head.Shoff, uint64(head.Shnum)*sectionSize)
	if err != nil {
		return nil, err
	}
	sections := make([]elf.Section64, head.Shnum)
	_, _ = binary.Decode(table, binary.LittleEndian, sections)
	names := sections[head.Shstrndx]
	if head.Shstrndx == uint16(elf.SHN_UNDEF) {
		return h, nil // nothing has a name
	}
	if names.Size > maxStrings || elf.SectionFlag(names.Flags)&elf.SHF_COMPRESSED != 0 {
		return nil, ErrMalformed
	}
	strings, err := h.copy(size, names.Off, names.Size)
	if err != nil {
		return nil, err
	}
	total := 0
	for _, s := range sections {
		name := strings[min(int(s.Name), len(strings)):]
		if end := bytes.IndexByte(name, 0); end >= 0 {
			total += end
		}
	}
	if total > maxNames {
		return nil, ErrMalformed
	}
	return h, nil
}

// SectionData returns the bytes of s, uncompressed, which may be at most max.
func SectionData(s *elf.Section, max uint64) ([]byte, error) {
	if s == nil || s.Type == elf.SHT_NOBITS || s.Size > max || s.FileSize > max {
		return nil, ErrMalformed
	}
	return s.Data()
}

// BuildID returns the GNU build id in lower-case hex, "" for none.
func (e *ELF) BuildID() string {
	left := uint64(maxNotes)
	for _, p := range e.Progs {
		if p.Type != elf.PT_NOTE || p.Filesz > left {
			continue
		}
		left -= p.Filesz
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err == nil || errors.Is(err, io.EOF) {
			if id := noteBuildID(b, p.Align); id != "" {
				return id
			}
		}
	}
	// Files made by objcopy --only-keep-debug keep the section, and the
	// program header with a size of nothing.
	if b, err := SectionData(e.Section(".note.gnu.build-id"), maxNotes); err == nil {
		return noteBuildID(b, 4)
	}
	return ""
}

// noteBuildID finds NT_GNU_BUILD_ID among notes: name size, description size,
// type, then both padded to align. elf(5), "Notes (Nhdr)".
func noteBuildID(b []byte, align uint64) string {
	if align != 8 {
		align = 4
	}
	const typeBuildID = 3 // NT_GNU_BUILD_ID
	pad := func(n uint64) uint64 { return (n + align - 1) &^ (align - 1) }
	for len(b) >= 12 {
		nameSize, descSize := uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[4:]))
		kind := binary.LittleEndian.Uint32(b[8:])
		desc := pad(12 + nameSize)
		next := desc + pad(descSize)
		if desc+descSize > uint64(len(b)) {
			return ""
		}
		if kind == typeBuildID && nameSize == 4 && string(b[12:16]) == "GNU\x00" && descSize > 0 && descSize <= 64 {
			return hex.EncodeToString(b[desc : desc+descSize])
		}
		if next >= uint64(len(b)) {
			return ""
		}
		b = b[next:]
	}
	return ""
}
