package gpu

import (
	"cmp"
	"errors"
	"slices"
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
	PCI    PCI
	Minor  int // N of /dev/nvidiaN, -1 when not known
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

// A PCI is a GPU's place on the PCI bus. All zero when not Known.
type PCI struct {
	Domain      uint32
	Bus, Device uint8
	Known       bool
}

// compare orders places as the bus is numbered.
func (p PCI) compare(q PCI) int {
	return cmp.Or(cmp.Compare(p.Domain, q.Domain), cmp.Compare(p.Bus, q.Bus), cmp.Compare(p.Device, q.Device))
}

// id is what the kernel driver calls the GPU there: gpuGenerate32BitId of
// NVIDIA's open-gpu-kernel-modules. It has 16 bits of the domain only.
func (p PCI) id() uint32 { return p.Domain<<16 | uint32(p.Bus)<<8 | uint32(p.Device) }

// driverID returns what the kernel driver calls d, which is one of devices. It
// is not known where domains differ in their upper half alone (a virtual
// machine of Hyper-V), so that two GPUs are called the same.
func driverID(d Device, devices []Device) (id uint32, known bool) {
	for _, other := range devices {
		if other.PCI.Known && other.PCI != d.PCI && other.PCI.id() == d.PCI.id() {
			return 0, false
		}
	}
	return d.PCI.id(), d.PCI.Known
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

// pageSize divides every figure that NVML gives for a process. What it does
// not divide is a stand-in for "not available".
const pageSize = 4096

// A listing is what NVML says of the processes on one device, and what tells
// whether to believe it.
type listing struct {
	entries []entry
	total   int64 // bytes of the device: no process holds more
	absent  bool  // NVML has no list for this device
	initial bool  // we are in the initial PID namespace
	trusted bool  // the pids are ours
	memory  Memory
	holders func() []int // processes here that have the device open
}

type entry struct {
	pid   int // as NVML says
	bytes int64
	known bool
	name  string
}

// add takes one row of one of NVML's lists. A process in two lists has its
// whole use in both: the larger counts.
func (l *listing) add(pid int, used uint64) {
	e := entry{pid: pid}
	// Listed, a process has a context at least: 0 is no answer, and neither is
	// NVML_VALUE_NOT_AVAILABLE (all ones).
	if used > 0 && used <= uint64(l.total) && used%pageSize == 0 {
		e.bytes, e.known = int64(used), true
	}
	for i := range l.entries {
		if l.entries[i].pid == pid {
			if e.known && e.bytes > l.entries[i].bytes {
				l.entries[i] = e
			}
			return
		}
	}
	l.entries = append(l.entries, e)
}

// check decides whether the pids are of our namespace. Outside the initial one they
// are taken for ours if each is that of a process which has the device open: those
// of another namespace would all have to fit by chance.
func (l *listing) check(holds func(pid int) bool) {
	l.trusted = !l.absent && (l.initial || len(l.entries) > 0 &&
		!slices.ContainsFunc(l.entries, func(e entry) bool { return !holds(e.pid) }))
}

func (l *listing) uses() []ProcessUse {
	var all []ProcessUse
	for _, e := range l.entries {
		u := ProcessUse{Bytes: e.bytes, Known: e.known}
		if l.trusted {
			u.PID, u.Name = e.pid, e.name
		}
		all = append(all, u)
	}
	return all
}

// use returns pid's row, or a figure that can be of no other process.
func (l *listing) use(pid int) ProcessUse {
	unknown := ProcessUse{PID: pid}
	if l.trusted {
		i := slices.IndexFunc(l.entries, func(e entry) bool { return e.pid == pid })
		switch {
		case i < 0:
			return unknown
		case l.entries[i].known:
			return ProcessUse{PID: pid, Bytes: l.entries[i].bytes, Known: true}
		case len(l.entries) == 1 && l.initial:
			return l.whole(pid)
		}
		return unknown
	}
	// A driver that reports foreign pids lists every process, so one row is
	// one process. Without a list only the initial namespace shows them all.
	alone := len(l.entries) == 1 || l.absent && l.initial
	if !alone || !slices.Equal(l.holders(), []int{pid}) {
		return unknown
	}
	if len(l.entries) == 1 && l.entries[0].known {
		return ProcessUse{PID: pid, Bytes: l.entries[0].bytes, Known: true, Inferred: true}
	}
	return l.whole(pid)
}

// whole is all that is used of the device, given to its only process.
func (l *listing) whole(pid int) ProcessUse {
	if !l.memory.Known || l.memory.Used == 0 {
		return ProcessUse{PID: pid}
	}
	return ProcessUse{PID: pid, Bytes: l.memory.Used, Known: true, Inferred: true}
}
