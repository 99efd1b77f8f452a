package state

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A collector copies the contents of a View out of a State, in two steps: figures, which
// the next event may change, and their descriptions, which may wait.
type collector struct {
	s *State
	v *View
	// shown reports whether a process's memory in use is shown.
	shown func(event.Process) bool
}

// collect copies the figures that w wants.
func (s *State) collect(w Want) *collector {
	if w.Totals {
		w.Driver, w.GPUs = true, true
	}
	v := &View{want: w, trace: s.trace, reported: s.reported, categories: s.categories, later: s.laterModules}
	v.snapshot.Meta = snapshot.Meta{
		Version: s.trace.Version, CommandLine: s.trace.CommandLine, Target: s.trace.Target,
		StackMode: s.trace.StackMode, Driver: s.trace.Driver, Start: s.trace.Start,
		Duration: s.Time().Sub(s.trace.Start), Events: s.events, Windows: s.TensorWindows(),
	}
	shown := s.processes.shown(s.now.Slept)
	c := &collector{s: s, v: v, shown: func(id event.Process) bool { return shown(id) && !s.physical.Suspended(id) }}
	v.wantsLive = w.Live
	if w.Holders {
		c.addHeaps()
		w.Live = w.Live || len(v.heaps) > 0
	}
	v.hasLive = w.Live && w.LiveOf == nil
	var index map[*ledger.Site]int32 // among the sites of the driver and the tensor layer
	indexed := w.Live || w.Layout
	for range s.tensors.Pools {
		indexed = true
		break
	}
	if indexed {
		index = map[*ledger.Site]int32{}
	}
	v.sites = c.sites(s.ledger, index)
	v.tensors = c.sites(s.tensors.Rows, index)
	for i := range v.tensors {
		x := &v.tensors[i]
		x.fate = s.tensors.Fate(x.Proc, x.Stack)
	}
	c.addPools(index)
	c.addAllocators()
	v.caches = s.caches(c.shown)
	if w.Live {
		c.addLive(index)
	}
	if w.Layout && s.history != nil {
		c.addLayout()
	}
	v.snapshot.Processes, v.processes = c.processes()
	for _, p := range v.processes {
		if c.shown(p.id) {
			v.shown = append(v.shown, p.id)
		}
	}
	if w.GPUs {
		v.snapshot.GPUs, v.totals.rests = s.accounts.Devices(), s.accounts.Rests()
	}
	if w.Driver {
		v.physical = c.sites(s.physical.Rows, nil)
		c.addUnderWay()
	}
	return c
}

// sites copies the call sites of a layer. It adds the index of each among all that were
// copied so far to index, unless that is nil.
func (c *collector) sites(rows *ledger.Ledger, index map[*ledger.Site]int32) []site {
	n := rows.SiteCount()
	if c.v.want.Held {
		n = 0 // few hold something
	}
	out := make([]site, 0, n)
	for one := range rows.Sites {
		if !c.wants(one) {
			continue
		}
		x := site{Site: *one, live: one.InuseObjects}
		if c.v.want.Unreported {
			x.AllocObjects, x.AllocBytes = one.Unreported()
		}
		if !c.shown(one.Proc) {
			x.InuseObjects, x.InuseBytes = 0, 0
		}
		if index != nil {
			index[one] = int32(len(c.v.sites) + len(out))
		}
		out = append(out, x)
	}
	return out
}

// wants reports whether a view has a call site.
func (c *collector) wants(one *ledger.Site) bool {
	if c.v.want.Held && !one.HasTensors {
		return (one.InuseObjects != 0 || one.InuseBytes != 0 || one.PeakBytes != 0) && c.shown(one.Proc)
	}
	return !c.s.reset || !one.Empty()
}

// addUnderWay adds what calls took for allocations that have not returned.
func (c *collector) addUnderWay() {
	took := map[ledger.SiteKey]int64{}
	for _, id := range c.s.processes.current {
		c.s.physical.UnderWay(id, c.s.now.Time, func(at ledger.SiteKey, bytes int64) { took[at] += bytes })
	}
	if len(took) == 0 {
		return
	}
	for i := range c.v.physical {
		x := &c.v.physical[i]
		x.underWay = min(took[x.SiteKey], x.InuseBytes)
		delete(took, x.SiteKey) // two sites may have the same key
	}
}

