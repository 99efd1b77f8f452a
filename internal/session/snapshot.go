package session

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/probes"
	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

// Snapshot returns who holds what now. live asks for a row for each live
// allocation. Collection goes on: the lock is held only while figures are
// copied, names are looked up after.
func (s *Session) Snapshot(live bool) *snapshot.Snapshot {
	s.readings.ask()
	return s.build(s.copy(live))
}

// Report is a Snapshot that somebody keeps. Where every process is traced it is
// the last that shows the processes which ended before it.
func (s *Session) Report(live bool) *snapshot.Snapshot {
	s.readings.ask()
	c := s.copy(live)
	out := s.build(c)
	if s.opts.All {
		s.mu.Lock()
		s.forget(s.procs.drop(c.ended))
		s.mu.Unlock()
	}
	return out
}

// forget drops all that is known of processes. s.mu is held.
func (s *Session) forget(dropped []event.Process) {
	for _, id := range dropped {
		s.ledger.Forget(id)
	}
	s.gpus.forget(dropped...)
}

// build names what was copied.
func (s *Session) build(c state) *snapshot.Snapshot {
	b := s.newBuilder(c)
	out := c.snapshot
	index := make(map[*ledger.Site]int, len(c.sites))
	for i := range c.sites {
		site := &c.sites[i]
		index[c.origin[i]] = len(out.Samples)
		out.Samples = append(out.Samples, b.sample(site))
	}
	for _, a := range c.live {
		row := snapshot.Allocation{
			Sample: index[a.Site], Address: a.Addr, Handle: a.Handle, Size: int64(a.Size),
			Time: s.boot.Add(time.Duration(a.Time)),
		}
		if a.Space.Handles() {
			row.Address, row.Handle = 0, a.Addr
		}
		out.Live = append(out.Live, row)
	}
	if s.opts.Residual {
		for _, id := range c.shown {
			accounts, samples := s.gpus.statements(b, id, b.names[id])
			out.Accounts = append(out.Accounts, accounts...)
			out.Samples = append(out.Samples, samples...)
		}
	}
	out.Mappings = b.programsFirst()
	out.Loss = append(out.Loss, s.sym.Loss()...)
	return out
}

// A state is what a snapshot copies under the lock.
type state struct {
	snapshot *snapshot.Snapshot
	sites    []ledger.Site
	origin   []*ledger.Site // identities, for live rows
	live     []ledger.Allocation
	shown    []event.Process // whose memory in use is shown
	ended    []event.Process // the ended processes that are in it
}

func (s *Session) copy(live bool) state {
	counters := s.tracer.Loss()
	missing := s.tracer.Missing()
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.stopped
	if end.IsZero() {
		end = time.Now()
	}
	c := state{
		snapshot: &snapshot.Snapshot{
			Meta: snapshot.Meta{
				Version: s.opts.Version, CommandLine: s.opts.CommandLine, Target: s.target,
				StackMode: s.capture.mode, Driver: s.gpus.version, Start: s.start, Duration: end.Sub(s.start), Events: s.events,
			},
			Notes: slices.Clone(s.notes),
		},
		ended: slices.Clone(s.procs.ended),
	}
	out := c.snapshot
	held := s.procs.held(sleptTime())
	shown := func(id event.Process) bool { return held[id] || s.procs.lives(id) }
	for site := range s.ledger.Sites {
		one := *site
		if !shown(site.Proc) {
			one.InuseObjects, one.InuseBytes = 0, 0
		}
		c.sites = append(c.sites, one)
		c.origin = append(c.origin, site)
	}
	if live {
		for a := range s.ledger.Live {
			if shown(a.Proc) {
				c.live = append(c.live, a)
			}
		}
	}
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
			c.shown = append(c.shown, t.Proc)
		}
		seen[t.Proc] = true
		out.Processes = append(out.Processes, p)
	}
	// A target may hold memory without having made a call yet.
	for _, id := range s.procs.current {
		if !seen[id] {
			c.shown = append(c.shown, id)
			out.Processes = append(out.Processes, snapshot.Process{PID: int(id.PID), Name: s.procs.name(id)})
		}
	}
	for _, l := range counters {
		out.Loss = append(out.Loss, l)
	}
	for _, l := range s.ledger.Loss() {
		out.Loss = append(out.Loss, l)
	}
	out.Loss = append(out.Loss, s.stacks.loss(), loss.Counter{Name: "stacks_not_named", Value: s.naming.dropped.Load(),
		Help: "stacks whose names were not read because too many waited: the next event with one brings it again"})
	out.Loss = append(out.Loss, s.capture.loss()...)
	if s.recorder != nil {
		out.Loss = append(out.Loss, loss.Counter{Name: "oom_reports_suppressed", Value: s.recorder.suppressed,
			Help: "failures for want of memory without a report of their own: too many, or too close together"})
	}
	out.Loss = append(out.Loss, s.readings.loss())
	for _, note := range []string{s.naming.note(), s.readings.note(), gapNote(s.tracer.LongestGap())} {
		if note != "" {
			out.Notes = append(out.Notes, note)
		}
	}
	out.Notes = append(out.Notes, s.capture.notes()...)
	out.Notes = append(out.Notes, missingNotes(missing)...)
	return c
}

func gapNote(gap time.Duration) string {
	if gap == 0 {
		return ""
	}
	return fmt.Sprintf("a library was mapped up to %.1f ms before it had probes: calls in that time are missed", gap.Seconds()*1e3)
}

