// Package snapshot is the one input of every output: how much GPU memory each process and
// call stack held at one moment, with names, and with counters of what was lost. It is a
// leaf: it imports only holder and loss of this module, and has no BPF map and no open file. The keys
// in json tags are those of the JSON output.
package snapshot

import (
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
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
	// GPUs are those of the machine, only when they were asked for and the driver was
	// asked.
	GPUs []GPUMemory
	// Allocators are frameworks' caching allocators that tensors were seen of.
	Allocators []Allocator
	// Live has one row for each live allocation, only when it was asked for.
	Live []Allocation
	// Freed says where tensors were freed, only when it was asked for and frees have
	// stacks.
	Freed []Freed
	// Heaps are the last readings of processes' heaps, only when they were asked for.
	Heaps []Heap
	// Steps are the training steps of processes, only when they were asked for.
	Steps []Steps
	// Windowed are the tensors that were seen in windows, only when they were asked for.
	Windowed []Windowed
	// Layout is where memory lies, only when it was asked for.
	Layout *Layout
	// Loss has one entry for each cause, zero ones included. Outputs show the
	// entries that are not zero.
	Loss []loss.Counter
	// Notes are sentences that a reader of the profile must know, such as
	// symbols that the driver lacks.
	Notes []string
}

// Ended reports whether processes were seen, and all of them have ended.
func (s *Snapshot) Ended() bool {
	return len(s.Processes) > 0 && !slices.ContainsFunc(s.Processes, func(p Process) bool { return !p.Exited })
}

// Held returns of v what is shown: what was held at the peaks, or what is in use.
func (m *Meta) Held(v *Values) int64 {
	if m.Peaks {
		return v.PeakBytes
	}
	return v.InuseBytes
}

// Meta says where a snapshot comes from.
type Meta struct {
	Version     string        `json:"version"`      // of gpumemtrace
	CommandLine string        `json:"command_line"` // of gpumemtrace
	Target      string        `json:"target"`       // what was traced, such as "pid 4711 (python3)"
	Driver      string        `json:"driver"`       // version of NVIDIA's kernel driver, "" when not known
	StackMode   string        `json:"stack_mode"`   // how stacks were captured
	Start       time.Time     `json:"start"`        // when the probes were on
	Duration    time.Duration `json:"duration_ns"`
	Events      uint64        `json:"events"` // received from the kernel
	// Moment says which moment of a recording is shown, such as "at the peak, 14.2s after the trace
	// began"; "" for the time until which was traced.
	Moment string `json:"moment,omitempty"`
	// Peaks: what is shown are the peaks of processes, because all of them have ended.
	Peaks bool `json:"peaks,omitempty"`
	// Windows says in which windows tensors were traced, nil if they were not, or always.
	Windows *TensorWindows `json:"tensor_windows,omitempty"`
}

// ByPyTorch is the StackMode of a snapshot that PyTorch wrote.
const ByPyTorch = "PyTorch's"

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

// NotNamed is the function of a Location whose name is still to come or was lost, and what
// labels say that would follow from such a name.
const NotNamed = "[not named yet]"

// BeforeHistory is the function of memory that was there before the history of a file began, and whose
// stack the file does not have.
const BeforeHistory = "[allocated before the history begins]"

// Annotation and Compiled begin the functions of the outermost frames of a stack that say what the
// program said of a time: an annotation, such as of torch.profiler.record_function, and the context in
// which torch.compile had made the code.
const (
	Annotation = "[annotation] "
	Compiled   = "[compiled] "
)

// Named reports whether the name of l is there.
func (l *Location) Named() bool { return len(l.Lines) == 0 || l.Lines[0].Function != NotNamed }

// A Line is one function of a Location.
type Line struct {
	Function string `json:"function"`         // demangled, or as the interpreter names it
	System   string `json:"system,omitempty"` // the linkage name, when it differs from Function
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Reason   string `json:"reason,omitempty"` // why there is no name, "" when there is one
}

// A Mapping is one executable file mapping of a process.
type Mapping struct {
	Start    uint64 `json:"start"`
	Limit    uint64 `json:"limit"`
	Offset   uint64 `json:"offset"`
	Path     string `json:"path"`
	BuildID  string `json:"build_id"` // lower-case hex of the GNU build id, "" for none
	HasLines bool   `json:"has_lines"`
}

// Key is equal for mappings of one file at one place: those of processes that
// forked from each other are shown as one.
func (m *Mapping) Key() Mapping {
	key := *m
	key.HasLines = false
	return key
}

