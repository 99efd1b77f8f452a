package probes

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// A LibraryReport says what one CUDA library offers to trace.
type LibraryReport struct {
	Level   Level
	Path    string // as a process that maps it sees it
	PIDs    []int  // that map it, none for one that a program started now would load
	Version string // as the file's name says, such as "580.159.04"; "" if it does not
	BuildID string // GNU build id in hex, "" if it has none
	// Found and Missing are the symbols of Table's rows of this level.
	Found, Missing []string
	// Err says why it cannot be traced: nil, ErrNoSymbols, or why it could
	// not be read.
	Err error
}

var inspected = []Level{Driver, Runtime, Torch}

// Inspect reports the CUDA libraries that the processes map and those that a
// program started now would load, each file once, and by process why its
// mappings could not be read.
func Inspect(pids []int) (reports []LibraryReport, unread map[int]error) {
	unread = map[int]error{}
	seen := map[fileID]int{}
	for _, pid := range pids {
		mapped, err := mappedLibraries(pid, inspected)
		if err != nil {
			unread[pid] = err
		}
		if len(mapped) == 0 {
			continue
		}
		libs, err := findLibraries(pid, inspected)
		if err != nil {
			unread[pid] = err
		}
		for _, m := range mapped {
			if !slices.ContainsFunc(libs, func(l Library) bool { return l.Path == m.path }) {
				_, err := openLibrary(pid, m.span, m.path, m.level)
				reports = append(reports, LibraryReport{Level: m.level, Path: m.path, PIDs: []int{pid}, Err: err})
			}
		}
		for _, lib := range libs {
			i, ok := seen[lib.id]
			if !ok {
				i = len(reports)
				seen[lib.id] = i
				reports = append(reports, inspect(lib))
			}
			if !slices.Contains(reports[i].PIDs, pid) {
				reports[i].PIDs = append(reports[i].PIDs, pid)
			}
		}
	}
	for _, lib := range systemLibraries(inspected) {
		if _, ok := seen[lib.id]; !ok {
			reports = append(reports, inspect(lib))
		}
	}
	return reports, unread
}

func inspect(lib Library) LibraryReport {
	r := LibraryReport{Level: lib.Level, Path: lib.Path, Version: fileVersion(lib.Path)}
	offsets, err := symbolOffsets(lib.open, func(name string) bool { return known[name] })
	if err != nil {
		r.Err = err
		return r
	}
	_, all := choose(lib.Level, nil, lasting)
	_, r.Missing = choose(lib.Level, offsets, lasting)
	r.Found = slices.DeleteFunc(all, func(s string) bool { return slices.Contains(r.Missing, s) })
	if len(r.Found) == 0 {
		r.Err = ErrNoSymbols
	}
	r.BuildID, _ = buildID(lib.open)
	return r
}

// fileVersion returns what follows ".so." in a file's name if that is more
// than the interface's number: the driver's installer names libcuda by it.
func fileVersion(file string) string {
	_, v, _ := strings.Cut(path.Base(file), ".so.")
	if !strings.Contains(v, ".") || strings.Trim(v, "0123456789.") != "" {
		return ""
	}
	return v
}

// maxNotes bounds the notes read of a file, in bytes.
const maxNotes = 64 << 10

// buildID returns the GNU build id of an ELF file, which may hold anything, in
// hex: "" for none.
func buildID(file string) (id string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("read build id of %s: malformed ELF file: %v", file, r)
		}
	}()
	fd, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer fd.Close()
	f, err := elf.NewFile(fd)
	if err != nil {
		return "", fmt.Errorf("read build id of %s: %w", file, err)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE || p.Filesz > maxNotes {
			continue
		}
		notes := make([]byte, p.Filesz)
		if _, err := p.ReadAt(notes, 0); err != nil {
			continue
		}
		align := uint64(4)
		if p.Align == 8 {
			align = 8
		}
		if id := noteBuildID(f.ByteOrder, notes, align); id != "" {
			return id, nil
		}
	}
	return "", nil
}

// noteBuildID finds NT_GNU_BUILD_ID among notes. elf(5), "Notes (Nhdr)".
func noteBuildID(order binary.ByteOrder, notes []byte, align uint64) string {
	const ntGNUBuildID = 3
	up := func(n uint64) uint64 { return (n + align - 1) / align * align }
	for len(notes) >= 12 {
		nameLen, descLen := uint64(order.Uint32(notes)), uint64(order.Uint32(notes[4:]))
		desc := up(12 + nameLen)
		if desc+descLen > uint64(len(notes)) {
			return ""
		}
		if order.Uint32(notes[8:]) == ntGNUBuildID && descLen <= 64 && bytes.Equal(notes[12:12+nameLen], []byte("GNU\x00")) {
			return hex.EncodeToString(notes[desc : desc+descLen])
		}
		notes = notes[min(up(desc+descLen), uint64(len(notes))):]
	}
	return ""
}
