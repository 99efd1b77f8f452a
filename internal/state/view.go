package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/account"
	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/record"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/stacks"
)

// A Want says what a View is to show.
type Want struct {
	Live   bool          // a row for each live allocation
	Native stacks.Native // which native frames a stack with Python frames shows
	// Driver: what the kernel driver handed out beyond the traced allocations.
	Driver bool
}

// A View is a copy of what a State showed at one moment. Its names may come
// later.
type View struct {
	want     Want
	trace    record.Trace
	snapshot snapshot.Snapshot // but for what Snapshot adds
	sites    []site
	live     []row
	shown    []event.Process // whose memory in use is shown

	names     map[event.Process]string
	programs  []*snapshot.Mapping // of the processes, in order
	physical  []site              // of the physical layer, where it is wanted
	located   bool                // on GPUs: see locate
	presences []presence          // what NVML says of the processes, where it is wanted
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

type site struct {
	ledger.Site
	gpu    string // label
	frames []*record.Place
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
	return !slices.ContainsFunc(v.sites, lacks) && !slices.ContainsFunc(v.physical, lacks)
}

// Complete adds the stacks that were told since v was taken.
func (s *State) Complete(v *View) {
	for _, sites := range [][]site{v.sites, v.physical} {
		for i := range sites {
			if x := &sites[i]; x.frames == nil {
				x.frames = s.stacks.Frames(x.Stack)
			}
		}
	}
}

// figures copies what may change with the next event.
func (s *State) figures(w Want) *View {
	v := &View{want: w, trace: s.trace}
	v.snapshot = snapshot.Snapshot{
		Meta: snapshot.Meta{
			Version: s.trace.Version, CommandLine: s.trace.CommandLine, Target: s.trace.Target,
			StackMode: s.trace.StackMode, Driver: s.trace.Driver, Start: s.trace.Start,
			Duration: s.wall(s.now.Time).Sub(s.trace.Start), Events: s.events,
		},
	}
	shown := s.shown()
	index := map[*ledger.Site]int32{} // of shown ones, in v.sites
	for one := range s.ledger.Sites {
		x := site{Site: *one}
		if !shown(one.Proc) {
			x.InuseObjects, x.InuseBytes = 0, 0
		} else if w.Live {
			index[one] = int32(len(v.sites))
		}
		v.sites = append(v.sites, x)
	}
	if w.Live {
		v.live = make([]row, 0, s.ledger.Rows())
		for a := range s.ledger.Live {
			i, shown := index[a.Site]
			if !shown {
				continue
			}
			r := row{time: a.Time, address: a.Addr, handle: a.Handle, size: int64(a.Size), site: i}
			if a.Space.Handles() {
				r.address, r.handle = 0, a.Addr
			}
			v.live = append(v.live, r)
		}
	}
	v.snapshot.Processes, v.shown = s.totals(shown)
	if w.Driver {
		for one := range s.physical.Rows.Sites {
			x := site{Site: *one}
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
	return func(id event.Process) bool { return held[id] || s.procs.lives(id) }
}

// Totals returns those of each process. It costs nothing that grows with call
// sites or live allocations.
func (s *State) Totals() []snapshot.Process {
	out, _ := s.totals(s.shown())
	return out
}

// totals returns those of each process, and which of the processes show memory
// in use.
func (s *State) totals(shown func(event.Process) bool) (out []snapshot.Process, inUse []event.Process) {
	seen := map[event.Process]bool{}
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
			inUse = append(inUse, t.Proc)
		}
		seen[t.Proc] = true
		out = append(out, p)
	}
	// One may hold memory without having made a call for it.
	for t := range s.physical.Rows.Processes {
		if seen[t.Proc] || !shown(t.Proc) {
			continue
		}
		seen[t.Proc] = true
		inUse = append(inUse, t.Proc)
		out = append(out, snapshot.Process{PID: int(t.Proc.PID), Name: s.procs.name(t.Proc), Exited: t.Exited, Physical: s.taken(t.Proc)})
	}
	for _, pid := range slices.Sorted(maps.Keys(s.procs.current)) {
		if id := s.procs.current[pid]; !seen[id] {
			inUse = append(inUse, id)
			out = append(out, snapshot.Process{PID: int(id.PID), Name: s.procs.name(id)})
		}
	}
	return out, inUse
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
	out = append(out, s.stacks.Loss()...)
	out = append(out, unknown.Counter(s.procs.refused))
	if s.trace.Incidents > 0 {
		out = append(out, suppressed.Counter(s.incidents.suppressed))
	}
	return out
}

// dress adds what goes with the figures: stacks, names, accounts, and what was
// lost. extra are call sites beside those of v.
func (s *State) dress(v *View, extra ...ledger.SiteKey) {
	v.snapshot.Notes = append(append(slices.Clone(s.notes), s.lost.Notes...), s.cutNotes()...)
	v.snapshot.Loss = s.loss()
	v.names = map[event.Process]string{}
	for _, sites := range [][]site{v.sites, v.physical} {
		for i := range sites {
			x := &sites[i]
			x.frames = s.stacks.Frames(x.Stack)
			s.name(v, x.Proc)
		}
	}
	for _, x := range extra {
		s.name(v, x.Proc)
	}
	for _, id := range v.shown {
		s.name(v, id)
	}
	if !v.located {
		s.locate(v)
	}
}

// locate adds on which GPUs the call sites and the processes are, and what NVML
// says of the processes, as of the last reading.
func (s *State) locate(v *View) {
	v.located = true
	for i := range v.sites {
		v.sites[i].gpu = s.label(&v.sites[i].SiteKey)
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
	add := func(id event.Process, gpu string) *presence {
		key := place{id, gpu}
		if _, ok := at[key]; !ok {
			known := s.procs.known[id]
			at[key] = len(v.presences)
			v.presences = append(v.presences, presence{id: id, gpu: gpu, seen: s.sees(id),
				late: known == nil || !known.fromStart && !s.accounts.FromStart(id)})
		}
		return &v.presences[at[key]]
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
		v.programs = append(v.programs, x.program)
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
