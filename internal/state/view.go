package state

import (
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
	// Driver: what the driver reports beyond the traced allocations, under
	// synthetic frames.
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

	names      map[event.Process]string
	programs   []*snapshot.Mapping // of the processes, in order
	statements map[event.Process][]account.Statement
	growths    map[uint64][]*record.Place // frames of the stacks of growths
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
	return !slices.ContainsFunc(v.sites, func(x site) bool { return x.Stack != 0 && x.frames == nil })
}

// Complete adds the stacks that were told since v was taken.
func (s *State) Complete(v *View) {
	for i := range v.sites {
		if x := &v.sites[i]; x.frames == nil {
			x.frames = s.stacks.Frames(x.Stack)
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
			inUse = append(inUse, t.Proc)
		}
		seen[t.Proc] = true
		out = append(out, p)
	}
	// A target may hold memory without having made a call yet.
	for _, pid := range slices.Sorted(maps.Keys(s.procs.current)) {
		if id := s.procs.current[pid]; !seen[id] {
			inUse = append(inUse, id)
			out = append(out, snapshot.Process{PID: int(id.PID), Name: s.procs.name(id)})
		}
	}
	return out, inUse
}

// wall returns a time of CLOCK_MONOTONIC as that of the wall clock.
func (s *State) wall(monotonic uint64) time.Time {
	return s.trace.Boot.Add(time.Duration(monotonic))
}

// loss returns every cause of loss: the sources', the ledger's, the rest.
func (s *State) loss() []loss.Counter {
	out := slices.Clone(s.lost.Counters)
	out = append(out, s.ledger.Loss()...)
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
	for i := range v.sites {
		x := &v.sites[i]
		x.gpu, x.frames = s.label(&x.SiteKey), s.stacks.Frames(x.Stack)
		s.name(v, x.Proc)
	}
	for _, x := range extra {
		s.name(v, x.Proc)
	}
	for _, id := range v.shown {
		s.name(v, id)
	}
	if v.statements == nil {
		s.account(v)
	}
	v.growths = map[uint64][]*record.Place{}
	for id := range v.growthStacks {
		v.growths[id] = s.stacks.Frames(id)
	}
}

// account adds the accounts as of the last reading, if they are wanted.
func (s *State) account(v *View) {
	if !v.want.Driver {
		return
	}
	v.statements = map[event.Process][]account.Statement{}
	for _, id := range v.shown {
		v.statements[id] = s.accounts.Statements(id)
	}
}

// growthStacks yields the stacks that growths are put under.
func (v *View) growthStacks(yield func(id uint64) bool) {
	for _, statements := range v.statements {
		for i := range statements {
			for _, g := range statements[i].Growths {
				if !yield(g.Site.Stack) {
					return
				}
			}
		}
	}
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
	switch {
	case site.Kind.Class() == event.ClassHost:
		return ""
	case s.trace.NVML:
		if label, ok := s.accounts.Label(site.Proc, site.Device); ok {
			return label
		}
		return "unknown"
	case site.Device == event.NoDevice:
		return "unknown"
	}
	return fmt.Sprintf("cuda:%d", site.Device)
}
