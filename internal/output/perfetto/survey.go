package perfetto

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A moment is what both passes know of the time.
type moment struct {
	trace record.Trace
	now   uint64 // CLOCK_MONOTONIC in nanoseconds
	slept uint64 // as record.Moment
	// rebuilding: what was live is being told again, so that what is held is less than
	// it was.
	rebuilding bool
}

// take follows a record, before the state has it.
func (m *moment) take(r record.Record) {
	switch r := r.(type) {
	case *record.Trace:
		m.trace = *r
	case *record.Cut:
		m.now, m.rebuilding = max(m.now, r.Time), true
	case *record.Moment:
		m.now, m.slept, m.rebuilding = max(m.now, r.Time), r.Slept, false
	case *event.Event:
		if !m.rebuilding {
			m.now = max(m.now, r.Time)
		}
	}
}

// A survey is the first pass: which call sites there are, and what they are. A site goes
// by its key when it is first heard of: its device may become known later.
type survey struct {
	moment
	opts    Options
	lost    *loss.Set
	records int
	state   *state.State

	begin, end uint64 // of time
	first      uint64 // what the machine had slept at the first moment
	timed      bool
	sites      map[*ledger.Site]ledger.SiteKey // their keys
	of         map[event.Process]*sites        // living
	kept       int
	views      []kept
	pools      map[ledger.SiteKey]bool // that tensors were handed out of
	processes  map[event.Process]*process
	shown      map[ledger.SiteKey]snapshot.Sample
	tensors    string // what their counters are called
}

// sites are those of a process, and what they went by when they were first heard of.
type sites struct {
	all  []*ledger.Site
	keys []ledger.SiteKey
}

// kept are sites as they were when their process ended.
type kept struct {
	keys []ledger.SiteKey
	view *state.Selection
}

// A process is what tracks of it say.
type process struct {
	name           string
	failed, driver bool // has failures, readings
	uuid           uint64
	failures       uint64 // tracks
	readings       uint64
}

func newSurvey(o Options, lost *loss.Set) *survey {
	return &survey{opts: o, lost: lost, sites: map[*ledger.Site]ledger.SiteKey{}, of: map[event.Process]*sites{},
		pools: map[ledger.SiteKey]bool{}, processes: map[event.Process]*process{}, shown: map[ledger.SiteKey]snapshot.Sample{}}
}

// before hears of each record before the state takes it.
func (v *survey) before(s *state.State, r record.Record) {
	v.records++
	v.state = s
	v.take(r)
	if v.begin == 0 && !v.rebuilding {
		v.begin = v.now
	}
	switch r := r.(type) {
	case *record.Moment:
		if !v.timed {
			v.timed, v.first = true, r.Slept
		}
	case *record.Cut:
		v.keepAll(s)
	case *record.Reading:
		for i := range r.Uses {
			if r.Uses[i].Known {
				v.process(r.Uses[i].Process).driver = true
			}
		}
	case *event.Event:
		if state.OutOfMemory(r) {
			v.process(r.Proc).failed = true
		}
		if r.Op == event.OpExit && v.processes[r.Proc] != nil {
			v.process(r.Proc).name = cmp.Or(s.Name(r.Proc), r.Name)
			v.keep(s, r.Proc)
		}
	}
}

// maxProcesses bounds those that have a track, as many as the ledgers have.
const maxProcesses = 1 << 16

// process returns what tracks say of a process, made if there is room.
func (v *survey) process(id event.Process) *process {
	p := v.processes[id]
	if p == nil {
		p = &process{}
		if len(v.processes) < maxProcesses {
			v.processes[id] = p
		}
	}
	return p
}

// changed hears of a change.
func (v *survey) changed(c ledger.Change) {
	one := c.Site
	defer v.pool(one)
	if _, ok := v.sites[one]; ok || v.kept >= maxSites {
		return
	}
	v.kept++
	v.sites[one] = one.SiteKey
	v.process(one.Proc)
	of := v.of[one.Proc]
	if of == nil {
		of = &sites{}
		v.of[one.Proc] = of
	}
	of.all, of.keys = append(of.all, one), append(of.keys, one.SiteKey)
}

