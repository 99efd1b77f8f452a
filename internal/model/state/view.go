package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/account"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
)

// A Want says what a View is to show.
type Want struct {
	Live   bool          // a row for each live allocation
	Native stacks.Native // which native frames a stack with Python frames shows
	// Driver: what the kernel driver handed out beyond the traced allocations.
	Driver bool
	Steps  bool // the training steps of processes
	Freed  bool // where tensors were freed
	Layout bool // where memory lies, and its latest changes, if the state keeps them: see Remember
	GPUs   bool // each GPU's memory
	Totals bool // what View.Totals adds up, for which Driver and GPUs are wanted too
	// Sums, if set, are kept from one View.Totals to the next, which shows nothing else.
	Sums *Sums
	// Unreported: what was ever allocated is what was since the last record.Reported.
	Unreported bool
	// LiveOf, if set, is the one call site of which Live shows the allocations.
	LiveOf *ledger.SiteKey
	// Shapes, if set, are kept from one Snapshot to the next.
	Shapes *Shapes
}

// A View is a copy of what a State showed at one moment. Its names may come
// later.
type View struct {
	want     Want
	trace    record.Trace
	snapshot snapshot.Snapshot // but for what Snapshot adds
	sites    []site
	live     []row
	shown    []event.Process        // whose memory in use is shown
	only     map[event.Process]bool // with Want.Sums: of whom it shows everything, nil for all
	reported uint64                 // CLOCK_MONOTONIC: when the last record.Reported was, 0 for never

	processes []identity // those of snapshot.Processes, in their order
	names     map[event.Process]string
	programs  []executable // of the processes, in order
	physical  []site       // of the physical layer, where it is wanted
	tensors   []site       // of the tensor layer
	layout    *layout      // where it is wanted
	outside   []outside    // where they lie in no memory of sites

	allocators []allocator
	caches     []cache
	steps      []stepped // where they are wanted
	freed      []freed   // where it is wanted

	// Where not every tensor is told: which are, as in record.Tensors, and what the
	// allocators say.
	partial       bool
	sample, least uint64
	stated        []stated
	whole         bool // nothing of the trace was dropped

	// Where totals are wanted: what was ever counted, which labels GPUs of groups have, and
	// failures for want of memory by them.
	counted     map[Group]ledger.Counts
	admitted    map[string]bool
	outOfMemory map[string]int64
	latest      []LatestFailure
	rests       map[string]account.Rest // by the label of the GPU

	located   bool       // on GPUs: see locate
	presences []presence // what NVML says of the processes, where it is wanted
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

// An identity tells a process apart from others with its PID.
type identity struct {
	id  event.Process
	end uint64 // CLOCK_MONOTONIC, 0 while it lives
}

// An executable is the file that a process runs.
type executable struct {
	id event.Process
	*snapshot.Mapping
}

type site struct {
	ledger.Site
	gpu    string // label
	group  Group  // where totals are wanted
	waits  bool   // group may come to be another, when names come
	frames []*record.Place
	// Of the driver layer: what is in tensors, if its memory is a caching
	// allocator's pool.
	handed amount
	pool   bool
	held   int64 // objects, of processes that are not shown too
	// Of the tensor layer: what became of those that were freed, and the frames of
	// fate.After.
	fate  tensors.Fate
	after []*record.Place
}

// View copies what w wants. It takes as long as there are call sites, and live
// rows if they are wanted.
func (s *State) View(w Want) *View {
	v := s.figures(w)
	s.dress(v)
	return v
}

// Whole tells whether all stacks of the view had been told when it was taken.
func (v *View) Whole() bool {
	lacks := func(x site) bool { return x.Stack != 0 && x.frames == nil }
	return !slices.ContainsFunc(v.all(), func(sites []site) bool { return slices.ContainsFunc(sites, lacks) }) &&
		(v.layout == nil || v.layout.whole())
}

// all returns the sites of every layer.
func (v *View) all() [][]site { return [][]site{v.sites, v.physical, v.tensors} }

// Complete adds the stacks that were told since v was taken.
func (s *State) Complete(v *View) {
	for _, sites := range v.all() {
		for i := range sites {
			s.told(&sites[i])
		}
	}
	if v.layout != nil {
		v.layout.told(s)
	}
}

// told adds the frames that x lacks, if they were told.
func (s *State) told(x *site) {
	if x.frames == nil {
		x.frames = s.stacks.Frames(x.Stack)
	}
	if x.after == nil {
		x.after = s.stacks.Frames(x.fate.After)
	}
}

// figures copies what may change with the next event.
func (s *State) figures(w Want) *View {
	if w.Totals {
		w.Driver, w.GPUs = true, true
	}
	v := &View{want: w, trace: s.trace, reported: s.reported}
	v.snapshot = snapshot.Snapshot{
		Meta: snapshot.Meta{
			Version: s.trace.Version, CommandLine: s.trace.CommandLine, Target: s.trace.Target,
			StackMode: s.trace.StackMode, Driver: s.trace.Driver, Start: s.trace.Start,
			Duration: s.wall(s.now.Time).Sub(s.trace.Start), Events: s.events,
		},
	}
	shown := s.shown()
	if w.Sums != nil {
		v.only = s.changed(w.Sums)
	}
	index := map[*ledger.Site]int32{} // among the sites of both layers, in their order
	indexed := w.Live || w.Layout
	for range s.tensors.Pools {
		indexed = true
		break
	}
	copied := func(rows *ledger.Ledger) []site {
		room := rows.Len()
		if v.only != nil { // about
			room = room * len(v.only) / (1 + len(s.procs.known))
		}
		out := make([]site, 0, room)
		for one := range sitesOf(rows, v.only) {
			if s.afresh && one.Empty() {
				continue
			}
			x := site{Site: *one, held: one.InuseObjects}
			if w.Unreported {
				x.AllocObjects, x.AllocBytes = one.Unreported()
			}
			if !shown(one.Proc) {
				x.InuseObjects, x.InuseBytes = 0, 0
			}
			if indexed {
				index[one] = int32(len(v.sites) + len(out))
			}
			out = append(out, x)
		}
		return out
	}
	v.sites = copied(s.ledger)
	v.tensors = copied(s.tensors.Rows)
	for i := range v.tensors {
		x := &v.tensors[i]
		x.InuseObjects = s.tensors.Objects(x.InuseObjects)
		if w.Unreported {
			x.AllocObjects = s.tensors.Objects(x.ReportedObjects+x.AllocObjects) - s.tensors.Objects(x.ReportedObjects)
		} else {
			x.AllocObjects = s.tensors.Objects(x.AllocObjects)
		}
		x.fate = s.tensors.Fate(x.Proc, x.Stack)
	}
	s.handed(v, index, shown)
	s.allocators(v, shown)
	if w.Sums == nil {
		v.caches = s.caches(shown)
	}
	s.partial(v, shown)
	if w.Live {
		if w.LiveOf == nil {
			v.live = make([]row, 0, s.ledger.Rows()+s.tensors.Rows.Rows())
		}
		for _, rows := range []*ledger.Ledger{s.ledger, s.tensors.Rows} {
			for a := range rows.Live {
				if !shown(a.Proc) || w.LiveOf != nil && a.Site.SiteKey != *w.LiveOf {
					continue
				}
				r := row{time: a.Time, address: a.Addr, handle: a.Handle, size: int64(a.Size), site: index[a.Site]}
				if a.Space.Handles() {
					r.address, r.handle = 0, a.Addr
				}
				v.live = append(v.live, r)
			}
		}
	}
	if w.Layout && s.history != nil {
		s.layout(v, shown)
	}
	v.snapshot.Processes, v.processes = s.totals(shown)
	for _, p := range v.processes {
		if v.has(p.id) && shown(p.id) {
			v.shown = append(v.shown, p.id)
		}
	}
	if w.GPUs {
		v.snapshot.GPUs, v.rests = s.accounts.Devices(), s.accounts.Rests()
	}
	if w.Driver {
		for one := range sitesOf(s.physical.Rows, v.only) {
			if s.afresh && one.Empty() {
				continue
			}
			x := site{Site: *one}
			if w.Unreported {
				x.AllocObjects, x.AllocBytes = one.Unreported()
			}
			if !shown(one.Proc) {
				x.InuseObjects, x.InuseBytes = 0, 0
			}
			v.physical = append(v.physical, x)
		}
	}
	return v
}

// cutNotes says what is missing of a trace that begins in its middle.
func (s *State) cutNotes() []string {
	if s.began == 0 {
		return nil
	}
	return []string{"the recording lacks what came before: what was ever allocated, and peaks, count from " +
		s.wall(s.began).UTC().Format("2006-01-02 15:04:05.000 UTC") + " on, with what was live then"}
}

// shown returns which processes' memory in use is shown.
func (s *State) shown() func(event.Process) bool {
	held := s.procs.held(s.now.Slept)
	var last event.Process // sites come by process
	is := held[last] || s.procs.lives(last)
	return func(id event.Process) bool {
		if id != last {
			last, is = id, held[id] || s.procs.lives(id)
		}
		return is
	}
}

// Totals returns those of each process. It costs nothing that grows with call
// sites or live allocations.
func (s *State) Totals() []snapshot.Process {
	out, _ := s.totals(s.shown())
	return out
}

// totals returns those of each process, and which process each is.
func (s *State) totals(shown func(event.Process) bool) (out []snapshot.Process, ids []identity) {
	room := len(s.procs.known)
	seen := make(map[event.Process]bool, room)
	out, ids = make([]snapshot.Process, 0, room), make([]identity, 0, room)
	add := func(id event.Process, p snapshot.Process) {
		seen[id] = true
		out, ids = append(out, p), append(ids, identity{id, s.procs.endOf(id)})
	}
	for t := range s.ledger.Processes {
		p := snapshot.Process{
			PID: int(t.Proc.PID), Name: s.procs.name(t.Proc), Exited: t.Exited,
			Peak: t.Peak, Allocated: t.Allocated, Failed: t.Failed, OutOfMemory: t.OutOfMemory,
			UnmatchedFrees: t.UnmatchedFrees, AsyncHigh: t.AsyncHigh,
		}
		if shown(t.Proc) {
			p.Inuse, p.Managed, p.Host, p.Imported, p.Graph = t.Inuse, t.Managed, t.Host, t.Imported, t.Graph
			p.LiveObjects, p.Async, p.Unattributed, p.Unknown = t.LiveObjects, t.AsyncInuse, t.Unattributed, t.UnknownBytes
			p.Physical = s.taken(t.Proc)
		}
		add(t.Proc, p)
	}
	// One may hold memory without having made a call for it.
	for t := range s.physical.Rows.Processes {
		if seen[t.Proc] || !shown(t.Proc) {
			continue
		}
		add(t.Proc, snapshot.Process{PID: int(t.Proc.PID), Name: s.procs.name(t.Proc), Exited: t.Exited, Physical: s.taken(t.Proc)})
	}
	var others []event.Process
	for _, id := range s.procs.current {
		if !seen[id] {
			others = append(others, id)
		}
	}
	slices.SortFunc(others, func(a, b event.Process) int { return cmp.Compare(a.PID, b.PID) })
	for _, id := range others {
		add(id, snapshot.Process{PID: int(id.PID), Name: s.procs.name(id)})
	}
	return out, ids
}

// taken is what a process has of GPUs' memory, all that it was seen to take.
func (s *State) taken(id event.Process) (bytes int64) {
	for h := range s.physical.Rows.Holdings(id) {
		bytes += h.Bytes
	}
	return bytes
}

// wall returns a time of CLOCK_MONOTONIC as that of the wall clock.
func (s *State) wall(monotonic uint64) time.Time {
	return s.trace.Boot.Add(time.Duration(monotonic))
}

// loss returns every cause of loss: the sources', the ledger's, the rest.
func (s *State) loss() []loss.Counter {
	out := slices.Clone(s.lost.Counters)
	out = append(out, s.ledger.Loss()...)
	if s.trace.Physical {
		out = append(append(out, s.physical.Loss()...), s.accounts.Loss()...)
	}
	if s.tensors.Seen() {
		out = append(append(out, s.tensors.Loss()...), s.steps.loss.Counters()...)
	}
	out = append(out, s.stacks.Loss()...)
	out = append(out, unknown.Counter(s.procs.refused), foldedOwners.Counter(s.groups.folded))
	if s.trace.Incidents > 0 {
		out = append(out, suppressed.Counter(s.incidents.suppressed))
	}
	return out
}

// dress adds what goes with the figures: stacks, names, accounts, and what was
// lost. extra are call sites beside those of v.
func (s *State) dress(v *View, extra ...ledger.SiteKey) {
	v.snapshot.Notes = append(append(slices.Clone(s.notes), s.lost.Notes...), s.cutNotes()...)
	v.snapshot.Notes = append(v.snapshot.Notes, s.shortages()...)
	if v.partial {
		v.snapshot.Notes = append(v.snapshot.Notes, partialNote(v.sample, v.least)...)
	}
	v.snapshot.Loss = s.loss()
	v.names = map[event.Process]string{}
	for _, sites := range v.all() {
		for i := range sites {
			x := &sites[i]
			s.told(x)
			if i == 0 || x.Proc != sites[i-1].Proc {
				s.name(v, x.Proc)
			}
		}
	}
	for _, x := range extra {
		s.name(v, x.Proc)
	}
	for i := range v.stated {
		s.name(v, v.stated[i].id)
	}
	for _, id := range v.shown {
		s.name(v, id)
	}
	for i := range v.caches {
		s.name(v, v.caches[i].id)
	}
	if v.want.Steps {
		s.stepped(v)
	}
	if v.want.Freed {
		s.freers(v)
	}
	if v.layout != nil {
		v.layout.told(s)
		for d := range v.layout.gpus {
			s.name(v, d.id)
		}
	}
	if !v.located {
		s.locate(v)
	}
	if v.want.Totals {
		s.total(v)
	}
}

// total adds what View.Totals adds up.
func (s *State) total(v *View) {
	v.counted = s.counted(v.only)
	for _, sites := range v.all() {
		for i := range sites {
			x := &sites[i]
			x.group, x.waits = s.groups.group(&x.SiteKey, x.gpu, x.frames)
		}
	}
	v.admitted, v.outOfMemory = maps.Clone(s.groups.gpus), maps.Clone(s.groups.outOfMemory)
	v.latest = slices.Clone(s.groups.latest)
}

// locate adds on which GPUs the call sites and the processes are, and what NVML
// says of the processes, as of the last reading.
func (s *State) locate(v *View) {
	v.located = true
	for i := range v.sites {
		v.sites[i].gpu = s.label(&v.sites[i].SiteKey)
	}
	for i := range v.tensors {
		v.tensors[i].gpu = s.label(&v.tensors[i].SiteKey)
	}
	for i := range v.outside {
		x := &v.outside[i]
		x.gpu = s.label(&ledger.SiteKey{Proc: x.id, Kind: event.KindTensor, Device: x.device})
	}
	for i := range v.allocators {
		x := &v.allocators[i]
		x.gpu = s.label(&ledger.SiteKey{Proc: x.id, Kind: event.KindTensor, Device: x.device})
	}
	s.locateCaches(v.caches)
	for i := range v.stated {
		x := &v.stated[i]
		x.gpu = s.label(&ledger.SiteKey{Proc: x.id, Kind: event.KindTensor, Device: x.device})
	}
	if v.layout != nil {
		v.layout.locate(s)
	}
	if !v.want.Driver {
		return
	}
	for i := range v.physical {
		v.physical[i].gpu = s.labelOf(&v.physical[i].SiteKey)
	}
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
			v.presences = append(v.presences, presence{id: id, gpu: gpu, seen: s.sees(id), late: s.late(id)})
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
	slices.SortFunc(v.presences, func(a, b presence) int {
		return cmp.Or(cmp.Compare(a.id.PID, b.id.PID), cmp.Compare(a.id.Start, b.id.Start), cmp.Compare(a.gpu, b.gpu))
	})
}

func (s *State) name(v *View, id event.Process) {
	if _, ok := v.names[id]; ok {
		return
	}
	v.names[id] = s.procs.name(id)
	if x := s.procs.known[id]; x != nil && x.program != nil {
		v.programs = append(v.programs, executable{id, x.program})
	}
}

// label returns the GPU label of a site: the index that NVML shows, "unknown",
// or "" for memory on no GPU. Without NVML it is the process's own ordinal.
func (s *State) label(site *ledger.SiteKey) string {
	if site.Kind.Class() == event.ClassHost {
		return ""
	}
	if s.trace.NVML {
		if label, ok := s.accounts.Label(site.Proc, site.Device); ok {
			return label
		}
		// What the process took from the kernel driver for it is on a GPU.
		label := ""
		gpus := s.physical.GPUs(site.Proc)
		for i := range gpus {
			of, ok := s.accounts.LabelOf(site.Proc, &gpus[i])
			switch {
			case !ok || site.Device != event.NoDevice && gpus[i].Ordinal != site.Device:
			case label != "" && label != of:
				return "unknown"
			default:
				label = of
			}
		}
		return cmp.Or(label, "unknown")
	}
	if site.Device == event.NoDevice {
		return "unknown"
	}
	return fmt.Sprintf("cuda:%d", site.Device)
}

// labelOf returns the GPU label of a site of the physical layer.
func (s *State) labelOf(site *ledger.SiteKey) string {
	if site.Kind.Class() == event.ClassHost {
		return ""
	}
	gpus := s.physical.GPUs(site.Proc)
	if site.Device < 0 || int(site.Device) >= len(gpus) {
		return "unknown"
	}
	g := &gpus[site.Device]
	label, known := s.accounts.LabelOf(site.Proc, g)
	switch {
	case known:
		return label
	case s.trace.NVML:
		return "unknown"
	case g.Ordinal != event.NoDevice:
		return fmt.Sprintf("cuda:%d", g.Ordinal)
	case g.Known:
		return fmt.Sprintf("%04x:%02x:%02x.0", g.ID>>16, g.ID>>8&0xff, g.ID&0xff)
	}
	return "unknown"
}
