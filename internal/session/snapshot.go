package session

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/probes"
	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

// Snapshot returns who holds what now. live asks for a row for each live
// allocation. Collection goes on: the lock is held only while figures are
// copied, names are looked up after.
func (s *Session) Snapshot(live bool) *snapshot.Snapshot {
	s.observe()
	c := s.copy(live)
	return s.build(c)
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
		out.Live = append(out.Live, snapshot.Allocation{
			Sample: index[a.Site], Address: a.Addr | a.Handle, Size: int64(a.Size),
			Time: s.boot.Add(time.Duration(a.Time)),
		})
	}
	if s.opts.Residual {
		for i := range out.Processes {
			accounts, samples := s.gpus.statements(b, uint32(out.Processes[i].PID), out.Processes[i].Name)
			out.Accounts = append(out.Accounts, accounts...)
			out.Samples = append(out.Samples, samples...)
		}
	}
	// Readers of pprof take the first mapping for the program.
	slices.SortStableFunc(b.mappings, func(a, b *snapshot.Mapping) int {
		return cmp.Compare(strings.Count(a.Path, ".so"), strings.Count(b.Path, ".so"))
	})
	out.Mappings = b.mappings
	out.Loss = append(out.Loss, s.sym.Loss()...)
	return out
}

// A state is what a snapshot copies under the lock.
type state struct {
	snapshot *snapshot.Snapshot
	sites    []ledger.Site
	origin   []*ledger.Site // identities, for live rows
	live     []ledger.Allocation
	frames   map[uint64][]frame
	names    map[event.Process]string
}

func (s *Session) copy(live bool) state {
	counters := s.tracer.Counters()
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
		frames: map[uint64][]frame{},
		names:  map[event.Process]string{},
	}
	out := c.snapshot
	for site := range s.ledger.Sites {
		c.sites = append(c.sites, *site)
		c.origin = append(c.origin, site)
		c.frames[site.Stack] = s.stacks.frames[site.Stack]
	}
	if live {
		for a := range s.ledger.Live {
			c.live = append(c.live, a)
		}
	}
	for t := range s.ledger.Processes {
		c.names[t.Proc] = s.procs.name(t.Proc)
		out.Processes = append(out.Processes, snapshot.Process{
			PID: int(t.Proc.PID), Name: c.names[t.Proc], Exited: t.Exited,
			Inuse: t.Inuse, Peak: t.Peak, Allocated: t.Allocated,
			Managed: t.Managed, Host: t.Host, Imported: t.Imported, Graph: t.Graph,
			LiveObjects: t.LiveObjects, Failed: t.Failed, OutOfMemory: t.OutOfMemory,
			UnmatchedFrees: t.UnmatchedFrees, Async: t.AsyncInuse, AsyncHigh: t.AsyncHigh,
			Unattributed: t.Unattributed, Unknown: t.UnknownBytes,
		})
	}
	for _, id := range s.gpus.stackIDs() {
		c.frames[id] = s.stacks.frames[id]
	}
	// A target may hold memory without having made a call yet.
	for pid, name := range s.procs.alive {
		if !slices.ContainsFunc(out.Processes, func(p snapshot.Process) bool { return p.PID == int(pid) }) {
			out.Processes = append(out.Processes, snapshot.Process{PID: int(pid), Name: name})
		}
	}
	for _, l := range counters {
		out.Loss = append(out.Loss, snapshot.Counter(l))
	}
	for _, l := range s.ledger.Loss() {
		out.Loss = append(out.Loss, snapshot.Counter(l))
	}
	out.Loss = append(out.Loss, s.stacks.loss())
	out.Loss = append(out.Loss, s.capture.loss()...)
	if s.recorder != nil {
		out.Loss = append(out.Loss, snapshot.Counter{Name: "oom_reports_suppressed", Value: s.recorder.suppressed,
			Help: "failures for want of memory without a report of their own: too many, or too close together"})
	}
	out.Notes = append(out.Notes, s.capture.notes()...)
	for _, path := range slices.Sorted(keys(missing)) {
		out.Notes = append(out.Notes, path+" does not export "+join(missing[path]))
	}
	return c
}

// A builder makes samples of ledger sites.
type builder struct {
	session  *Session
	frames   map[uint64][]frame
	located  map[uint64][]*snapshot.Location
	leaves   map[uint16]*snapshot.Location
	names    map[event.Process]string
	mappings []*snapshot.Mapping
	mapped   map[*snapshot.Mapping]bool
}

func (s *Session) newBuilder(c state) *builder {
	return &builder{session: s, frames: c.frames, names: c.names,
		located: map[uint64][]*snapshot.Location{}, leaves: map[uint16]*snapshot.Location{},
		mapped: map[*snapshot.Mapping]bool{}}
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
