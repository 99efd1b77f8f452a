package probes

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A Library is an open file that exports CUDA's symbols. All reads and all probes use the descriptor,
// because its path may lead elsewhere at any moment.
type Library struct {
	Level Level
	Path  string // in the view of a process that maps it, which can choose it
	id    proc.FileID
	file  *proc.File
	ahead func() (sites, error) // the result of sites, if somebody asked before
}

// Close closes the file. Level and Path stay.
func (l Library) Close() error { return l.file.Close() }

func closeAll(libs []Library) {
	for _, l := range libs {
		l.Close()
	}
}

// A mappedLibrary is a mapping of a file with the name of a CUDA library.
type mappedLibrary struct {
	proc.Mapping
	level Level
}

// maxLibraries bounds the CUDA libraries of one process.
const maxLibraries = 64

var errTooMany = fmt.Errorf("it maps more than %d CUDA libraries", maxLibraries)

// mappedLibraries returns the CUDA libraries of the levels that pid maps, by name. With an error it
// returns those that it found before.
func mappedLibraries(pid int, levels []Level) (out []mappedLibrary, err error) {
	type file struct {
		id   proc.FileID
		path string
	}
	seen := map[file]bool{}
	for m, err := range proc.Mappings(pid) {
		if err != nil {
			return out, fmt.Errorf("process %d: %w", pid, err)
		}
		level, ok := libraryLevel(m.Name())
		if key := (file{m.File, m.Path}); ok && m.HasFile() && slices.Contains(levels, level) && !seen[key] {
			if len(out) == maxLibraries {
				return out, fmt.Errorf("process %d: %w", pid, errTooMany)
			}
			seen[key] = true
			out = append(out, mappedLibrary{m, level})
		}
	}
	return out, nil
}

// findLibraries opens the CUDA libraries that pid maps. A program that exports the runtime's symbols
// itself, from a static libcudart, is a library of level Runtime. The caller closes them. With an
// error there are none.
func findLibraries(pid int, levels []Level) ([]Library, error) {
	mapped, err := mappedLibraries(pid, levels)
	if err != nil {
		return nil, err
	}
	var out []Library
	for _, m := range mapped {
		if lib, err := openMapping(pid, m.Mapping, m.level); err == nil {
			out = append(out, lib)
		}
	}
	if slices.Contains(levels, Runtime) {
		if lib, ok := staticRuntime(pid); ok {
			out = append(out, lib)
		}
	}
	return out, nil
}

// staticRuntime opens pid's program, if it defines the runtime's functions.
func staticRuntime(pid int) (Library, bool) {
	f, name, err := proc.OpenExecutable(pid)
	if err != nil {
		return Library{}, false
	}
	lib := newLibrary(f, Runtime, name)
	offsets, err := lib.functions(func(n []byte) bool { return string(n) == "cudaMalloc" })
	if err != nil || len(offsets) == 0 {
		lib.Close()
		return Library{}, false
	}
	return lib, true
}

// libraryLevel returns the level of the CUDA library that a path names. Wheels contain libcudart under
// names such as libcudart-d0da41ae.so.12.
func libraryLevel(name string) (Level, bool) {
	base := path.Base(name)
	switch {
	case strings.HasPrefix(base, "libcuda.so"), strings.HasPrefix(base, "libcuda-") && strings.Contains(base, ".so"):
		return Driver, true
	case base == "libc10.so":
		return Torch, true
	case base == "libc10_cuda.so":
		return TorchCUDA, true
	case slices.ContainsFunc(vendorLibraries, func(name string) bool { return strings.HasPrefix(base, name+".so") }):
		return Vendor, true
	case strings.HasPrefix(base, "libcudart.so"), strings.HasPrefix(base, "libcudart-") && strings.Contains(base, ".so"):
		return Runtime, true
	}
	return 0, false
}

// vendorLibraries are NVIDIA's libraries that allocate from the kernel driver without libcuda. NVML is
// none: it calls the driver often, and allocates nothing.
var vendorLibraries = []string{"libnvidia-opencl", "libnvidia-glcore", "libnvidia-eglcore", "libnvidia-glsi", "libnvidia-rtcore",
	"libnvoptix", "libnvcuvid", "libEGL_nvidia", "libGLX_nvidia", "libvdpau_nvidia"}

// optional reports whether libraries of a level often have nothing to probe.
func optional(level Level) bool { return level.pyTorch() || level == Vendor }

// pyTorch reports whether l is a library of PyTorch. A program with these alone does not use CUDA.
func (l Level) pyTorch() bool { return l == Torch || l == TorchCUDA }

// openMapping opens the file of one mapping of pid. It does not read the process's other mappings. The
// caller closes it.
//
// The process may be hostile: it can map another file there at any moment, and write to each file that
// its user can write to. These rules hold nevertheless. Each probe lies in a file that the process had
// mapped under the name of a CUDA library. It lies at a function that this file defines under a name of
// the table, or, if the file's SONAME is such a name too, at a call of the C library. It lies in a
// segment that the file marks as executable. So no process can place a probe in a file of another user,
// unless that file is a CUDA library, and then only at the right place. In a file of its own, a process
// can have probes anywhere: in the middle of an instruction, or in code that it changed since. This
// harms those who run the file, whose code its owner chooses anyway. The kernel also writes the
// breakpoint into private read-only mappings of the file that are not executable.
func openMapping(pid int, m proc.Mapping, level Level) (Library, error) {
	f, err := proc.OpenMapped(pid, &m)
	if err != nil {
		return Library{}, fmt.Errorf("open %s of process %d: %w", m.Name(), pid, err)
	}
	return newLibrary(f, level, m.Name()), nil
}

func newLibrary(f *proc.File, level Level, name string) Library {
	return Library{Level: level, Path: name, id: f.ID, file: f}
}

// functions returns the file offsets of the functions that the library defines and whose names match.
// For a library that calls the kernel driver, by name and by SONAME, it also returns those of its calls
// of other libraries, under names that end in @plt. The error is ErrNoSymbols, or one of reading.
func (l Library) functions(match func(name []byte) bool) (map[string]uint64, error) {
	e, err := l.elf()
	if err != nil {
		return nil, err
	}
	offsets, err := e.Functions(match)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrNoSymbols)
	}
	level, ok := libraryLevel(e.SONAME())
	switch {
	case !ok || level != l.Level, level == Driver && len(offsets) == 0, level != Driver && level != Vendor:
		return offsets, nil
	case offsets == nil:
		offsets = map[string]uint64{}
	}
	stubs, err := e.Stubs(func(name []byte) bool { return match(append(slices.Clip(name), imported...)) })
	if err != nil && l.Level == Vendor {
		return nil, fmt.Errorf("%w: %w", err, ErrNoSymbols)
	}
	for name, offset := range stubs { // after an error there are none: they count as missing
		offsets[name+imported] = offset
	}
	return offsets, nil
}

func (l Library) elf() (*proc.ELF, error) {
	e, err := l.file.ELF()
	if errors.Is(err, proc.ErrNotELF) || errors.Is(err, proc.ErrMalformed) {
		return nil, fmt.Errorf("%w: %w", err, ErrNoSymbols)
	}
	return e, err
}