// A Process has the totals of one traced process.
type Process struct {
	PID    int    `json:"pid"`
	Name   string `json:"name"` // comm
	Exited bool   `json:"exited"`
	Who
	Parent int `json:"parent_pid,omitempty"`
	// ParentEnded is when the parent, which ran the same program, ended while this process held
	// memory on GPUs.
	ParentEnded time.Time `json:"parent_ended,omitzero"`
	// Inuse, Peak and Allocated are bytes of owned device memory: of allocations that were
	// traced, without what the driver uses itself.
	Inuse     int64 `json:"inuse_bytes"`
	Peak      int64 `json:"peak_bytes"`
	Allocated int64 `json:"allocated_bytes"`
	// Managed, Host, Imported and Graph are live bytes of those classes,
	// in none of the device figures.
	Managed  int64 `json:"managed_bytes"`
	Host     int64 `json:"host_bytes"`
	Imported int64 `json:"imported_bytes"`
	Graph    int64 `json:"graph_bytes"`
	// Physical is what the kernel driver handed out to it on all GPUs, as far as
	// that was seen: every byte of Inuse lies in it.
	Physical    int64 `json:"physical_bytes"`
	LiveObjects int64 `json:"live_objects"`
	Failed      int64 `json:"failed"`        // failed allocation calls
	OutOfMemory int64 `json:"out_of_memory"` // those that failed for want of memory
	// UnmatchedFrees are frees of addresses never seen allocated: memory
	// from before the trace began.
	UnmatchedFrees int64 `json:"unmatched_frees"`
	// Async is the part of Inuse that came from stream-ordered memory pools,
	// and AsyncHigh the most that the pools may hold for it: the highest use
	// of each since it was last trimmed.
	Async     int64 `json:"async_bytes"`
	AsyncHigh int64 `json:"async_high_bytes"`
	// Unattributed is live device memory beyond --max-live, without a call stack.
	// Unknown is memory for which there was no room at all: it may be live, and is in no
	// other figure.
	Unattributed int64 `json:"unattributed_bytes"`
	Unknown      int64 `json:"unknown_bytes"`
}

// An Account is what one process holds on one GPU, and the parts that it is made of.
type Account struct {
	PID     int    `json:"pid"`
	Process string `json:"process"` // comm
	GPU     string `json:"gpu"`     // as Labels.GPU
	// Total is in bytes, if Known: what the kernel driver was seen to hand out,
	// with what was allocated before; or, where its calls are not seen, the traced
	// allocations with what it said to be there beyond them.
	// Inferred says that it is the whole GPU's, on which this is the only process.
	Total    int64 `json:"total_bytes"`
	Known    bool  `json:"known"`
	Inferred bool  `json:"inferred"`
	// Driver is what the kernel driver itself says (NVML), if DriverKnown: as of
	// when it was asked last.
	Driver      int64 `json:"driver_bytes"`
	DriverKnown bool  `json:"driver_known"`
	// Difference is by how much Driver was more than the total when it was read, if
	// Compared: of a process traced from its start, and of another one only where it
	// was less.
	Difference int64 `json:"difference_bytes"`
	Compared   bool  `json:"compared"`
	// Lines add up to Total. Those in brackets are synthetic frames of the
	// profile too.
	Lines []AccountLine `json:"lines"`
}

// An AccountLine is one part of an Account.
type AccountLine struct {
	Name  string `json:"name"` // "allocations", "[context]", ...
	Bytes int64  `json:"bytes"`
	Note  string `json:"note,omitempty"` // what a reader must know, "" for nothing
}

// An Allocator is a framework's caching allocator of one process on one GPU: the
// segments that were seen allocated and that it handed tensors out of.
type Allocator struct {
	PID     int    `json:"pid"`
	Process string `json:"process"` // comm
	GPU     string `json:"gpu"`     // as Labels.GPU
	// Outside are bytes in tensors in memory that was not seen allocated. What else
	// there is of that memory is not known, and in no other figure.
	Outside int64 `json:"outside_bytes"`
	// Unseen are bytes of Segments' Cached that the allocator says to be in tensors,
	// which were not seen; negative, bytes of Allocated that it says to be free. With
	// either, the free blocks are others than these.
	Unseen   int64      `json:"unseen_bytes"`
	Segments []Segments `json:"segments"` // by private pool, those of all requests first, and class
}

// Total adds up the segments of all classes. Largest is that of any class.
func (a *Allocator) Total() (sum Segments) {
	for i := range a.Segments {
		sum.Add(&a.Segments[i])
	}
	return sum
}

// Shared adds up the segments that are of no private pool, for sure.
func (a *Allocator) Shared() (sum Segments) {
	for i := range a.Segments {
		if s := &a.Segments[i]; s.Private == "" {
			sum.Add(s)
		}
	}
	return sum
}

// Pool adds up the segments from which a request of so many bytes can be met, which is
// for a private pool, or for none ("").
func (a *Allocator) Pool(request int64, private string) (sum Segments) {
	for i := range a.Segments {
		if s := &a.Segments[i]; s.Small == (request <= smallRequest) && s.Private == private {
			sum.Add(s)
		}
	}
	return sum
}

// smallRequest is PyTorch's kSmallSize, in bytes.
const smallRequest = 1 << 20

