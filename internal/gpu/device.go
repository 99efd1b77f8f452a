package gpu

import (
	"errors"
	"strconv"
)

var (
	// ErrNoCgo says that this binary cannot load NVML.
	ErrNoCgo = errors.New("this binary was built without cgo, which NVML needs")
	// ErrNoLibrary says that NVML's library could not be loaded.
	ErrNoLibrary = errors.New("NVML library not available")
	// ErrMissing says that the loaded library lacks a function.
	ErrMissing = errors.New("function missing in this NVML library")
	// ErrUnsupported says that NVML cannot tell for this device.
	ErrUnsupported = errors.New("not supported by NVML here")
	// ErrClosed says that Close was called.
	ErrClosed = errors.New("NVML is closed")
	// ErrUnknown says that what was asked cannot be known for sure.
	ErrUnknown = errors.New("not known")
)

// A Device is one GPU, or one MIG instance of one.
type Device struct {
	Index  int    // as NVML and nvidia-smi count; of an instance, its number on its GPU
	UUID   string // "GPU-..." or "MIG-..."; "" when the GPU did not answer
	Name   string // model
	PCI    string // "0000:1b:00.0", "" when not known
	Minor  int    // N of /dev/nvidiaN, -1 when not known
	Memory Memory

	// MIG says that the GPU is split: its Instances, not itself, run programs.
	MIG       bool
	Instances []Device

	// Of an instance: its GPU's UUID and Index, and its ids there.
	Parent                       string
	ParentIndex                  int
	GPUInstance, ComputeInstance int
	// Reason why the GPU did not answer, "" when it did.
	Reason string
}

// Label is what a GPU label shows: "0", or "0:1" for instance 1 of GPU 0.
func (d Device) Label() string {
	if d.Parent != "" {
		return strconv.Itoa(d.ParentIndex) + ":" + strconv.Itoa(d.Index)
	}
	return strconv.Itoa(d.Index)
}

// Memory is a device's memory in bytes. All zero when not Known.
type Memory struct {
	Total, Used, Free int64
	// Reserved is the driver's own part. It is in none of Used and Free; with
	// a library too old to tell it is 0 and Used includes it.
	Reserved int64
	Known    bool
}

// A ProcessUse is what one process holds on one device.
type ProcessUse struct {
	PID   int    // in our PID namespace, 0 when it is of another
	Name  string // comm, raw: escape it before it reaches a terminal; "" when not known
	Bytes int64  // 0 unless Known
	Known bool
	// Inferred: Bytes was not reported for this PID, but can be no one else's.
	// Taken from the device's total it includes a few MiB of the driver's.
	Inferred bool
}
