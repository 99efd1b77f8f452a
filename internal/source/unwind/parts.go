package unwind

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"

	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// Of sections, as debug/elf has them: one that is not in the file, and one that is compressed.
const (
	noBits     = 8
	compressed = 0x800
)

// split returns at most n parts of an ELF file, which together show what r shows. Each shows only
// some of the functions in the unwind information (.eh_frame). The profiler's library reads a file
// on one processor, and the parts of a file can be read side by side. A file that has unwind
// information elsewhere than in .eh_frame is one part, and so is one that cannot be read.
func split(r io.ReaderAt, n int64) (parts []io.ReaderAt) {
	whole := []io.ReaderAt{r}
	if n < 2 {
		return whole
	}
	defer func() {
		if recover() != nil {
			parts = whole // its reader finds the error again
		}
	}()
	f, err := pfelf.NewFile(r, 0, false)
	if err != nil {
		return whole
	}
	defer f.Close()
	for _, other := range []string{".debug_frame", ".gopclntab", ".go.buildinfo"} {
		if f.Section(other) != nil {
			return whole
		}
	}
	s := f.Section(".eh_frame")
	if s == nil || s.Type == noBits || s.Flags&compressed != 0 {
		return whole
	}
	begin, size := int64(s.Offset), int64(s.Size)
	if begin < 0 || size <= 0 || begin > math.MaxInt64-size {
		return whole
	}
	first, cuts := functions(io.NewSectionReader(r, begin, size), size/n+1)
	for i := range len(cuts) + 1 {
		p := &proc.Patched{ReaderAt: r}
		if i > 0 {
			p.Patches = append(p.Patches, proc.Patch{At: begin + first, Bytes: hide(cuts[i-1] - first)})
		}
		if i < len(cuts) {
			p.Patches = append(p.Patches, proc.Patch{At: begin + cuts[i], Bytes: make([]byte, 4)}) // the end of .eh_frame
		}
		parts = append(parts, p)
	}
	return parts
}

// functions returns the offset in .eh_frame of the first function's entry, -1 if there is none, and
// offsets of later functions' entries. These are at least apart bytes from each other.
func functions(section *io.SectionReader, apart int64) (first int64, others []int64) {
	r := bufio.NewReaderSize(section, 64<<10)
	first = -1
	for at := int64(0); ; {
		b, err := r.Peek(8)
		if err != nil {
			return first, others
		}
		length, function := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]) != 0
		if length == 0 || length >= 0xfffffff0 { // the end, or an entry of the 64-bit form
			return first, others
		}
		switch {
		case !function:
		case first < 0:
			if length < uint32(len(hide(0))) {
				return first, nil
			}
			first = at
		case at-max(first, last(others)) >= apart:
			others = append(others, at)
		}
		n := 4 + int(length)
		if _, err := r.Discard(n); err != nil {
			return first, others
		}
		at += int64(n)
	}
}

func last(s []int64) int64 {
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1]
}

// hide returns the beginning of an entry that takes the given number of bytes and describes no
// function. It is a CIE (https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/ehframechpt.html)
// of version 1 whose only instruction advances by a byte.
func hide(bytes int64) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(bytes-4))
	return append(b, 0, 0, 0, 0, 1, 0, 1, 1, 16, 0x41)
}