// pool looks whether tensors were handed out of a site's memory.
func (v *survey) pool(one *ledger.Site) {
	if key, ok := v.sites[one]; ok && one.Kind.Class() == event.ClassDevice && !v.pools[key] && v.state.Pools(one) {
		v.pools[key] = true
	}
}

// keep keeps the sites of a process that is about to end.
func (v *survey) keep(s *state.State, id event.Process) {
	of := v.of[id]
	if of == nil {
		return
	}
	v.views = append(v.views, kept{of.keys, s.Select(of.all, v.opts.Native)})
	for _, one := range of.all {
		delete(v.sites, one)
	}
	delete(v.of, id)
}

func (v *survey) keepAll(s *state.State) {
	for id := range v.of {
		if name := s.Name(id); name != "" {
			v.process(id).name = name
		}
		v.keep(s, id)
	}
}

// finish names what was kept, at the end of the recording.
func (v *survey) finish(s *state.State) {
	v.keepAll(s)
	for id, p := range v.processes {
		p.name = cmp.Or(p.name, s.Name(id))
	}
	v.end = v.now
	v.tensors = nameTensors
	if sample, least := s.Telling(); sample != 0 || least != 0 {
		v.tensors = partial(sample, least)
		clear(v.pools) // nobody knows what of them is in tensors
	}
	for _, k := range v.views {
		for i, sample := range k.view.Selected() {
			v.shown[k.keys[i]] = sample
		}
	}
	v.views, v.sites, v.of, v.state = nil, nil, nil, nil
}

// ordered returns the processes that have tracks, by PID.
func (v *survey) ordered() []event.Process {
	ids := make([]event.Process, 0, len(v.processes))
	for id := range v.processes {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, compareProcesses)
	return ids
}

func compareProcesses(a, b event.Process) int {
	return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Start, b.Start))
}

// Names of counters are those of a class's total, and of its parts.
const (
	nameAll         = "all memory"
	nameAllocations = "allocations"
	nameTensors     = "tensors"
)

// partial returns what tensors are called where not every one is told: those that are
// told of a sample count for others.
func partial(sample, least uint64) string {
	name := nameTensors
	if least != 0 {
		name += " of " + bytefmt.Format(int64(least)) + " and more"
	}
	if sample != 0 {
		name += " (estimated)"
	}
	return name
}

// counters returns the names of the counters that a site's bytes are in, its class's
// total first.
func (v *survey) counters(x *snapshot.Sample, kind event.Kind) []string {
	gpu := ""
	if x.GPU != "" {
		gpu = "GPU " + x.GPU + " "
	}
	by := func(total, part string) []string {
		if part == "" {
			part = "not known"
		}
		return []string{gpu + total, gpu + total + ": " + part}
	}
	switch class := kind.Class(); {
	case kind == event.KindSystem, class == event.ClassDriver && x.Kind != event.KindBacking.String() && x.Kind != event.KindPool.String():
		name := gpu + "[" + x.Kind + "]"
		if len(x.Stack) > 0 && len(x.Stack[0].Lines) > 0 {
			name = gpu + x.Stack[0].Lines[0].Function
		}
		if kind == event.KindSystem {
			return []string{name}
		}
		return []string{gpu + nameAll, name}
	case class == event.ClassDriver:
		return []string{gpu + nameAll}
	case class == event.ClassTensor:
		return by(v.tensors, x.Category)
	case class == event.ClassDevice:
		return by(nameAllocations, x.Owner)
	default:
		return by(class.String(), x.Owner)
	}
}

// cached returns the name of the counter of what a pool's site holds in no tensor.
func cached(x *snapshot.Sample) string { return "GPU " + x.GPU + " " + state.LineCached }

// leafLines returns the lines of a stack's leaf end by which a slice is known.
func leafLines(stack []*snapshot.Location) (lines []string) {
	const most = 8
	for _, l := range stack {
		for i := range l.Lines {
			if len(lines) == most {
				return lines
			}
			lines = append(lines, render.Name(&l.Lines[i]))
		}
	}
	return lines
}
