package probes

import (
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A LibraryReport describes one CUDA library for the user.
type LibraryReport struct {
	Level   Level
	Path    string // in the view of a process that maps it
	PIDs    []int  // of the processes that map it, none for one that a program started now would load
	Version string // in the file's name, such as "580.159.04"; "" for none
	BuildID string // GNU build id in hex, "" if it has none
	// Found and Missing are the symbols of Table's rows of this level.
	Found, Missing []string
	// Unlisted are functions of libcuda, at most 100, that bring memory or end it, by their names, and that this
	// program does not know.
	Unlisted []string
	// Err is the reason why it cannot be traced: nil, ErrNoSymbols, or an error of reading.
	Err error
}

var inspected = []Level{Driver, Runtime, Torch}

// Inspect returns reports of the CUDA libraries that the processes map and of those that a program
// started now would load, each file once. unread has errors of reading mappings, by process.
func Inspect(pids []int) (reports []LibraryReport, unread map[int]error) {
	unread = map[int]error{}
	seen := map[proc.FileID]int{}
	// report returns the index of the library's report, and closes the library.
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
	for _, lib := range openSystemLibraries(inspected) {
		report(lib)
	}
	return reports, unread
}

func inspect(lib Library) LibraryReport {
	r := LibraryReport{Level: lib.Level, Path: lib.Path, Version: fileVersion(lib.Path)}
	offsets, err := lib.functions(func(name []byte) bool {
		if lib.Level == Driver && len(r.Unlisted) < maxUnlisted && unlisted(name) {
			r.Unlisted = append(r.Unlisted, string(name))
		}
		return known(name)
	})
	slices.Sort(r.Unlisted)
	r.Unlisted = slices.Compact(r.Unlisted)
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

// fileVersion returns the version after ".so." in a file's name, unless it is only an interface's number.
// The driver's installer names libcuda so.
func fileVersion(file string) string {
	_, v, _ := strings.Cut(path.Base(file), ".so.")
	if !strings.Contains(v, ".") || strings.Trim(v, "0123456789.") != "" {
		return ""
	}
	return v
}
