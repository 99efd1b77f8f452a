//go:build cgo

package gpu

import (
	"cmp"
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// symbols is the loaded library, to look up symbols.
type symbols interface {
	Lookup(name string) error
	Close() error
}

// NVML is a loaded and initialised library. Several goroutines may call its methods, which run one at a time.
type NVML struct {
	mu   sync.Mutex
	lib  nvml.Interface
	syms symbols
	host host
	done bool
}

// Open loads libnvidia-ml.so.1 from the dynamic linker's path. Its errors are ErrNoCgo, ErrNoLibrary (with the
// linker's reason), ErrMissing, or NVML's own if the driver is absent or has another version.
func Open() (*NVML, error) { return OpenLibrary("libnvidia-ml.so.1") }

// OpenLibrary is Open with another name or path of the library.
func OpenLibrary(path string) (*NVML, error) {
	// It is loaded here first, because go-nvml's Init drops the linker's reason, and calls nvmlInit even
	// if it is missing.
	so := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := so.Open(); err != nil {
		return nil, fmt.Errorf("open NVML: %w: %w", ErrNoLibrary, err)
	}
	return start(nvml.New(nvml.WithLibraryPath(path)), so, here())
}

func start(lib nvml.Interface, syms symbols, host host) (*NVML, error) {
	n := &NVML{lib: lib, syms: syms, host: host}
	err := cmp.Or(n.require("nvmlErrorString"), n.require("nvmlShutdown"))
	if err == nil {
		err = n.call(lib.Init, "nvmlInit_v2", "nvmlInit")
	}
	if err != nil {
		_ = syms.Close()
		return nil, fmt.Errorf("open NVML: %w", err)
	}
	return n, nil
}

// Close shuts NVML down. Calls after it return ErrClosed.
func (n *NVML) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.done {
		return nil
	}
	err := n.call(n.lib.Shutdown, "nvmlShutdown")
	n.done = true
	if cerr := n.syms.Close(); err == nil && cerr != nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("close NVML: %w", err)
	}
	return nil
}

// DriverVersion returns the kernel driver's version, such as "580.159.04".
func (n *NVML) DriverVersion() (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, err := value(n, n.lib.SystemGetDriverVersion, "nvmlSystemGetDriverVersion")
	if err != nil {
		return "", fmt.Errorf("read driver version: %w", err)
	}
	return v, nil
}

// CUDAVersion returns the newest CUDA version that the driver supports.
func (n *NVML) CUDAVersion() (major, minor int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, err := value(n, n.lib.SystemGetCudaDriverVersion_v2, "nvmlSystemGetCudaDriverVersion_v2")
	if err != nil {
		return 0, 0, fmt.Errorf("read CUDA version: %w", err)
	}
	// NVML_CUDA_DRIVER_VERSION_MAJOR and _MINOR.
	return v / 1000, v % 1000 / 10, nil
}

// require returns ErrMissing unless the library has one of names.
func (n *NVML) require(names ...string) error {
	if n.done {
		return ErrClosed
	}
	for _, name := range names {
		if n.syms.Lookup(name) == nil {
			return nil
		}
	}
	return fmt.Errorf("%s: %w", names[0], ErrMissing)
}

// call calls f, which needs one of names. The binding trusts the counts that the library returns. If that makes
// it panic, call returns an error.
func (n *NVML) call(f func() nvml.Return, names ...string) (err error) {
	if err := n.require(names...); err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: inconsistent answer: %v", names[0], r)
		}
	}()
	switch ret := f(); ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return fmt.Errorf("%s: %w", names[0], ErrUnsupported)
	default:
		// as text: NVML's types stay in this package
		return fmt.Errorf("%s: %s (%d)", names[0], ret.Error(), int(ret))
	}
}

// value is call for a function that returns one value.
func value[T any](n *NVML, f func() (T, nvml.Return), names ...string) (v T, err error) {
	err = n.call(func() (ret nvml.Return) {
		v, ret = f()
		return ret
	}, names...)
	return v, err
}
