//go:build !cgo

package gpu

import "fmt"

// NVML is a loaded and initialised library. Without cgo there is none.
type NVML struct{ Library }

// Open returns ErrNoCgo.
func Open() (*NVML, error) { return nil, fmt.Errorf("open NVML: %w", ErrNoCgo) }

// OpenLibrary returns ErrNoCgo.
func OpenLibrary(string) (*NVML, error) { return Open() }

// DriverVersion returns ErrNoCgo.
func (*NVML) DriverVersion() (string, error) { return "", ErrNoCgo }

// CUDAVersion returns ErrNoCgo.
func (*NVML) CUDAVersion() (major, minor int, err error) { return 0, 0, ErrNoCgo }
