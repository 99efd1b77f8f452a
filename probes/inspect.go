package probes

import (
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
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
	seen := map[proc.FileID]int{}
	// report returns the index of the library's report, and closes it.
	report := func(lib Library) int {
		defer lib.Close()
		i, ok := seen[lib.id]
		if !ok {
			i = len(reports)
			seen[lib.id] = i
			reports = append(reports, inspect(lib))
		}
		return i
	}
	for _, pid := range pids {
		mapped, err := mappedLibraries(pid, inspected)
		if err != nil {
			unread[pid] = err
		}
		for _, m := range mapped {
			lib, err := openMapping(pid, m.Mapping, m.level)
			if err != nil {
				reports = append(reports, LibraryReport{Level: m.level, Path: m.Name(), PIDs: []int{pid}, Err: err})
				continue
			}
			if i := report(lib); !slices.Contains(reports[i].PIDs, pid) {
				reports[i].PIDs = append(reports[i].PIDs, pid)
			}
		}
		if len(mapped) == 0 {
			continue
		}
		if lib, ok := staticRuntime(pid); ok {
			i := report(lib)
			reports[i].PIDs = append(reports[i].PIDs, pid)
		}
	}
	for _, lib := range systemLibraries(inspected) {
		report(lib)
	}
	return reports, unread
}

func inspect(lib Library) LibraryReport {
	r := LibraryReport{Level: lib.Level, Path: lib.Path, Version: fileVersion(lib.Path)}
	offsets, err := lib.functions(known)
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
	if e, err := lib.elf(); err == nil {
		r.BuildID = e.BuildID()
	}
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