// addLive copies the live allocations.
func (c *collector) addLive(index map[*ledger.Site]int32) {
	add := func(a *ledger.Allocation) {
		r := row{time: a.Time, address: a.Addr, handle: a.Handle, size: int64(a.Size), site: index[a.Site]}
		if a.Space.Handles() {
			r.address, r.handle = 0, a.Addr
		}
		c.v.live = append(c.v.live, r)
	}
	if only := c.v.want.LiveOf; only != nil {
		c.liveOf(only, index, add)
		return
	}
	c.v.live = make([]row, 0, c.s.ledger.RowCount()+c.s.tensors.Rows.RowCount())
	for a := range c.s.Rows {
		if c.shown(a.Proc) {
			add(&a)
		}
	}
}

// liveOf adds the live allocations of call sites. It visits those of their processes.
func (c *collector) liveOf(only []ledger.SiteKey, index map[*ledger.Site]int32, add func(*ledger.Allocation)) {
	wanted, of := map[*ledger.Site]bool{}, map[event.Process]bool{}
	for site := range index {
		if c.shown(site.Proc) && slices.Contains(only, site.SiteKey) {
			wanted[site], of[site.Proc] = true, true
		}
	}
	for id := range of {
		for a := range c.s.RowsOf(id) {
			if wanted[a.Site] {
				add(&a)
			}
		}
	}
}

// processes returns the figures of each process, and which process each is.
func (c *collector) processes() (out []snapshot.Process, ids []processEnd) {
	s := c.s
	room := len(s.processes.known)
	added := make(map[event.Process]bool, room)
	out, ids = make([]snapshot.Process, 0, room), make([]processEnd, 0, room)
	add := func(id event.Process, p snapshot.Process) {
		added[id] = true
		p.PID, p.Name = int(id.PID), s.Name(id)
		if x := s.processes.known[id]; x != nil {
			p.Parent = int(x.parent.PID)
			if x.parentEnd != 0 {
				p.ParentEnded = s.trace.Boot.Add(time.Duration(x.parentEnd))
			}
			if x.who != nil {
				p.Who = *x.who
			}
		}
		out, ids = append(out, p), append(ids, processEnd{id, s.processes.endOf(id)})
	}
	for t := range s.ledger.Processes {
		p := snapshot.Process{Exited: t.Exited, Peak: t.Peak, Allocated: t.Allocated, Failed: t.Failed, OutOfMemory: t.OutOfMemory,
			UnmatchedFrees: t.UnmatchedFrees, AsyncHigh: t.AsyncHigh}
		if c.shown(t.Proc) {
			p.Inuse, p.Managed, p.Host, p.Imported, p.Graph = t.Inuse, t.Managed, t.Host, t.Imported, t.Graph
			p.LiveObjects, p.Async, p.Unattributed, p.Unknown = t.LiveObjects, t.AsyncInuse, t.Unattributed, t.UnknownBytes
			p.Physical = c.physicalBytes(t.Proc)
		}
		add(t.Proc, p)
	}
	// A process may hold physical memory without having made a call for it.
	for t := range s.physical.Rows.Processes {
		if !added[t.Proc] && c.shown(t.Proc) {
			add(t.Proc, snapshot.Process{Exited: t.Exited, Physical: c.physicalBytes(t.Proc)})
		}
	}
	var others []event.Process
	for _, id := range s.processes.current {
		if !added[id] {
			others = append(others, id)
		}
	}
	sorting.Stable(others, event.Process.Compare)
	for _, id := range others {
		add(id, snapshot.Process{})
	}
	return out, ids
}

// physicalBytes returns how much memory of all GPUs the kernel driver handed out to a
// process.
func (c *collector) physicalBytes(id event.Process) int64 {
	return c.s.physical.Rows.InUse(id, event.ClassDriver)
}

// describe adds stacks, names, accounts, notes and counters of loss to the figures. extra are call sites beside those of the view.
func (c *collector) describe(extra ...ledger.SiteKey) {
	s, v := c.s, c.v
	v.snapshot.Notes = append(append(slices.Clone(s.notes), s.lost.Notes...), c.cutNotes()...)
	v.snapshot.Notes = append(append(v.snapshot.Notes, windowNotes(v.snapshot.Meta.Windows)...), c.suspendedNotes()...)
	v.snapshot.Loss = s.loss()
	v.names, v.whos = map[event.Process]string{}, map[event.Process]*snapshot.Who{}
	for _, sites := range v.all() {
		for i := range sites {
			x := &sites[i]
			x.addFrames(s.stacks)
			if i == 0 || x.Proc != sites[i-1].Proc {
				c.addName(x.Proc)
			}
		}
	}
	for _, x := range extra {
		c.addName(x.Proc)
	}
	for _, id := range v.shown {
		c.addName(id)
	}
	for i := range v.caches {
		c.addName(v.caches[i].id)
	}
	for i := range v.heaps {
		c.addName(v.heaps[i].id)
	}
	if v.want.Steps {
		c.addSteps()
	}
	if v.want.Windows || v.want.Totals {
		c.addWindows()
	}
	if v.want.Freed {
		c.addFreed()
	}
	if v.layout != nil {
		v.layout.addFrames(s.stacks)
		for d := range v.layout.gpus {
			c.addName(d.id)
		}
	}
	if !v.located {
		c.locate()
	}
	if v.want.Totals {
		c.addTotals()
	}
}

