package unwind

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// unknownPythons counts processes whose stacks lack Python functions because the structures
// of their Python are not known.
type unknownPythons struct {
	count     atomic.Uint64
	processes map[uint32]bool // those that still run; under Unwinder.analyse
}

// add counts a process that maps such a Python, once.
func (p *unknownPythons) add(pid uint32, mappings []proc.Mapping) {
	if p.processes[pid] || !slices.ContainsFunc(mappings, unknownPython) {
		return
	}
	if p.processes == nil {
		p.processes = make(map[uint32]bool)
	}
	p.processes[pid] = true
	p.count.Add(1)
}

// pythonFile matches the names of CPython's program and library: the version, and
// letters for how it was built.
var pythonFile = regexp.MustCompile(`^(?:lib)?python(\d)\.(\d{1,3})([a-z]*)(?:\.so[.\d]*)?$`)

// unknownPython reports whether a mapped file is, by its name, a Python of an unknown
// version, or one without the GIL (t), whose objects begin otherwise.
func unknownPython(m proc.Mapping) bool {
	match := pythonFile.FindStringSubmatch(path.Base(m.Name()))
	if match == nil {
		return false
	}
	major, _ := strconv.Atoi(match[1])
	minor, _ := strconv.Atoi(match[2])
	_, known := codeLayouts[uint16(major<<8|minor)]
	return !known || strings.Contains(match[3], "t")
}
