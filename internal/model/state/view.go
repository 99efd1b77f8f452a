package state

import (
	"cmp"
	"slices"

	holders "github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/account"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

// A Want says what a View is to show.
type Want struct {
	Live   bool          // a row for each live allocation
	Native stacks.Native // which native frames a stack with Python frames shows
	// Driver: memory that the kernel driver handed out beyond the traced allocations.
	Driver bool
	Steps  bool // the training steps of processes
	Freed  bool // where tensors were freed
	// Windows: the tensors that were seen in windows. Without windows nothing is added.
	Windows bool
	// Holders: the readings of heaps, and samples divided by holder. Without a reading
	// nothing is added.
	Holders bool
	Layout  bool // where memory lies, and its latest changes, if the state remembers them: see Remember
	GPUs    bool // each GPU's memory
	Totals  bool // the figures for View.Totals: Driver and GPUs are wanted too
	// Unreported: allocations ever made are those since the last record.Reported.
	Unreported bool
	// Held leaves out call sites that hold nothing and held nothing at their process's peak,
	// and those of processes that are not shown. Sites with tensors stay.
	Held bool
	// LiveOf, if not nil, are the call sites of which alone Live shows the allocations.
	LiveOf []ledger.SiteKey
	// Shapes, if set, are reused from one Snapshot to the next.
	Shapes *Shapes
}

// A View is a copy of the figures of a State at one moment. The names of its stacks may
// come later: a Snapshot has those that are known when it is made.
type View struct {
	want     Want
	trace    record.Trace
	snapshot snapshot.Snapshot // but for what Snapshot adds
	reported uint64            // CLOCK_MONOTONIC: when the last record.Reported was, 0 for never

	processes []processEnd    // those of snapshot.Processes, in their order
	shown     []event.Process // whose memory in use is shown
	names     map[event.Process]string
	// categories are the state's.
	categories Categories
	whos       map[event.Process]*snapshot.Who
	programs   []executable // of the processes, in order

	sites    []site // of the driver layer
	physical []site // of the physical layer, where it is wanted
	tensors  []site // of the tensor layer
	live     []row
	// Of caching allocators.
	strays     []strayTensors
	allocators []allocator
	caches     []cache
	// Where they are wanted.
	steps    []processSteps
	windowed []windowed
	freed    []freed
	layout   *layout
	totals   totalsData
	// Of heaps.
	heaps     []heapView
	later     map[event.Process][]holders.Module // State.laterModules
	divided   origins                            // of the last Snapshot
	wantsLive bool                               // before heaps wanted it too
	hasLive   bool                               // it has a row for each live allocation

	located   bool       // on GPUs: see collector.locate
	presences []presence // of the processes on GPUs, where they are wanted
}

// A presence is a process on a GPU.
type presence struct {
	id     event.Process
	gpu    string // label
	seen   bool   // the physical layer sees its calls
	late   bool   // attached to late
	figure account.Figure
	// account: it holds memory there, or NVML says so; not only at its peak.
	account bool
}

// A processEnd is a process and its end, which distinguishes it from others with its PID.
type processEnd struct {
	id  event.Process
	end uint64 // CLOCK_MONOTONIC, 0 while it lives
}

// An executable is the file that a process runs.
type executable struct {
	id event.Process
	*snapshot.Mapping
}

// A site is a call site in a View.
type site struct {
	ledger.Site
	gpu    string // label
	group  Group  // where totals are wanted
	frames []*record.Place
	// modules are the addresses of the modules that the stack is in, innermost first.
	modules []uint64
	// Of the driver layer: how much is in tensors, if its memory is a caching
	// allocator's pool.
	handed amount
	pool   bool
	live   int64 // objects, also of processes that are not shown
	// Of the physical layer: bytes of InuseBytes that calls took for allocations and that
	// have not returned.
	underWay int64
	// Of the tensor layer: how its tensors ended, and the frames of fate.After.
	fate  tensors.Fate
	after []*record.Place
}

// View copies what w wants. It takes as long as there are call sites, and live
// rows if they are wanted.
func (s *State) View(w Want) *View {
	c := s.collect(w)
	c.describe()
	return c.v
}

// AddStacks adds the stacks that came since v was made.
func (s *State) AddStacks(v *View) {
	for _, sites := range v.all() {
		for i := range sites {
			sites[i].addFrames(s.stacks)
		}
	}
	if v.layout != nil {
		v.layout.addFrames(s.stacks)
	}
}

// HasAllStacks reports whether all stacks of the view had come when it was made.
func (v *View) HasAllStacks() bool {
	lacks := func(x site) bool { return x.Stack != 0 && x.frames == nil }
	return !slices.ContainsFunc(v.all(), func(sites []site) bool { return slices.ContainsFunc(sites, lacks) }) &&
		(v.layout == nil || v.layout.whole())
}

// all returns the sites of every layer.
func (v *View) all() [][]site { return [][]site{v.sites, v.physical, v.tensors} }

// Processes returns those of each process. It costs nothing that grows with call
// sites or live allocations.
func (s *State) Processes() []snapshot.Process {
	c := collector{s: s, shown: s.processes.shown(s.now.Slept)}
	out, _ := c.processes()
	return out
}

// Held is what a process holds on GPUs, in bytes.
type Held struct {
	Total     int64 // what the kernel driver was seen to hand out, or else Allocated
	Allocated int64 // device memory that was allocated and not freed
	Tensors   int64 // of it, what is in tensors
}

// Held returns what a process holds: nothing once it has ended.
func (s *State) Held(id event.Process) Held {
	if !s.IsAlive(id) {
		return Held{}
	}
	h := Held{Allocated: s.ledger.InUse(id, event.ClassDevice), Tensors: s.tensors.Bytes(id)}
	h.Total = h.Allocated
	if s.SeesDriverCalls(id) {
		h.Total = s.physical.Rows.InUse(id, event.ClassDriver)
	}
	return h
}

// HeldByAll returns how many bytes the processes hold on GPUs whose memory is shown, each as much
// as is known of it, and how many processes that are.
func (s *State) HeldByAll() (bytes int64, processes int) {
	add := func(id event.Process) {
		processes++
		bytes += max(s.ledger.InUse(id, event.ClassDevice), s.physical.Rows.InUse(id, event.ClassDriver))
	}
	held := s.processes.heldAtEnd(s.now.Slept)
	for id := range held {
		add(id)
	}
	for _, id := range s.processes.current {
		if !held[id] && s.IsAlive(id) {
			add(id)
		}
	}
	return bytes, processes
}

// Compare says which of two amounts is more of a peak.
func (h Held) Compare(o Held) int {
	return cmp.Or(cmp.Compare(h.Total, o.Total), cmp.Compare(h.Allocated, o.Allocated), cmp.Compare(h.Tensors, o.Tensors))
}