// Segments are those of one class, which is how they were allocated and for which requests.
type Segments struct {
	// Private is the private pool that they are of, as PyTorch's own snapshot has its
	// id: "1.0" is a CUDA graph's, "0.1" torch.cuda.MemPool's or graph_pool_handle's.
	// What is cached in it serves no other request. "" is of no such pool, and "unknown"
	// where it may be of one.
	Private string `json:"private_pool"`
	Class   string `json:"class"` // "small", "large", "larger", "expandable_small", "expandable_large"
	// Expandable ones are ranges of mapped pages.
	Expandable bool `json:"expandable"`
	// Small ones meet requests of at most 1 MiB, the others all larger ones.
	Small bool `json:"small_pool"`

	Count int64 `json:"segments"`
	// Reserved bytes are Allocated, which are in tensors, and Cached.
	Reserved  int64 `json:"reserved_bytes"`
	Allocated int64 `json:"allocated_bytes"`
	Cached    int64 `json:"cached_bytes"`
	// FreeBlocks are what is free between two tensors or the end of a segment, in
	// whole units of 512 bytes, and LargestFree is the size of the largest.
	FreeBlocks  int64 `json:"free_blocks"`
	LargestFree int64 `json:"largest_free_block_bytes"`
	// Releasable bytes of Cached are in segments, or pages, without a tensor: what
	// emptying the cache gives back. The rest is PyTorch's "inactive split".
	Releasable int64 `json:"releasable_bytes"`
	// Kept bytes are the same of a private pool, or of what may be one: emptying the
	// cache gives them back only when nothing refers to the pool any more.
	Kept int64 `json:"kept_bytes"`
}

// Add adds the figures of o to those of s.
func (s *Segments) Add(o *Segments) {
	s.Count += o.Count
	s.Reserved += o.Reserved
	s.Allocated += o.Allocated
	s.Cached += o.Cached
	s.FreeBlocks += o.FreeBlocks
	s.LargestFree = max(s.LargestFree, o.LargestFree)
	s.Releasable += o.Releasable
	s.Kept += o.Kept
}

// An Allocation is one live allocation: a segment of a caching allocator with all its
// bytes, and each tensor that lies in it.
type Allocation struct {
	Sample int `json:"sample"` // index into Samples
	// Address is where it lies, or else Handle what the driver calls it:
	// physical memory, arrays, external memory. One of them is 0.
	Address uint64    `json:"address,omitempty"`
	Handle  uint64    `json:"handle,omitempty"`
	Size    int64     `json:"size"`
	Time    time.Time `json:"time"`
}

// A Heap is the last reading of one process's heap.
type Heap struct {
	PID     int             `json:"pid"`
	Process string          `json:"process"` // comm
	Begin   time.Time       `json:"begin"`
	End     time.Time       `json:"end"`
	Reading *holder.Reading `json:"reading"`
}

// A Freed is what was freed at one stack of the tensors of one sample.
type Freed struct {
	Sample         int         // index into Samples
	By             []*Location // the stack, leaf first, never empty
	Objects, Bytes int64
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
	Calls     int    // calls of libcuda that failed; 0 for a framework's own limit
	GPU       string // as Labels.GPU
	Stack     []*Location
	// Tensor is the size of the tensor that the memory was for, in bytes as the
	// framework rounds them, 0 where it is not known.
	Tensor int64
	// Private is the private pool that the tensor was for, as of Segments.
	Private string
	// GaveBack are bytes of its segments that the framework gave back between the
	// first failed call and the last one, or the success.
	GaveBack int64
	// Freed are bytes that the process held less, at some moment between the first failure and the end,
	// than at the first failure. Again is how long after that it was refused again, having given
	// memory back, and GaveUp how long after it the framework gave up; 0 if it did not.
	Freed         int64
	Again, GaveUp time.Duration
	// Recovered: a call for as many bytes on the same thread succeeded soon
	// after, as when a framework frees its cache and tries again.
	Recovered bool
	// Framework is what the framework's allocator said, nil if none did.
	Framework *FrameworkMemory
	// Allocator is the process's on GPU when the framework gave up, or else when the
	// first call failed; nil if no tensors were seen.
	Allocator *Allocator
	GPUs      []GPUMemory
	// Predicted says what other settings of the allocator would have changed, "" where that
	// is not known. Unpredicted says why it is not, or what tells it later, "" for nothing.
	Predicted, Unpredicted string
	Snapshot               *Snapshot
}

// FrameworkMemory is what a caching allocator had handed out, and held, in bytes.
type FrameworkMemory struct {
	Name                string // "PyTorch"
	Allocated, Reserved int64
}

// GPUMemory is one GPU as NVIDIA's kernel driver sees it.
type GPUMemory struct {
	GPU  string `json:"gpu"`
	Name string `json:"name"`
	// Total, Used and Free are bytes; Total is 0 where the driver was not asked for them.
	Total     int64        `json:"total_bytes"`
	Used      int64        `json:"used_bytes"`
	Free      int64        `json:"free_bytes"`
	Processes []GPUProcess `json:"processes"`
}

// A GPUProcess is one process on a GPU.
type GPUProcess struct {
	PID   int    `json:"pid"`
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Known bool   `json:"known"` // whether the kernel driver reports Bytes
}