// missingNotes says which functions libraries do not export, once for all that
// lack the same.
func missingNotes(missing map[string][]string) (notes []string) {
	byLack := map[string][]string{}
	for _, path := range slices.Sorted(maps.Keys(missing)) {
		lack := join(missing[path])
		byLack[lack] = append(byLack[lack], path)
	}
	for _, lack := range slices.Sorted(maps.Keys(byLack)) {
		paths := byLack[lack]
		who := paths[0]
		if n := len(paths) - 1; n > 0 {
			who += fmt.Sprintf(" (and %d more)", n)
		}
		notes = append(notes, who+" does not export "+lack)
	}
	return notes
}

// A builder makes samples of ledger sites.
type builder struct {
	session  *Session
	frames   map[uint64][]frame
	located  map[uint64][]*snapshot.Location
	leaves   map[uint16]*snapshot.Location
	names    map[event.Process]string
	programs []*snapshot.Mapping // of the processes, in order
	mappings []*snapshot.Mapping
	mapped   map[*snapshot.Mapping]bool
}

// newBuilder makes a builder that has what c needs. extra are stacks beside
// those of its sites.
func (s *Session) newBuilder(c state, extra ...*event.Event) *builder {
	ctx, cancel := context.WithTimeout(context.Background(), namingPatience)
	defer cancel()
	s.naming.settle(ctx)
	b := &builder{session: s, frames: map[uint64][]frame{}, names: map[event.Process]string{},
		located: map[uint64][]*snapshot.Location{}, leaves: map[uint16]*snapshot.Location{},
		mapped: map[*snapshot.Mapping]bool{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	add := func(id event.Process, stack uint64) {
		if _, ok := b.names[id]; !ok {
			b.names[id] = s.procs.name(id)
			if x := s.procs.known[id]; x != nil && x.program != nil {
				b.programs = append(b.programs, x.program)
			}
		}
		b.frames[stack] = s.stacks.frames(stack)
	}
	for i := range c.sites {
		add(c.sites[i].Proc, c.sites[i].Stack)
	}
	for _, e := range extra {
		add(e.Proc, e.Stack)
	}
	for _, id := range c.shown {
		add(id, 0)
	}
	for _, id := range s.gpus.stackIDs() {
		b.frames[id] = s.stacks.frames(id)
	}
	return b
}

// programsFirst returns all mappings, with that of the first process's program
// first: readers of pprof take it for what was profiled.
func (b *builder) programsFirst() []*snapshot.Mapping {
	out := slices.Clone(b.mappings)
	for _, program := range slices.Backward(b.programs) {
		i := slices.IndexFunc(out, func(m *snapshot.Mapping) bool { return m.Path == program.Path })
		m := program
		if i >= 0 {
			m = out[i]
			out = slices.Delete(out, i, i+1)
		}
		out = slices.Insert(out, 0, m)
	}
	return out
}

// siteOf is the call site of one event.
func siteOf(e *event.Event) ledger.Site {
	return ledger.Site{SiteKey: ledger.SiteKey{
		Proc: e.Proc, Stack: e.Stack, API: e.API, Outer: e.Outer, Kind: e.Kind, Device: e.Device,
	}}
}

// stack returns a site's frames, leaf first, as the user wants them.
func (b *builder) stack(site *ledger.Site) []*snapshot.Location {
	return append([]*snapshot.Location{b.leaf(site)}, symbolize.Fold(b.session.opts.Native, b.native(site.Stack))...)
}

func (b *builder) sample(site *ledger.Site) snapshot.Sample {
	native := b.native(site.Stack)
	return snapshot.Sample{
		Stack: b.stack(site),
		Labels: snapshot.Labels{
			Kind: site.Kind.String(), API: probes.APIName(site.API), Runtime: probes.APIName(site.Outer),
			GPU: b.session.gpus.label(site), Owner: symbolize.Owner(native), Process: b.names[site.Proc], PID: int(site.Proc.PID),
		},
		Values: snapshot.Values{
			AllocObjects: site.AllocObjects, AllocBytes: site.AllocBytes, PeakBytes: site.PeakBytes,
			InuseObjects: site.InuseObjects, InuseBytes: site.InuseBytes,
			FailedObjects: site.FailedObjects, FailedBytes: site.FailedBytes,
		},
	}
}

// leaf is the frame of the API function itself, which has returned when the
// stack is taken.
func (b *builder) leaf(site *ledger.Site) *snapshot.Location {
	l := b.leaves[site.API]
	if l == nil {
		name := probes.APIName(site.API)
		if site.Synthetic {
			name = "[no call site: limit reached]"
		}
		l = &snapshot.Location{Lines: []snapshot.Line{{Function: name}}}
		b.leaves[site.API] = l
	}
	return l
}

// native returns the located frames of a stack.
func (b *builder) native(id uint64) []*snapshot.Location {
	if got, ok := b.located[id]; ok || id == 0 {
		return got
	}
	out := make([]*snapshot.Location, 0, len(b.frames[id]))
	for _, f := range b.frames[id] {
		l := f.python
		if l == nil {
			l = b.session.sym.Resolve(f.address)
		}
		if m := l.Mapping; m != nil && !b.mapped[m] {
			b.mapped[m] = true
			b.mappings = append(b.mappings, m)
		}
		out = append(out, l)
	}
	b.located[id] = out
	return out
}
