package gpu

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
)

var (
	// ErrNoCgo is the error of a binary that cannot load NVML.
	ErrNoCgo = errors.New("this binary was built without cgo, which NVML needs")
	// ErrNoLibrary is the error of loading NVML's library.
	ErrNoLibrary = errors.New("NVML library not available")
	// ErrMissing is the error of a function that the loaded library lacks.
	ErrMissing = errors.New("function missing in this NVML library")
	// ErrUnsupported is NVML's error of a question that it cannot answer for a device.
	ErrUnsupported = errors.New("not supported by NVML here")
	// ErrClosed is the error of a call after Close.
	ErrClosed = errors.New("NVML is closed")
	// ErrUnknown is the error of an uncertain answer.
	ErrUnknown = errors.New("not known")
)

// A Device is one GPU, or one MIG instance of one.
type Device struct {
	Index  int    // in NVML's and nvidia-smi's order; of an instance, on its GPU
	UUID   string // "GPU-..." or "MIG-..."; "" if the GPU did not answer
	Name   string // model
	PCI    PCI
	Minor  int // N of /dev/nvidiaN, -1 if it is not known
	Memory Memory

	// MIG: the GPU is divided. Its Instances run programs, not the GPU itself.
	MIG       bool
	Instances []Device

	// Of an instance: its GPU's UUID and Index, and its ids there.
	Parent                       string
	ParentIndex                  int
	GPUInstance, ComputeInstance int
	// Reason why the GPU did not answer, "" if it did.
	Reason string
}

// Label returns the text of a GPU label: "0", or "0:1" for instance 1 of GPU 0.
func (d Device) Label() string {
	if d.Parent != "" {
		return strconv.Itoa(d.ParentIndex) + ":" + strconv.Itoa(d.Index)
	}
	return strconv.Itoa(d.Index)
}

// A PCI is a GPU's place on the PCI bus. All fields are zero if it is not Known.
type PCI struct {
	Domain      uint32
	Bus, Device uint8
	Known       bool
}

// compare orders places by their numbers on the bus.
func (p PCI) compare(q PCI) int {
	return cmp.Or(cmp.Compare(p.Domain, q.Domain), cmp.Compare(p.Bus, q.Bus), cmp.Compare(p.Device, q.Device))
}

// id returns the kernel driver's number for the GPU there: gpuGenerate32BitId of NVIDIA's
// open-gpu-kernel-modules. It has only 16 bits of the domain.
func (p PCI) id() uint32 { return p.Domain<<16 | uint32(p.Bus)<<8 | uint32(p.Device) }

// driverID returns the kernel driver's number for d, which is one of devices. It is not known if two GPUs have
// the same number, because their domains differ only in the upper half (in a virtual machine of Hyper-V).
func driverID(d Device, devices []Device) (id uint32, known bool) {
	for _, other := range devices {
		if other.PCI.Known && other.PCI != d.PCI && other.PCI.id() == d.PCI.id() {
			return 0, false
		}
	}
	return d.PCI.id(), d.PCI.Known
}

// Memory is a device's memory in bytes. All fields are zero if it is not Known.
type Memory struct {
	Total, Used, Free int64
	// Reserved is the driver's own part, which Used and Free do not include. With an old library
	// it is 0, and Used includes it.
	Reserved int64
	Known    bool
}

// A ProcessUse is the memory of one process on one device.
type ProcessUse struct {
	PID   int    // in our PID namespace, 0 for a process of another one
	Name  string // comm, raw: escape it before it reaches a terminal; "" if it is not known
	Bytes int64  // 0 unless Known
	Known bool
	// Inferred: NVML did not report Bytes for this PID, but no other process is possible. If it is
	// the device's total, it includes a few MiB of the driver.
	Inferred bool
}

// pageSize divides every figure that NVML returns for a process. Another number means "not available".
const pageSize = 4096

// A listing is NVML's list of the processes on one device, with what is needed to trust it.
type listing struct {
	entries []entry
	total   int64 // bytes of the device, the most that a process can hold
	absent  bool  // NVML has no list for this device
	initial bool  // we are in the initial PID namespace
	trusted bool  // the PIDs are of our namespace
	memory  Memory
	holders func() []int // processes here that have the device open
}

type entry struct {
	pid   int // from NVML
	bytes int64
	known bool
	name  string
}

// add adds one row of one of NVML's lists. A process in two lists has its whole use in both. The larger one
// counts.
func (l *listing) add(pid int, used uint64) {
	e := entry{pid: pid}
	// A listed process has at least a context: 0 is no answer, nor is NVML_VALUE_NOT_AVAILABLE (all
	// ones).
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

// check decides whether the PIDs are of our namespace. Outside the initial one, they are if each belongs to a
// process that has the device open: all PIDs of another namespace would have to fit by chance.
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

// use returns pid's row, or a figure that no other process can have.
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
	// A driver that reports foreign PIDs lists every process, so one row is one process. Without a
	// list, only the initial namespace shows all processes.
	alone := len(l.entries) == 1 || l.absent && l.initial
	if !alone || !slices.Equal(l.holders(), []int{pid}) {
		return unknown
	}
	if len(l.entries) == 1 && l.entries[0].known {
		return ProcessUse{PID: pid, Bytes: l.entries[0].bytes, Known: true, Inferred: true}
	}
	return l.whole(pid)
}

// whole returns the used memory of the device, as that of its only process.
func (l *listing) whole(pid int) ProcessUse {
	if !l.memory.Known || l.memory.Used == 0 {
		return ProcessUse{PID: pid}
	}
	return ProcessUse{PID: pid, Bytes: l.memory.Used, Known: true, Inferred: true}
}
