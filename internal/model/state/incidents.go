package state

import (
	"maps"
	"slices"
	"time"

	holders "github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Durations are in nanoseconds, as the times of events.
const (
	// recoveryWindow is the time in which a failed call's thread may succeed with the same
	// size, or fail again, as part of one incident.
	recoveryWindow = uint64(700 * time.Millisecond)
	// longestIncident bounds an incident whose thread gives physical memory
	// back: with expandable segments PyTorch does so with thousands of pieces
	// before it reports the size that it needed.
	longestIncident = uint64(5 * time.Second)
	// incidentPause is the least time between two incidents of one user's processes.
	incidentPause = uint64(time.Second)
	// readingPatience bounds how long an incident waits for the driver's
	// figures: it is worth more than they are.
	readingPatience = uint64(4 * time.Second)
	// maxIncidents bounds the incidents that were not returned yet: each has a view.
	maxIncidents = 8
)

// incidents are calls that fail for want of memory, each with a view of that moment.
type incidents struct {
	state *State
	open  map[threadKey]*Incident
	// done are those that ended, in order of their end, and wait for the
	// driver's figures and for a record.Loss; known those that have both.
	done, known []*Incident

	last   map[owner]uint64 // when the last one of each began
	latest owner            // of the last one
	n      int              // begun
	least  int              // how many to report although the trace asks for fewer

	// suppressed are incidents that were too many or too close.
	suppressed uint64
}

var lossSuppressed = loss.Of("oom_reports_suppressed",
	"out-of-memory failures without a report of their own, because there were too many or they came too close together")

type threadKey struct {
	proc event.Process
	tid  uint32
}

// An Incident is one or more failed calls of one thread for one size, and a
// view of the moment of the first.
type Incident struct {
	first     event.Event
	site      ledger.SiteKey // that asked: the framework's, if it gave up, or else first's
	last      uint64         // when it failed, or gave physical memory back
	again     uint64         // when it failed again, after it had given memory back
	gaveUp    uint64         // when the framework gave up
	held      int64          // bytes that the process held when it failed first
	least     int64          // and at least since then
	calls     int
	recovered bool
	got       uint64 // where the memory lies that recovered: the last piece of it
	framework *snapshot.FrameworkMemory
	view      *View
	// Bytes that the process's caching allocators had given back when first failed, and
	// since then; the tensor's size, where the framework gave up or tensors are seen; and
	// the allocators when it gave up.
	returned, gave int64
	tensor         int64
	private        holders.PoolID // that the thread asked for
	caches         []cache
	over           bool // nothing more will be learnt
	read           bool // gpus are known
	gpus           []snapshot.GPUMemory

	gpu    string
	frames []*record.Place
}

// ended reports whether the incident is over.
func (in *Incident) ended(now uint64) bool {
	return in.over || now >= in.last+recoveryWindow || now >= in.first.Time+longestIncident
}

// apply follows one event, after the ledgers did.
func (x *incidents) apply(e *event.Event) {
	s := x.state
	allocates := e.Op == event.OpAlloc || e.Op == event.OpHandleCreate
	failed := allocates && e.Result == event.OutOfMemory
	// PyTorch reports its host allocator's failures by the same function.
	gaveUp := e.Op == event.OpOutOfMemory && e.Device != event.NoDevice
	if failed || gaveUp {
		if f := s.groups.failures.Add(s, e); f != nil {
			s.groups.failed(f, s.Name(f.Proc), s.Wall(f.Time))
		}
	}
	if !failed && !gaveUp && len(x.open) == 0 {
		return
	}
	key := threadKey{e.Proc, e.TID}
	in := x.open[key]
	switch {
	case in == nil:
	case in.ended(e.Time):
		x.conclude(key, in)
		in = nil
	default:
		in.gave = s.tensors.Returned(e.Proc) - in.returned
		if e.Op == event.OpUnmap || e.Op == event.OpHandleRelease || e.Op == event.OpFree {
			in.least = min(in.least, s.Held(e.Proc).Total)
		}
	}
	switch {
	case gaveUp:
		if in == nil {
			in = x.begin(key, e) // a limit of its own: no driver call failed
		}
		if in != nil {
			in.framework = &snapshot.FrameworkMemory{Name: "PyTorch", Allocated: int64(e.Handle), Reserved: int64(e.Part)}
			in.recovered, in.over, in.tensor, in.gaveUp = false, true, int64(e.Size), e.Time
			in.private = s.tensors.Private(e.Proc, e.Device, e.TID)
			in.caches = s.caches(func(id event.Process) bool { return id == e.Proc })
			if e.Stack != 0 {
				in.site = siteOf(e)
			}
		}
	case failed:
		if in == nil {
			in = x.begin(key, e)
		}
		if in != nil {
			if in.calls++; in.least < in.held {
				in.again = e.Time
			}
			in.recovered = false
		}
	case in == nil:
	case e.Op == event.OpTensorAlloc:
		// PyTorch hands out the tensor as soon as it has the memory.
		if in.recovered && e.Addr <= in.got && in.got-e.Addr < e.Size {
			in.tensor, in.over = int64(e.Size), true
		}
	case allocates && e.Result == event.Success && e.Size == in.first.Size:
		// Physical memory comes in many pieces of one size: another may fail. A
		// tensor may show what the memory was for.
		in.recovered, in.got, in.over = true, e.Addr, e.Op == event.OpAlloc && !s.tensors.Seen()
	case e.Op == event.OpMap:
		in.got = e.Addr
	case e.Op == event.OpUnmap || e.Op == event.OpHandleRelease:
		in.last = e.Time
	}
}

// begin makes an incident with a view of this moment, nil for one too many.
func (x *incidents) begin(key threadKey, e *event.Event) *Incident {
	s := x.state
	whose := s.processes.owner(e.Proc)
	left := max(s.trace.Incidents, x.least) - x.n
	if s.trace.All && x.n > 0 && x.latest == whose {
		left-- // the last one is another's
	}
	last, again := x.last[whose]
	if left <= 0 || again && e.Time < last+incidentPause || len(x.open)+len(x.done)+len(x.known) >= maxIncidents {
		x.suppressed++
		return nil
	}
	maps.DeleteFunc(x.last, func(_ owner, last uint64) bool { return e.Time >= last+incidentPause })
	if x.last == nil {
		x.last = map[owner]uint64{}
	}
	x.n++
	x.last[whose], x.latest = e.Time, whose
	in := &Incident{first: *e, site: siteOf(e), last: e.Time, view: s.collect(Want{Driver: true, Holders: true, Held: true}).v, returned: s.tensors.Returned(e.Proc)}
	if e.Device == event.NoDevice {
		in.site.Device = s.ledger.DeviceOf(e.Proc, e.Ctx)
	}
	in.private = s.tensors.Private(e.Proc, in.site.Device, e.TID)
	if x.open == nil {
		x.open = map[threadKey]*Incident{}
	}
	x.open[key] = in
	in.held = s.Held(e.Proc).Total
	in.least = in.held
	s.wants.Reading, s.wants.Memory = true, true
	return in
}

// conclude ends an incident.
func (x *incidents) conclude(key threadKey, in *Incident) {
	delete(x.open, key)
	x.done = append(x.done, in)
}

// advance ends the incidents whose window has passed.
func (x *incidents) advance() {
	for key, in := range x.open {
		if in.ended(x.state.seen) {
			x.conclude(key, in)
		}
	}
}

// addReading adds the latest reading to the incidents that lack one.
func (x *incidents) addReading() {
	s := x.state
	gpus := s.accounts.GPUs()
	if gpus == nil {
		return
	}
	for in := range x.unfinished {
		if !in.read {
			in.gpus, in.read = gpus, true
			(&collector{s: s, v: in.view}).locate()
		}
	}
}

// unfinished yields the incidents that something is still to be added to.
func (x *incidents) unfinished(yield func(*Incident) bool) {
	for _, in := range x.open {
		if !yield(in) {
			return
		}
	}
	for _, in := range x.done {
		if !yield(in) {
			return
		}
	}
}

// stacks yields the stacks that incidents will show.
func (x *incidents) stacks(yield func(id uint64) bool) {
	for in := range x.unfinished {
		for _, sites := range in.view.all() {
			for i := range sites {
				if !yield(sites[i].Stack) || !yield(sites[i].fate.After) {
					return
				}
			}
		}
		if !yield(in.site.Stack) {
			return
		}
	}
}

// ready reports whether an incident waits for a record.Loss alone, which comes after the
// stacks of earlier events.
func (x *incidents) ready(in *Incident) bool {
	s := x.state
	return (!s.trace.NVML || in.read) && !s.heaps.expected(in) || s.now.Time >= in.first.Time+readingPatience
}

// complete describes the incidents that are ready, or all that ended.
func (x *incidents) complete(all bool) {
	s := x.state
	x.done = slices.DeleteFunc(x.done, func(in *Incident) bool {
		if !all && !x.ready(in) {
			return false
		}
		in.gpu, in.frames = s.GPU(&in.site), s.stacks.Frames(in.site.Stack)
		locateAll(s.gpus, in.caches)
		c := &collector{s: s, v: in.view, shown: func(id event.Process) bool { return id == in.first.Proc }}
		c.renewHeaps()
		c.describe(in.site)
		x.known = append(x.known, in)
		return true
	})
}

// ReportIncidents has at least n incidents reported, also of a trace that asks for fewer.
func (x *incidents) ReportIncidents(n int) { x.least = n }

// HasIncidents reports whether Incidents would return any after a record.Loss.
func (x *incidents) HasIncidents() bool {
	return len(x.known) > 0 || slices.ContainsFunc(x.done, x.ready)
}

// Incidents returns those that are known in full, once. all ends those that
// something more might be learnt of: nothing more comes.
func (x *incidents) Incidents(all bool) []*Incident {
	if all {
		for key, in := range x.open {
			x.conclude(key, in)
		}
		x.complete(true)
	}
	out := x.known
	x.known = nil
	return out
}

// OutOfMemory shows the incident under the names that its places have by then.
// native is as in Want.
func (in *Incident) OutOfMemory(want Want) *snapshot.OutOfMemory {
	v := in.view
	v.want = Want{Native: want.Native, Driver: want.Driver}
	b := newBuilder(v, v.shapes())
	return &snapshot.OutOfMemory{
		Time: v.trace.Boot.Add(time.Duration(in.first.Time)), PID: int(in.first.Proc.PID), Process: v.names[in.first.Proc],
		Thread: int(in.first.TID), Requested: int64(in.first.Size), API: v.trace.API(in.first.API), GPU: in.gpu, Calls: in.calls,
		Stack: b.stack(&in.site, false, b.shape(in.site.Stack, in.site.Kind, in.frames)), Recovered: in.recovered, Framework: in.framework,
		Tensor: in.tensor, Private: in.private.String(), GaveBack: max(in.gave, 0), Freed: in.held - in.least, Again: in.since(in.again), GaveUp: in.since(in.gaveUp), Allocator: in.allocator(), GPUs: in.gpus, Snapshot: v.Snapshot(),
	}
}

// since returns how long after the first failure a time is, 0 for none.
func (in *Incident) since(at uint64) time.Duration {
	if at == 0 {
		return 0
	}
	return time.Duration(at - in.first.Time)
}

// Failed returns when it failed first, and whether it recovered.
func (in *Incident) Failed() (at time.Time, recovered bool) {
	return in.view.trace.Boot.Add(time.Duration(in.first.Time)), in.recovered
}

// allocator returns what the process's caching allocator had on the GPU that ran out.
func (in *Incident) allocator() *snapshot.Allocator {
	caches := in.caches
	if in.framework == nil {
		caches = in.view.caches
	}
	for i := range caches {
		if c := &caches[i]; c.id == in.first.Proc && c.gpu == in.gpu {
			a := c.allocator(in.view.names[c.id])
			return &a
		}
	}
	return nil
}
