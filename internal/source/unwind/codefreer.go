package unwind

import (
	"fmt"
	"path"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// typeDealloc is the offset of tp_dealloc in a PyTypeObject, in bytes
// (Include/cpython/object.h).
const typeDealloc = 48

// codeFreer returns where in a file a probe sees each code object that its CPython
// frees as the first argument: at tp_dealloc of PyCode_Type. The offset is 0 for a file
// that defines no PyCode_Type, and the error errCodeLayout for one such as that of a
// Python without the GIL, whose objects are larger. What is told comes from the file
// alone: by its memory a process could lead the probe into any file.
func codeFreer(e *proc.ELF) (offset uint64, err error) {
	object, ok, err := e.Object("PyCode_Type")
	if err != nil {
		return 0, err
	}
	// A program that uses a library's PyCode_Type has room for a copy, and no bytes.
	if !ok || len(e.Data(object, typeDealloc+8)) < typeDealloc+8 {
		return 0, nil
	}
	fields, err := e.Pointers(object+typeName, object+typeDealloc)
	if err != nil {
		return 0, err
	}
	name, dealloc := fields[0], fields[1]
	function, ok := e.Code(dealloc)
	if !ok || string(e.Data(name, uint64(len(codeType)))) != codeType {
		return 0, errCodeLayout
	}
	return e.Probe(function), nil
}

// ofPython tells whether a file is named as the unwinder takes for a Python.
func ofPython(m *proc.Mapping) bool { return m.HasFile() && namedPython(m.Name()) }

func namedPython(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(base, "python") || strings.HasPrefix(base, "libpython")
}

// PythonPlaces are the probes.Places of Pythons.
func PythonPlaces(name string, f *proc.File) map[uint64]string {
	if !namedPython(name) {
		return nil
	}
	out := map[uint64]string{}
	if f == nil {
		return out
	}
	e, err := f.ELF()
	if err != nil {
		return out
	}
	if offset, err := codeFreer(e); err == nil && offset != 0 {
		out[offset] = "code_dealloc" // as CPython's source calls it
	}
	return out
}

// maxPythons bounds the mappings of Pythons in a process that is watched.
const maxPythons = 32

// A codeProbe is where a probe is to lie: in a file, and in the process that maps it.
type codeProbe struct {
	file   *proc.File
	offset uint64
	at     uint64
}

// codeProbes returns where in the mappings of a process code objects are freed, of which
// the caller closes the files. With an error there are none.
func codeProbes(pid int, mappings []proc.Mapping) (probes []codeProbe, err error) {
	defer func() {
		if err != nil {
			closeProbes(probes)
			probes = nil
		}
	}()
	type file struct { // on btrfs, files of two subvolumes may have one id
		id   proc.FileID
		path string
	}
	seen := map[file]bool{}
	for i := range mappings {
		m := &mappings[i]
		key := file{m.File, m.Path}
		if seen[key] {
			continue
		}
		seen[key] = true
		f, err := proc.OpenMapped(pid, m)
		if err != nil {
			return probes, err
		}
		p, err := codeProbeOf(f, m, mappings)
		if err != nil || p.offset == 0 {
			f.Close()
		}
		if err != nil {
			return probes, fmt.Errorf("%s: %w", m.Name(), err)
		}
		if p.offset != 0 {
			probes = append(probes, p)
		}
	}
	return probes, nil
}

// codeProbeOf returns the probe of one file, with an offset of 0 if it needs none.
func codeProbeOf(f *proc.File, of *proc.Mapping, mappings []proc.Mapping) (codeProbe, error) {
	e, err := f.ELF()
	if err != nil {
		return codeProbe{}, err
	}
	offset, err := codeFreer(e)
	if err != nil || offset == 0 {
		return codeProbe{}, err
	}
	for _, m := range mappings {
		if m.File == of.File && m.Path == of.Path && offset >= m.Offset && offset-m.Offset < m.End-m.Start {
			return codeProbe{f, offset, m.Start + (offset - m.Offset)}, nil
		}
	}
	return codeProbe{}, errCodeCopied
}

func closeProbes(probes []codeProbe) {
	for _, p := range probes {
		p.file.Close()
	}
}
