package perfetto

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/observe"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A survey is the first pass: which call sites there are, and what they are. A site goes
// by its key when it is first heard of: its device may become known later.
type survey struct {
	*observe.Observer[ledger.SiteKey]
	records int
	slept   uint64 // how long the machine had slept at the first moment
	timed   bool
	met     int // sites

	pools     map[ledger.SiteKey]bool // that tensors were handed out of
	processes map[event.Process]*process
	shown     map[ledger.SiteKey]snapshot.Sample
	tensors   string // what their counters are called
}

// A process is the data of its tracks.
type process struct {
	name           string
	failed, driver bool // has failures, readings
	uuid           uint64
	failures       uint64 // tracks
	readings       uint64
}

func newSurvey(o Options) *survey {
	v := &survey{pools: map[ledger.SiteKey]bool{}, processes: map[event.Process]*process{}, shown: map[ledger.SiteKey]snapshot.Sample{}}
	v.Observer = observe.New(o.Native, observe.Hooks[ledger.SiteKey]{Meet: v.meet, Count: v.count, Leave: v.leave,
		Name: func(key ledger.SiteKey, x snapshot.Sample) { v.shown[key] = x }})
	return v
}

// before follows a record before the state applies it.
func (v *survey) before(s *state.State, r record.Record) {
	v.records++
	v.Before(s, r)
	switch r := r.(type) {
	case *record.Moment:
		if !v.timed {
			v.timed, v.slept = true, r.Slept
		}
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
	}
}

// process returns the data of a process, made if there is room.
func (v *survey) process(id event.Process) *process {
	p := v.processes[id]
	if p == nil {
		p = &process{}
		if len(v.processes) < observe.MaxProcesses {
			v.processes[id] = p
		}
	}
	return p
}

// meet counts a new site.
func (v *survey) meet(site *ledger.Site) (ledger.SiteKey, bool) {
	if v.met >= maxSites {
		return ledger.SiteKey{}, false
	}
	v.met++
	v.process(site.Proc)
	return site.SiteKey, true
}

// count looks whether tensors were handed out of a site's memory.
func (v *survey) count(x *observe.Site[ledger.SiteKey]) {
	if x.Kind.Class() != event.ClassDevice || v.pools[x.Own] {
		return
	}
	if _, divided := v.State.CachedBytes(x.Site); divided {
		v.pools[x.Own] = true
	}
}

// leave stores the name of a process.
func (v *survey) leave(id event.Process, name string) {
	if p := v.processes[id]; p != nil {
		p.name = cmp.Or(v.State.Name(id), name, p.name)
	}
}

// finish names processes and sites, at the end of the recording.
func (v *survey) finish(s *state.State) {
	v.Finish(s)
	for id, p := range v.processes {
		p.name = cmp.Or(p.name, s.Name(id))
	}
	v.tensors = nameTensors
	if s.TensorSample() != 0 {
		v.tensors = nameEstimates
		clear(v.pools) // it is not known how much of them is in tensors
	}
	v.NameSites()
	v.Observer = &observe.Observer[ledger.SiteKey]{Clock: v.Clock} // the second pass needs the memory of the rest
}

// ordered returns the processes that have tracks, by PID.
func (v *survey) ordered() []event.Process {
	ids := make([]event.Process, 0, len(v.processes))
	for id := range v.processes {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, observe.CompareProcesses)
	return ids
}

// Names of counters are those of a class's total, and of its parts.
const (
	nameAll         = "all memory"
	nameAllocations = "allocations"
	nameTensors     = "tensors"
	nameEstimates   = "tensors (estimated)" // those of a sample count for others
)

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
