package proc

import "debug/elf"

// X86 reports whether the file's code is for x86-64.
func (e *ELF) X86() bool { return e.Machine == elf.EM_X86_64 }

// Code returns where in the file its executable segment is, in bytes. It returns 0, 0 if there
// is none, or more than one.
func (e *ELF) Code() (offset, size uint64) {
	segments := e.code()
	if len(segments) != 1 {
		return 0, 0
	}
	return segments[0].Off, segments[0].Filesz
}

// CodeAround returns the code from reach bytes before an offset in the file to as
// many behind it, as far as the executable segment with the offset goes, and where
// in it the offset is. It returns no code, and 0, if the offset lies in none or
// cannot be read.
func (e *ELF) CodeAround(offset, reach uint64) (code []byte, start int) {
	for _, s := range e.code() {
		if offset < s.Off || offset-s.Off >= s.Filesz {
			continue
		}
		at := offset - s.Off
		from := at - min(at, reach)
		code = make([]byte, min(at-from+reach, s.Filesz-from))
		n, _ := s.ReadAt(code, int64(from))
		if start = int(at - from); n > start {
			return code[:n], start
		}
	}
	return nil, 0
}
