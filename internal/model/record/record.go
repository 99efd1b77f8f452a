// Package record has the records that the sources of a trace report, and the file that
// holds them (a recording). A state is made of records alone, one after another: the same
// records give the same state, on any machine.
//
// A Writer never waits for the disk, and a Reader trusts nothing in a file. What either
// loses it counts. It reads files of its own version alone.
package record

import (
	"sync/atomic"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A Record is one report of a source: an *event.Event, or one of this package's types but
// Place. Its receiver does not change it, and copies an *event.Event to use it later: the
// source uses its memory again.
type Record interface{ Record() }

// A Trace says what is traced, and how. It is the first record, and comes again
// when any of it changes.
type Trace struct {
	Version, CommandLine string
	Target               string // such as "pid 4711 (python3)"
	StackMode            string // how stacks are captured, for people
	Driver               string // version of NVIDIA's driver, "" when not known
	// Start is when the trace began. Events of that very time are of what was there before.
	Start time.Time
	// Boot is the wall-clock time at which CLOCK_MONOTONIC was zero: what the
	// times of records count from.
	Boot time.Time
	// All: every process is traced. The trace has no last target, and a process
	// that ended is shown until a report was made.
	All bool
	// NVML: there are Readings. Without them GPUs go by their CUDA ordinals.
	NVML bool
	// Physical: the calls of the kernel driver are traced, so that every byte that it
	// hands out has an event.
	Physical bool
	// Initial: the tracer is in the initial PID namespace, so that the driver
	// lists every process.
	Initial bool
	MaxLive int // live allocations with a row of their own, 0 for the default
	// Incidents is how many failures for want of memory are reported, each with
	// all that was live then.
	Incidents int
	APIs      []string // names by event.Event.API and Outer; 0 is none
}

// API returns the name of a function by event.Event.API or Outer, "" for none.
func (t *Trace) API(row uint16) string {
	if int(row) < len(t.APIs) {
		return t.APIs[row]
	}
	return ""
}

// A Stack is a call stack. It comes before or soon after the first event that names it,
// and once more if an event names it again after a Sweep.
type Stack struct {
	ID      uint64
	Process event.Process
	Frames  []*Place // leaf first
	// Modules are the addresses of the modules of PyTorch that were called, innermost first.
	// A Heap has their paths.
	Modules []uint64
}

// A Place is one address of a process, or a frame of an interpreter. Stacks
// share it. Its name may come later, as a Name.
type Place struct {
	ID      uint64 // given by the source, from 1 on
	Address uint64 // 0 for an interpreter's frame
	// Source is for the source alone, which needs it to find the name.
	Source any

	location atomic.Pointer[snapshot.Location]
	naming   atomic.Uint32 // unnamed, named, final
}

const (
	unnamed = iota
	named
	final
)

// NewPlace returns a Place. location is its name, nil if that is to come.
func NewPlace(id, address uint64, location *snapshot.Location, source any) *Place {
	p := &Place{ID: id, Address: address, Source: source}
	if location != nil {
		p.location.Store(location)
		p.naming.Store(final)
	}
	return p
}

// Named reports whether the source looked for a name.
func (p *Place) Named() bool { return p.naming.Load() != unnamed }

// Final reports whether looking for a name again is of no use.
func (p *Place) Final() bool { return p.naming.Load() == final }

// Location returns the Place's name, or a substitute while there is none.
// The same name is the same pointer.
func (p *Place) Location() *snapshot.Location {
	if l := p.location.Load(); l != nil {
		return l
	}
	p.location.CompareAndSwap(nil, &snapshot.Location{Address: p.Address, Lines: []snapshot.Line{{Function: snapshot.NotNamed, Reason: notNamed}}})
	return p.location.Load()
}

const notNamed = "the trace was read before its name was"

// A Name is the name of a Place.
type Name struct {
	Place    *Place
	Location *snapshot.Location
	Final    bool // false: a later look may find a better one
}

// Apply gives the Place its name.
func (n *Name) Apply() {
	n.Place.location.Store(n.Location)
	if n.Final {
		n.Place.naming.Store(final)
	} else {
		n.Place.naming.Store(named)
	}
}

// A Process describes a process. Fields that are not known are zero, and leave earlier
// values as they are.
type Process struct {
	Process event.Process
	Target  bool   // it is traced from here on; else it is known already, or was
	Name    string // comm
	// FromStart: it was traced before its first allocation.
	FromStart bool
	Program   *snapshot.Mapping // the file that it runs
	User      User              // that it runs as
	Who       snapshot.Who      // who it belongs to
	Parent    uint32            // PID of its parent
	// ParentEnd is when its parent, which ran the same program, ended while it held memory on
	// GPUs, in nanoseconds of CLOCK_MONOTONIC.
	ParentEnd uint64
}

// A User is one user of the machine, the zero User none that is known.
type User uint64

// UserOf returns the User with a number.
func UserOf(uid uint32) User { return User(uid) + 1 }

// ID returns the user's number, if it is known.
func (u User) ID() (uid uint32, known bool) { return uint32(u - 1), u != 0 }

// A Subject is a process whose figures the driver is asked for, with the numbers that it
// uses for devices.
type Subject struct {
	Process  event.Process
	Ordinals []int32
}

// A Reading has the driver's figures of one moment: of GPUs, and of how much each process
// holds on them.
type Reading struct {
	// Begin and Time are CLOCK_MONOTONIC in nanoseconds: before the first of its
	// figures was read, and when all of them had been.
	Begin, Time uint64
	Devices     []Device
	Uses        []Use
	// Ordinals are devices by the number that a process uses for them, as far
	// as they are known.
	Ordinals []Ordinal
}

// A Device is one GPU, or an instance of one.
type Device struct {
	UUID  string
	Label string // as snapshot.Labels.GPU
	Name  string // model
	// GPU is the kernel driver's number of the GPU, if GPUKnown: PCI domain << 16
	// | bus << 8 | device, as gpuGenerate32BitId of NVIDIA's
	// open-gpu-kernel-modules makes it.
	GPU      uint32
	GPUKnown bool
	Instance int32 // the GPU instance of MIG that this is (of), -1 for a whole GPU
	// Total is the GPU's bytes, 0 where they are not known. Used and Free are bytes, if MemoryKnown.
	Total, Used, Free int64
	MemoryKnown       bool
	// Listed: Processes are all that the driver shows on it.
	Listed    bool
	Processes []snapshot.GPUProcess
}

// A Use is how much a traced process holds on a device, as the driver lists it.
type Use struct {
	Process  event.Process
	Device   int // index into Reading.Devices
	Bytes    int64
	Known    bool // the driver reports Bytes
	Inferred bool // they are the whole device's, on which this is the only process
}

// An Ordinal says which device a process calls by a number. event.NoDevice is
// the device of memory whose context was never seen: known where the process
// uses one only.
type Ordinal struct {
	Process event.Process
	Ordinal int32
	Device  int // index into Reading.Devices
}

// A Loss has the counters of what the sources lost so far. It replaces the one before.
// The stacks of earlier events come before it, as far as they could be read in time.
type Loss struct {
	Counters []loss.Counter
	Notes    []string // sentences about losses, and about reasons why a source is slow
}

// A Note is a sentence that a reader of the trace must know.
type Note struct {
	Text string
}

// Tensors says when tensors are traced.
type Tensors struct {
	// Time is CLOCK_MONOTONIC in nanoseconds.
	Time uint64
	// Window says whether tensors are traced in windows only.
	Window Window
}

// A Window is how tensors are traced in windows. The zero value says that they always are.
type Window struct {
	// Length and Every are nanoseconds that were asked for: how long each window lasts at least,
	// and the time from the beginning of one to that of the next.
	Length, Every uint64
	// Open: a window begins at the Time of the record, which comes before the window's events.
	// Otherwise the window ends then, if one is open, and later events of tensors do not count.
	Open bool
}

// An Allocator says which settings of PYTORCH_CUDA_ALLOC_CONF PyTorch's allocator has in a process.
type Allocator struct {
	Process  event.Process
	Settings string
}

// A Moment says what time it is, in nanoseconds of CLOCK_MONOTONIC.
type Moment struct {
	Time uint64
	// Slept is how long the machine was suspended since boot. Start times of processes
	// include it, times of events do not.
	Slept uint64
	// Drained: every event from before Time has come.
	Drained bool
}

// A Sweep makes room among the stacks. It has two steps: the first marks those that
// nothing refers to; the second (Drop) drops the marked ones that did not come again and
// that nothing refers to since. In between the source makes sure that it reports a marked
// stack again when an event names it.
type Sweep struct {
	Drop bool
}

// A Reported says that the figures up to now were stored elsewhere. Where every process is
// traced, those that ended are shown no more. Later allocations are counted apart from
// earlier ones.
type Reported struct{}

// A Cut says that the records before it were dropped. The records after it rebuild what was
// live.
type Cut struct {
	Time uint64
}

// Record marks a Trace as a Record.
func (*Trace) Record() {}

// Record marks a Stack as a Record.
func (*Stack) Record() {}

// Record marks a Name as a Record.
func (*Name) Record() {}

// Record marks a Process as a Record.
func (*Process) Record() {}

// Record marks a Reading as a Record.
func (*Reading) Record() {}

// Record marks a Loss as a Record.
func (*Loss) Record() {}

// Record marks a Note as a Record.
func (*Note) Record() {}

// Record marks a Moment as a Record.
func (*Moment) Record() {}

// Record marks a Sweep as a Record.
func (*Sweep) Record() {}

// Record marks a Reported as a Record.
func (*Reported) Record() {}

// Record marks Tensors as a Record.
func (*Tensors) Record() {}

// Record marks an Allocator as a Record.
func (*Allocator) Record() {}

// Record marks a Cut as a Record.
func (*Cut) Record() {}
