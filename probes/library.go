package probes

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// A fileID identifies a file whatever path leads to it.
type fileID struct{ dev, ino uint64 }

// A Library is one file that exports CUDA's symbols.
type Library struct {
	Level Level
	Path  string // as the process that maps it sees it
	open  string // as this process reaches it
	id    fileID
}

// maxMaps bounds how much of one /proc/PID/maps is read: a process chooses how
// many mappings it has.
const maxMaps = 32 << 20

// A mappedLibrary is one line of /proc/PID/maps that names a CUDA library.
type mappedLibrary struct {
	level      Level
	span, path string
}

// mappedLibraries returns the CUDA libraries that pid maps, by name, of the
// levels wanted. What it found comes with an error, too.
func mappedLibraries(pid int, levels []Level) ([]mappedLibrary, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	seen := map[string]bool{}
	var out []mappedLibrary
	s := bufio.NewScanner(io.LimitReader(f, maxMaps))
	s.Buffer(make([]byte, 8<<10), 64<<10)
	for s.Scan() {
		span, name, ok := parseExecutable(s.Text())
		if !ok || seen[name] {
			continue
		}
		if level, ok := libraryLevel(name); ok && slices.Contains(levels, level) {
			seen[name] = true
			out = append(out, mappedLibrary{level, span, name})
		}
	}
	if err := s.Err(); errors.Is(err, syscall.ESRCH) {
		return nil, fmt.Errorf("read the mappings of process %d: %w", pid, os.ErrNotExist) // it ended meanwhile
	} else if err != nil {
		return out, fmt.Errorf("read the mappings of process %d: %w", pid, err)
	}
	return out, nil
}

// findLibraries returns the CUDA libraries that pid maps and that can be
// opened. A process that exports the runtime's symbols itself (a static
// libcudart whose symbols survived) counts as a library of level Runtime.
func findLibraries(pid int, levels []Level) ([]Library, error) {
	mapped, err := mappedLibraries(pid, levels)
	var out []Library
	for _, m := range mapped {
		if lib, err := openLibrary(pid, m.span, m.path, m.level); err == nil {
			out = append(out, lib)
		}
	}
	if err != nil {
		return out, err
	}
	if slices.Contains(levels, Runtime) {
		exe := fmt.Sprintf("/proc/%d/exe", pid)
		if id, err := identify(exe); err == nil {
			if syms, err := symbolOffsets(exe, func(n string) bool { return n == "cudaMalloc" }); err == nil && len(syms) > 0 {
				name, _ := os.Readlink(exe)
				out = append(out, Library{Level: Runtime, Path: name, open: exe, id: id})
			}
		}
	}
	return out, nil
}

// parseExecutable returns the address span and the path of a line of
// /proc/PID/maps that maps a file executably. proc(5).
func parseExecutable(line string) (span, name string, ok bool) {
	fields := strings.SplitN(line, " ", 6)
	if len(fields) < 6 || len(fields[1]) < 4 || fields[1][2] != 'x' {
		return "", "", false
	}
	lo, hi, found := strings.Cut(fields[0], "-")
	if !found || !isHex(lo) || !isHex(hi) {
		return "", "", false
	}
	name = strings.TrimSuffix(strings.TrimLeft(fields[5], " "), " (deleted)")
	return fields[0], name, strings.HasPrefix(name, "/")
}

func isHex(s string) bool {
	_, err := strconv.ParseUint(s, 16, 64)
	return err == nil
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
	case strings.HasPrefix(base, "libcudart.so"), strings.HasPrefix(base, "libcudart-") && strings.Contains(base, ".so"):
		return Runtime, true
	}
	return 0, false
}

// openLibrary finds a way to the very file that a process maps: map_files
// leads to the inode, also of a deleted file or one of another mount
// namespace; without CAP_CHECKPOINT_RESTORE, the path under the process's root.
func openLibrary(pid int, span, name string, level Level) (Library, error) {
	for _, p := range []string{
		fmt.Sprintf("/proc/%d/map_files/%s", pid, span),
		fmt.Sprintf("/proc/%d/root%s", pid, path.Clean(name)),
	} {
		if id, err := identify(p); err == nil {
			return Library{Level: level, Path: name, open: p, id: id}, nil
		}
	}
	return Library{}, fmt.Errorf("open %s of process %d: neither map_files nor its root lead there", name, pid)
}

func identify(p string) (fileID, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(p, &st); err != nil {
		return fileID{}, err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return fileID{}, errors.New("not a regular file")
	}
	return fileID{st.Dev, st.Ino}, nil
}

// systemLibraries returns the libraries that a program started now would load:
// those are probed before anyone maps them, so that no call is missed.
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
	seen := map[fileID]bool{}
	for _, level := range levels {
		for _, dir := range dirs {
			for _, name := range names[level] {
				if !path.IsAbs(dir) {
					continue
				}
				p := path.Join(dir, name)
				id, err := identify(p)
				if err == nil && !seen[id] {
					seen[id] = true
					out = append(out, Library{Level: level, Path: p, open: p, id: id})
				}
			}
		}
	}
	return out
}
