package probes

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A Library is one file that exports CUDA's symbols, held open. Everything that
// is asked of it, and every probe that is put on it, goes by the descriptor:
// its path may lead elsewhere at any moment.
type Library struct {
	Level Level
	Path  string // as a process that maps it sees it: that process chose it
	id    proc.FileID
	file  *proc.File
	ahead func() (sites, error) // what sites returns, if it is found already
}

// Close gives the descriptor back. Level and Path stay.
func (l Library) Close() error { return l.file.Close() }

func closeAll(libs []Library) {
	for _, l := range libs {
		l.Close()
	}
}

// A mappedLibrary is a mapping of a file that is named like a CUDA library.
type mappedLibrary struct {
	proc.Mapping
	level Level
}

// maxLibraries bounds the CUDA libraries that are looked at in one process.
const maxLibraries = 64

var errTooMany = fmt.Errorf("it maps more than %d CUDA libraries", maxLibraries)

// mappedLibraries returns the CUDA libraries that pid maps, by name, of the
// levels wanted. What it found comes with an error, too.
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

// findLibraries opens the CUDA libraries that pid maps. A process that exports
// the runtime's symbols itself (a static libcudart whose symbols survived)
// counts as a library of level Runtime. The caller closes them; with an error
// there are none.
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

// staticRuntime opens pid's program if it defines the runtime's functions.
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

// libraryLevel tells from a path whether it names a CUDA library. Wheels carry
// libcudart under names such as libcudart-d0da41ae.so.12.
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

// vendorLibraries are those of NVIDIA's that take memory from the kernel driver
// without libcuda. NVML asks it often, and takes none.
var vendorLibraries = []string{"libnvidia-opencl", "libnvidia-glcore", "libnvidia-eglcore", "libnvidia-glsi", "libnvidia-rtcore",
	"libnvoptix", "libnvcuvid", "libEGL_nvidia", "libGLX_nvidia", "libvdpau_nvidia"}

// optional tells whether a library of a level may well have nothing to probe.
func optional(level Level) bool { return level.pyTorch() || level == Vendor }

// pyTorch tells whether l is of PyTorch's libraries: they alone make no CUDA program.
func (l Level) pyTorch() bool { return l == Torch || l == TorchCUDA }

// openMapping opens the very file that one mapping of pid maps, without a look
// at the process's other mappings. The caller closes it.
//
// The process is hostile: it may map another file there at any moment, and write
// any file that its user may write. What holds all the same: each probe lies in a
// file that the process had mapped under a CUDA library's name, at a function that
// this very file defines under a name of the table, or, if the file calls itself
// by such a name too, where it calls the C library; in a segment that it says is
// loaded executably. So nobody gets a probe into a file of somebody else unless
// that file is a CUDA library, and then only where it belongs. In a file of its
// own, a process may have probes wherever it likes, in the middle of an
// instruction too, or where its code no longer is what it was when it was read.
// That harms those who run the file, whose code its owner chooses anyway. The
// kernel also writes the breakpoint into private read-only mappings of the file
// that are not executable.
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

// functions returns the file offsets of the functions that the library defines
// and whose names match; and, under names that end in @plt, those of where it calls
// functions of other libraries, if it is one that calls the kernel driver and calls
// itself so. The error is ErrNoSymbols, or why it cannot be read.
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
	for name, offset := range stubs { // none with an error: they count as missing
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

// systemLibraries opens the libraries that a program started now would load:
// those are probed before anyone maps them, so that no call is missed. The
// caller closes them.
func systemLibraries(levels []Level) []Library {
	names := map[Level][]string{
		Driver:  {"libcuda.so.1"},
		Runtime: {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"},
	}
	dirs := append(strings.Split(os.Getenv("LD_LIBRARY_PATH"), ":"),
		"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
		"/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/local/cuda/lib64",
		"/usr/local/cuda/compat", "/run/nvidia/driver/usr/lib/x86_64-linux-gnu")
	var out []Library
	seen := map[proc.FileID]bool{}
	for _, level := range levels {
		for _, dir := range dirs {
			for _, name := range names[level] {
				if !path.IsAbs(dir) {
					continue
				}
				p := path.Join(dir, name)
				f, err := proc.Open(p)
				if err != nil {
					continue
				}
				if seen[f.ID] {
					f.Close()
					continue
				}
				seen[f.ID] = true
				out = append(out, newLibrary(f, level, p))
			}
		}
	}
	return out
}