// addFrames adds the frames that x lacks, if they have come.
func (x *site) addFrames(from *stacks.Table) {
	if x.frames == nil {
		x.frames, x.modules = from.Frames(x.Stack), from.Modules(x.Stack)
	}
	if x.after == nil {
		x.after = from.Frames(x.fate.After)
	}
}

// addName copies a process's name and program, and who it belongs to.
func (c *collector) addName(id event.Process) {
	if _, ok := c.v.names[id]; ok {
		return
	}
	c.v.names[id], c.v.whos[id] = c.s.Name(id), c.s.processes.who(id)
	if x := c.s.processes.known[id]; x != nil && x.program != nil {
		c.v.programs = append(c.v.programs, executable{id, x.program})
	}
}

// cutNotes says which part of a trace is missing that begins in its middle.
func (c *collector) cutNotes() []string {
	missing, whole := "what was ever allocated, and peaks, count", c.s.rebuilding.of > record.OfState
	if whole {
		missing = "tensors in windows count"
	}
	if c.s.began == 0 || whole && !c.s.windows.Active() {
		return nil
	}
	return []string{"the recording lacks what came before: " + missing + " from " + c.s.Wall(c.s.began).UTC().Format("2006-01-02 15:04:05.000 UTC") + " on"}
}

// maxSuspended bounds the suspended processes that notes name.
const maxSuspended = 10

// suspendedNotes say which processes a checkpoint holds: what they held is on no GPU.
func (c *collector) suspendedNotes() (notes []string) {
	for _, id := range c.s.processes.current {
		if !c.s.physical.Suspended(id) {
			continue
		}
		if len(notes) == maxSuspended {
			return append(notes, "more processes are suspended")
		}
		notes = append(notes, fmt.Sprintf("process %d (%s) is suspended, as by cuda-checkpoint: it holds no GPU memory until it is restored", id.PID, c.s.Name(id)))
	}
	return notes
}

// locate adds on which GPUs the call sites and the processes are, and NVML's figures of
// the processes, as of the last reading.
func (c *collector) locate() {
	s, v := c.s, c.v
	v.located = true
	for _, sites := range v.all() {
		for i := range sites {
			sites[i].gpu = s.GPU(&sites[i].SiteKey)
		}
	}
	locateAll(s.gpus, v.strays)
	locateAll(s.gpus, v.allocators)
	locateAll(s.gpus, v.caches)
	if v.layout != nil {
		v.layout.locate(s.gpus)
	}
	if v.want.Driver {
		c.addPresences()
	}
}

// addPresences adds on which GPUs the processes are, and NVML's figures of them there.
func (c *collector) addPresences() {
	s, v := c.s, c.v
	type place struct {
		id  event.Process
		gpu string
	}
	at := map[place]int{} // index in v.presences
	last := -1
	add := func(id event.Process, gpu string) *presence {
		if last >= 0 && v.presences[last].id == id && v.presences[last].gpu == gpu {
			return &v.presences[last]
		}
		key := place{id, gpu}
		if _, ok := at[key]; !ok {
			at[key] = len(v.presences)
			v.presences = append(v.presences, presence{id: id, gpu: gpu, seen: s.SeesDriverCalls(id), late: s.AttachedLate(id)})
		}
		last = at[key]
		return &v.presences[last]
	}
	for _, id := range v.shown {
		for _, gpu := range s.accounts.Labels(id) {
			h := add(id, gpu)
			h.figure, h.account = *s.accounts.Figure(id, gpu), true
		}
	}
	for _, sites := range [][]site{v.physical, v.sites} {
		for i := range sites {
			x := &sites[i]
			if class := x.Kind.Class(); class != event.ClassDevice && class != event.ClassDriver {
				continue
			}
			if x.InuseBytes != 0 || x.PeakBytes != 0 {
				h := add(x.Proc, x.gpu)
				h.account = h.account || x.InuseBytes != 0
			}
		}
	}
	sorting.Stable(v.presences, func(a, b presence) int {
		return cmp.Or(a.id.Compare(b.id), cmp.Compare(a.gpu, b.gpu))
	})
}
