package snapshot

import "time"

// A Layout is where memory lies, and the changes until then: only when it was asked for.
// It has the memory of GPUs that has addresses: segments with tensors, and other memory
// that the driver handed out.
type Layout struct {
	Places   []Place
	Segments []Segment // by Place and Address; those of a Place do not overlap
	Sources  []Source
	// Change returns the one of a number from 0, the oldest, to Changes-1. Dropped are those
	// before, for which there was no room.
	Change  func(i int) Change
	Changes int
	Dropped uint64
}

// A Place is a device of a process.
type Place struct {
	PID     int
	Process string // comm
	Device  int    // CUDA ordinal inside the process, -1 when not known
	GPU     string // as Labels.GPU
}

// A Source is a call stack that allocated or freed memory.
type Source struct {
	Stack []*Location // leaf first
	Labels
}

// A Segment is memory that the driver handed out at once, or the pages side by side of
// a caching allocator's expandable segment.
type Segment struct {
	Place         int // index into Layout.Places
	Address, Size uint64
	Source        int  // index into Layout.Sources, -1 for memory from before the trace
	Pool          bool // a caching allocator's, which hands it out as Blocks
	Expandable    bool // pages of a Pool
	Small         bool // a Pool's, for requests up to 1 MiB
	// Blocks are in use, by address. They lie in the segment and do not overlap. A segment
	// that is no Pool is one block.
	Blocks []Block
}

// A Block is a tensor, or all of a segment that is no pool's.
type Block struct {
	Address, Size uint64
	Source        int // index into Layout.Sources
}

// An Action is the kind of a Change.
type Action uint8

// Actions. A segment comes before the blocks in it, and ends after them.
const (
	BlockCame Action = iota
	BlockEnded
	SegmentCame
	SegmentEnded
	AllocationFailed // Size bytes could not be had
)

// A Change is one of a Layout, or a failure for want of memory.
type Change struct {
	Action        Action
	Place         int // index into Layout.Places
	Time          time.Time
	Address, Size uint64
	Source        int // index into Layout.Sources: where memory ended, the stack that freed it; -1 when not known
	// Pool and Expandable are as in Segment, of SegmentCame and SegmentEnded.
	Pool, Expandable bool
	// Free are the GPU's bytes that were free when the driver was asked last, of
	// AllocationFailed, if FreeKnown.
	Free      int64
	FreeKnown bool
}
