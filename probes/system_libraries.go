package probes

import (
	"os"
	"path"
	"strings"
	"sync"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// systemLibraries are the libraries that a program started now would load. The tracer probes them
// before any program maps them, so that it misses no call. It opens them, and finds the places of
// their probes, while the kernel side loads.
type systemLibraries struct {
	opts  *Options
	first chan []Library // once
}

func findSystemLibraries(opts *Options) *systemLibraries {
	s := &systemLibraries{opts, make(chan []Library, 1)}
	go func() {
		libs := openSystemLibraries(opts.levels())
		for i := range libs {
			lib := libs[i]
			libs[i].ahead = sync.OnceValues(func() (sites, error) { return lib.sites(opts.wants) })
			go func() { _, _ = libs[i].ahead() }() // attach has its error
		}
		s.first <- libs
		close(s.first)
	}()
	return s
}

// open returns the libraries. The caller closes them.
func (s *systemLibraries) open() []Library {
	if libs, ok := <-s.first; ok {
		return libs
	}
	return openSystemLibraries(s.opts.levels())
}

// close closes the libraries that nobody asked for.
func (s *systemLibraries) close() {
	go func() {
		for libs := range s.first {
			closeAll(libs)
		}
	}()
}

// openSystemLibraries searches the usual folders. The caller closes the libraries.
func openSystemLibraries(levels []Level) (out []Library) {
	names := map[Level][]string{
		Driver:  {"libcuda.so.1"},
		Runtime: {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"},
	}
	dirs := append(strings.Split(os.Getenv("LD_LIBRARY_PATH"), ":"),
		"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
		"/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/local/cuda/lib64",
		"/usr/local/cuda/compat", "/run/nvidia/driver/usr/lib/x86_64-linux-gnu")
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
