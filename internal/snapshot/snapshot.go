// Package snapshot is the one input of every output: who held how much GPU
// memory at one moment, symbolized, with what was lost. It is a leaf: it
// imports only loss of this module, and it holds no pid's memory, no BPF map and
// no open file.
package snapshot

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/loss"
)

// A Snapshot is the state of a trace at one moment.
type Snapshot struct {
	Meta    Meta
	Samples []Sample
	// Mappings has each one that a location of Samples is in, the first
	// process's program before all.
	Mappings  []*Mapping
	Processes []Process
	// Accounts split what the driver reports for each process on each GPU.
	Accounts []Account
	// Live has one row for each live allocation, only when it was asked for.
	Live []Allocation
	// Loss has one entry for each cause, zero ones included. Outputs show the
	// entries that are not zero.
	Loss []loss.Counter
	// Notes are sentences that a reader of the profile must know, such as
	// symbols that the driver lacks.
	Notes []string
}

// Meta says where a snapshot comes from.
type Meta struct {
	Version     string    // of gpumemtrace
	CommandLine string    // of gpumemtrace
	Target      string    // what was traced, such as "pid 4711 (python3)"
	Driver      string    // NVIDIA driver version, "" when not known
	StackMode   string    // how stacks were captured
	Start       time.Time // when the probes were on
	Duration    time.Duration
	Events      uint64 // received from the kernel
}

// A Sample is one call stack with one set of labels.
type Sample struct {
	// Stack is leaf first. Locations are shared between samples: compare
	// pointers to find equal ones.
	Stack []*Location
	Labels
	Values
}

// Frames returns the stack, or the one frame that stands for a stack that could
// not be captured.
func (s *Sample) Frames() []*Location {
	if len(s.Stack) == 0 {
		return noStack
	}
	return s.Stack
}

var noStack = []*Location{{Lines: []Line{{Function: "[no stack]"}}}}

// A Location is one address of a stack, or a frame that has no address
// (an interpreter's, an API's name, a synthetic one such as "[cached]").
type Location struct {
	Address uint64   // as captured in the process; 0 for none
	Mapping *Mapping // nil for none
	// Lines are the functions at Address, innermost inlined function first.
	// Never empty: an address without a name has one Line whose Function is
	// "module+0xoffset" and whose Reason says why.
	Lines []Line
}

// A Line is one function of a Location.
type Line struct {
	Function string // demangled, or as the interpreter names it
	System   string // the linkage name, when it differs from Function
	File     string
	Line     int
	// Reason why there is no name, "" when there is one.
	Reason string
}

// A Mapping is one executable file mapping of a process.
type Mapping struct {
	Start, Limit, Offset uint64
	Path                 string
	BuildID              string // lower-case hex of the GNU build id, "" for none
	HasLines             bool
}

// A Process has the totals of one traced process.
type Process struct {
	PID    int
	Name   string // comm
	Exited bool
	// Inuse, Peak and Allocated are bytes of owned device memory.
	Inuse, Peak, Allocated int64
	// Managed, Host, Imported and Graph are live bytes of those classes,
	// in none of the device figures.
	Managed, Host, Imported, Graph int64
	LiveObjects                    int64
	Failed                         int64 // failed allocation calls
	OutOfMemory                    int64 // those that failed for want of memory
	// UnmatchedFrees are frees of addresses never seen allocated: memory
	// from before the trace began.
	UnmatchedFrees int64
	// Async is the part of Inuse that came from stream-ordered memory pools,
	// and AsyncHigh the most that the pools may hold for it: the highest use
	// of each since it was last trimmed.
	Async, AsyncHigh int64
	// Unattributed is live device memory that --max-live left without a row,
	// and Unknown what may be live besides, in no other figure, because too
	// much was left so.
	Unattributed, Unknown int64
}

// An Account is what the driver reports for one process on one GPU, and the
// parts that it is made of.
type Account struct {
	PID     int
	Process string // comm
	GPU     string // as Labels.GPU
	// Total is the driver's figure in bytes, if Known. Inferred: it is the
	// whole GPU's, on which this is the only process.
	Total    int64
	Known    bool
	Inferred bool
	// Lines add up to Total. Those in brackets are synthetic frames of the
	// profile too.
	Lines []AccountLine
}

// An AccountLine is one part of an Account.
type AccountLine struct {
	Name     string // "tracked", "[cuda context and driver]", ...
	Bytes    int64
	Inferred bool   // an estimate took part in it
	Note     string // what a reader must know, "" for nothing
}

// An Allocation is one live allocation.
type Allocation struct {
	Sample int // index into Samples
	// Address is where it lies, or else Handle what the driver calls it:
	// physical memory, arrays, external memory. One of them is 0.
	Address, Handle uint64
	Size            int64
	Time            time.Time
}

// An OutOfMemory is one failure for want of memory, and everything live at that
// moment.
type OutOfMemory struct {
	Time    time.Time
	PID     int
	Process string // comm
	Thread  int    // as PID counts
	// Requested bytes, by the call API.
	Requested int64
	API       string
	Calls     int    // driver calls that failed; 0 for a framework's own limit
	GPU       string // as Labels.GPU
	Stack     []*Location
	// Recovered: a call for as many bytes on the same thread succeeded soon
	// after, as when a framework frees its cache and tries again.
	Recovered bool
	// Framework is what the framework's allocator said, nil if none did.
	Framework *FrameworkMemory
	GPUs      []GPUMemory
	Snapshot  *Snapshot
}

// FrameworkMemory is what a caching allocator was asked for, had handed out,
// and held, in bytes.
type FrameworkMemory struct {
	Name                           string // "PyTorch"
	Requested, Allocated, Reserved int64
}

// GPUMemory is one GPU as the driver sees it.
type GPUMemory struct {
	GPU, Name         string
	Total, Used, Free int64 // bytes
	Processes         []GPUProcess
}

// A GPUProcess is one process on a GPU.
type GPUProcess struct {
	PID   int
	Name  string
	Bytes int64
	Known bool // whether the driver tells Bytes
}
