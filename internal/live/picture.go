package live

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A Picture is what there is to show of one moment. Rates and growth are against the
// Pictures before.
type Picture struct {
	Meta    snapshot.Meta
	Elapsed time.Duration // since the trace began
	// Interval is what rates are of, and Window what growth is of; both are 0 in the
	// first Picture, which has none.
	Interval, Window time.Duration

	GPUs      []GPU
	Processes []Process
	Uses      []Use
	Owners    []Owner
	Stacks    []*Stack // in no order
	Accounts  []snapshot.Account

	// EventRate is of events received, in events a second.
	EventRate float64
	// Lost are the counters that are not zero.
	Lost  []loss.Counter
	Notes []string
	Cost  *Cost
	// Load is what this process took of a processor in the interval, 1 for all of one.
	Load float64
	// Ended is as in Look.
	Ended string
}

// A Flow is how a number of bytes came about.
type Flow struct {
	Inuse, Allocated int64   // bytes
	Rate             float64 // bytes allocated a second
	Grown            int64   // bytes by which Inuse changed in the window
}

func (f *Flow) add(g *Flow) {
	f.Inuse += g.Inuse
	f.Allocated += g.Allocated
	f.Rate += g.Rate
	f.Grown += g.Grown
}

// A GPU is one that NVML tells of, or that a traced process uses.
type GPU struct {
	Label, Name string
	Total, Used int64 // bytes, as NVML says; Total is 0 where it was not asked
	// Held is what the traced processes hold, of which Unexplained are in lines that
	// name no cause; Part says that it is not all, as of some nobody knows. Highest is
	// the most that Held was in the Pictures so far.
	Held, Unexplained, Highest int64
	Part                       bool
	Traced, Others             int // processes that hold memory on it; those not traced
}

// A Process is one traced process.
type Process struct {
	snapshot.Process
	GPUs  []string
	Rate  float64 // bytes allocated a second
	Grown int64   // bytes by which Inuse changed in the window
	// Held and Unexplained are as in GPU. Known: all of Held is.
	Held, Unexplained int64
	Known             bool
	// Difference is what the kernel driver says beyond Held, if Compared.
	Difference int64
	Compared   bool
}

// A Use is what a process has allocated on a GPU.
type Use struct {
	PID int
	GPU string
	Flow
}

// An Owner is whose code holds memory of a process on a GPU.
type Owner struct {
	Name, GPU string
	PID       int
	Flow
}

// A Stack is one call site: a stack, and what was asked for there.
type Stack struct {
	ID     ID
	Sample *snapshot.Sample
	Rate   float64 // bytes allocated a second
	Grown  int64   // bytes by which what is in use changed in the window

	*seen
}

// An ID is the same for a Stack in each Picture.
type ID struct {
	Site ledger.SiteKey // zero for what has none
	Hash uint64         // of the names, where Site is zero
}

// HasSite tells whether the Stack is a call site whose live allocations can be asked for.
func (i ID) HasSite() bool { return i.Site != ledger.SiteKey{} }
