package live

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A Status is what there is to show of one moment. Rates and growth compare it with the
// moments before.
type Status struct {
	Meta    snapshot.Meta
	Elapsed time.Duration // since the trace began
	// Rates are of the last Interval, and growth is of the last Window; both are 0 at first.
	Interval, Window time.Duration

	GPUs      []GPU
	Processes []Process
	Ranks     map[int]string // what those that are ranks are called, by PID
	Owners    []Owner        // set by Select
	Stacks    []*Stack       // in no order
	Accounts  []snapshot.Account
	Total     Total // set by Select
	OnGPUs    Flow  // of the memory on GPUs, set by Select

	// EventRate is of events received, in events a second.
	EventRate float64
	// Lost are the counters that are not zero.
	Lost  []loss.Counter
	Notes []string
	// Windowed are the tensors that were seen in windows.
	Windowed []snapshot.Windowed
	Cost     *Cost
	// Load is how much of a processor this process used in the interval, 1 for all of one.
	Load float64
	// Ended says why there will be nothing new, "" while there may be.
	Ended string
}

// A Flow is a number of bytes and how it changed.
type Flow struct {
	Inuse     int64   `json:"inuse_bytes"`
	Allocated int64   `json:"-"`                          // bytes
	Grown     int64   `json:"grown_bytes"`                // by which Inuse changed in the window
	Rate      float64 `json:"allocated_bytes_per_second"` // bytes
}

func (f *Flow) add(g *Flow) {
	f.Inuse += g.Inuse
	f.Allocated += g.Allocated
	f.Rate += g.Rate
	f.Grown += g.Grown
}

// A Total is of all GPUs, and of all traced processes.
type Total struct {
	Held        int64   `json:"held_bytes"` // by traced processes, for whatever cause
	Known       bool    `json:"known"`      // Held is everything that they hold
	Unexplained int64   `json:"unexplained_bytes"`
	Inuse       int64   `json:"inuse_bytes"` // of processes, see Process
	Grown       int64   `json:"grown_bytes"`
	Rate        float64 `json:"allocated_bytes_per_second"`
	EventRate   float64 `json:"events_per_second"`
	Failed      int64   `json:"failed"`
	OutOfMemory int64   `json:"out_of_memory"`
}

// A GPU is one that NVML reports, or that a traced process uses.
type GPU struct {
	Label string `json:"gpu"`
	Name  string `json:"name"`
	Total int64  `json:"total_bytes,omitempty"` // as NVML says; 0 where it was not asked
	Used  int64  `json:"used_bytes,omitempty"`
	// Held is what the traced processes hold; Known says that it is everything.
	// Unexplained bytes of it are in lines that name no cause. Highest is the most that
	// Held was so far.
	Held        int64 `json:"held_bytes"`
	Known       bool  `json:"known"`
	Unexplained int64 `json:"unexplained_bytes"`
	Highest     int64 `json:"-"`
	Traced      int   `json:"traced_processes"` // that hold memory on it
	Others      int   `json:"other_processes"`  // that hold memory on it and are not traced
}

// A Process is one traced process.
type Process struct {
	snapshot.Process `json:"-"`
	GPUs             []string `json:"gpus"`
	Held             int64    `json:"held_bytes"` // see GPU
	Known            bool     `json:"known"`
	Unexplained      int64    `json:"unexplained_bytes"`
	Grown            int64    `json:"grown_bytes"`                // by which Inuse changed in the window
	Rate             float64  `json:"allocated_bytes_per_second"` // bytes
	// Difference is by how many bytes the kernel driver reports more than Held, nil where
	// the two were not compared.
	Difference *int64 `json:"difference_bytes"`
}

// An Owner is a library whose code holds memory on GPUs.
type Owner struct {
	Name string `json:"owner"` // "" where it is not known
	Flow
}

// A Stack is one call site.
type Stack struct {
	ID     ID
	Sample *snapshot.Sample
	Rate   float64 // bytes allocated a second
	Grown  int64   // bytes by which its memory in use changed in the window

	*known
}

func (x *Stack) flow() Flow {
	v := &x.Sample.Values
	return Flow{Inuse: v.InuseBytes, Allocated: v.AllocBytes, Rate: x.Rate, Grown: x.Grown}
}

// Holder names the object that holds most of the stack's memory, and how many others there
// are: as the last snapshot knew that has holders. It is "" if none is known.
func (x *Stack) Holder() string { return x.known.holder }

// An ID is the same for a Stack at every moment.
type ID struct {
	Site ledger.SiteKey // zero for a sample without a call site
	Hash uint64         // of the names, where Site is zero
}

// HasSite reports whether the Stack is a call site whose live allocations can be asked for.
func (i ID) HasSite() bool { return i.Site != ledger.SiteKey{} }
