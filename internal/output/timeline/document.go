package timeline

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A document is the content of the page.
type document struct {
	meta    meta
	lives   []life // whose leaf is a row
	moments []uint64
	until   uint64
	begin   uint64
	w       *run
	totals  render.Index[string]
	byText  render.Index[string] // rows
	rows    []int                // of leaves, negative for none
	of      []*account           // of leaves, nil for none
}

// meta is the part of the page that is not numbers over time. Names are indexes into
// Strings. Times are nanoseconds since the trace began, as --at takes them.
type meta struct {
	Title    string `json:"title"`
	Version  string `json:"version"`
	Command  string `json:"command"`
	Driver   string `json:"driver"`
	BeginMS  int64  `json:"begin_ms"` // when the trace began, by the wall clock
	End      uint64 `json:"end"`
	Changes  int    `json:"changes"` // that there were
	Instants int    `json:"instants"`
	Exact    bool   `json:"exact"`  // every change is an instant
	Bucket   int    `json:"bucket"` // of so many changes some are, 1 if it is exact
	MapExact bool   `json:"map_exact"`
	Profile  bool   `json:"profile,omitempty"` // it is of one moment
	*web.Stacks
	Rows   rows        `json:"rows"`
	Places []placeMeta `json:"places"`
	Marks  []mark      `json:"marks"`
	// Outlines are drawn over the curves of places.
	Outlines []outlineMeta  `json:"outlines,omitempty"`
	Compared *Passage       `json:"compared,omitempty"`
	Failures []Passage      `json:"failures,omitempty"`
	Windowed []windowedMeta `json:"windowed,omitempty"`
	Notes    []string       `json:"notes"`
	Loss     []lossMeta     `json:"loss"`
}

// rows are leaves by columns.
type rows struct {
	Place    []int `json:"place"`
	Process  []int `json:"process"`
	Owner    []int `json:"owner"`
	Cause    []int `json:"cause"`
	Category []int `json:"category"`
	Module   []int `json:"module"`
	Operator []int `json:"operator"`
	API      []int `json:"api"`
	Title    []int `json:"title"`            // a few frames of the stack
	Node     []int `json:"node"`             // of the stack's leaf
	Grew     []int `json:"grew"`             // bytes, over the last training steps
	Holder   []int `json:"holder,omitempty"` // the object that held most at the end, nil where no heap was read
}

type placeMeta struct {
	Name string `json:"name"`
	GPU  bool   `json:"gpu"` // its total is what processes hold on a GPU
	// Capacity is how many bytes the GPU has, 0 where it is not known.
	Capacity int64 `json:"capacity,omitempty"`
}

type mark struct {
	Time uint64 `json:"t"`
	Kind string `json:"kind"` // "oom", "step"
	Text string `json:"text"`
	GPU  string `json:"gpu"`
	Step uint64 `json:"step,omitempty"` // its number
}

type lossMeta struct {
	Name  string `json:"name"`
	Help  string `json:"help"`
	Value uint64 `json:"value"`
}

// document makes the page's data at the end of the recording.
func (w *run) document(s *state.State) *document {
	d := &document{w: w, begin: uint64(max(w.Trace.Start.Sub(w.Trace.Boot), 0)), meta: meta{Stacks: web.NewStacks(maxNodes)}, totals: render.Index[string]{}, byText: render.Index[string]{}}
	view := s.View(state.Want{Steps: true, Holders: true, Windows: true, Native: w.opts.Native})
	snap := view.Snapshot()
	m := &d.meta
	m.Title, m.Version, m.Command, m.Driver = web.Clean(render.Target(snap)), web.Clean(snap.Meta.Version), web.Clean(snap.Meta.CommandLine), web.Clean(snap.Meta.Driver)
	m.BeginMS, m.End = w.Trace.Start.UnixMilli(), d.since(w.Now)
	m.Changes = w.stream.Changes()
	m.MapExact = w.lives.until == 0
	for _, text := range snap.Notes {
		m.Notes = append(m.Notes, web.Clean(text))
	}
	m.Loss = shownLoss(snap.Loss)
	d.fill(s)
	d.stepMarks(w.steps)
	d.growth(snap)
	d.windowed(snap)
	d.holders(view, snap)
	for i := range m.Places {
		m.Places[i].Capacity = w.capacities[m.Places[i].Name]
	}
	for i := range w.failures {
		f := &w.failures[i]
		m.Marks = append(m.Marks, mark{d.since(f.Time), "oom", web.Clean(failureText(f)), f.GPU, 0})
	}
	sorting.Stable(m.Marks, func(a, b mark) int { return cmp.Compare(a.Time, b.Time) })
	return d
}

func (d *document) since(t uint64) uint64 { return t - min(t, d.begin) }

func shownLoss(all []loss.Counter) (out []lossMeta) {
	for _, c := range loss.Shown(all) {
		if c.Value != 0 {
			out = append(out, lossMeta{web.Clean(c.Name), web.Clean(c.Help), c.Value})
		}
	}
	return out
}

// stack returns the node of a stack's leaf.
func (d *document) stack(stack []*snapshot.Location) int {
	node, whole := d.meta.Stack(stack)
	if !whole {
		d.w.lost.Add(lossNodes, 1)
	}
	return node
}

// total returns the index of the total that memory of a kind is part of.
func (d *document) total(kind, gpu string) int {
	var name string
	on := snapshot.OnGPU(kind)
	switch {
	case on:
		name = gpuName(gpu)
	case kind == event.KindSystem.String():
		name = "driver's system memory"
	default:
		name = totalNames[snapshot.Class(kind)]
		if name == "" {
			name = kind
		}
	}
	i, fresh := d.totals.Number(name)
	if fresh {
		d.meta.Places = append(d.meta.Places, placeMeta{Name: name, GPU: on})
	}
	return i
}

func gpuName(label string) string { return "GPU " + web.Clean(cmp.Or(label, unknownGPU)) }

var totalNames = map[string]string{
	event.ClassHost.String():     "pinned host memory",
	event.ClassManaged.String():  "managed memory",
	event.ClassImported.String(): "imported memory",
	event.ClassGraph.String():    "addresses of CUDA graphs",
}

// row returns the index of a sample's row.
func (d *document) row(x *snapshot.Sample) int {
	process := x.Process
	if x.PID != 0 {
		process = processText(process, x.PID)
	}
	columns := []int{
		d.total(x.Kind, x.GPU), d.meta.Text(process), d.meta.Text(x.Owner), d.meta.Text(cause(x)), d.meta.Text(x.Category), d.meta.Text(x.Module), d.meta.Text(x.Operator), d.meta.Text(x.API), d.meta.Text(render.Brief(x.Frames(), 4)), d.stack(x.Frames()),
	}
	i, fresh := d.byText.Number(fmt.Sprint(columns))
	if fresh {
		r := &d.meta.Rows
		for j, to := range []*[]int{&r.Place, &r.Process, &r.Owner, &r.Cause, &r.Category, &r.Module, &r.Operator, &r.API, &r.Title, &r.Node} {
			*to = append(*to, columns[j])
		}
		r.Grew = append(r.Grew, 0)
		if r.Holder != nil { // by then it has those of all that is held at the end
			r.Holder = append(r.Holder, d.meta.Text(""))
		}
	}
	return i
}

// cause returns the cause of a sample's memory: that of snapshot.Cause, under the names of
// accounts.
func cause(x *snapshot.Sample) string {
	switch x.Kind {
	case event.KindTensor.String():
		return state.LineTensors
	case event.KindCached.String():
		return strings.Trim(state.LineCached, "[]")
	}
	return snapshot.Cause(x)
}

// sampleOf returns the sample of a leaf.
func (d *document) sampleOf(l *leaf) snapshot.Sample {
	x := snapshot.Sample{Labels: snapshot.Labels{Kind: l.key.Kind.String(), Process: d.w.names[l.key.Proc], PID: int(l.key.Proc.PID), GPU: l.gpu}}
	switch {
	case l.sample != nil:
		x = *l.sample
	case l.role == roleOther, l.role == rolePlain, l.role == roleAsync, l.role == roleTaken:
		x.Stack = []*snapshot.Location{named("[no call site: limit reached]")}
	}
	if l.cached && x.Kind != event.KindTensor.String() {
		x.Kind = event.KindCached.String()
		x.Stack = append([]*snapshot.Location{named(state.LineCached)}, x.Stack...)
	}
	return x
}

func named(name string) *snapshot.Location {
	return &snapshot.Location{Lines: []snapshot.Line{{Function: name}}}
}

// An account follows what a process holds on a GPU. It has the parts without a call site of
// the accounts of package state.
type account struct {
	process
	proc    event.Process
	gpu     string
	held    [numRoles]int64
	rows    [numParts]int // from 1 on
	shown   [numParts]int64
	touched bool
}

// The parts of an account without a call site.
const (
	partRounding = iota
	partCalls
	partUnused
	partBefore
	numParts
)

// reset forgets what the account holds.
func (a *account) reset() {
	a.held, a.shown, a.touched = [numRoles]int64{}, [numParts]int64{}, false
}

// parts returns the parts of the total that no call site has.
func (a *account) parts() (out [numParts]int64) {
	outside := a.held[roleOutside]
	known := !a.late && a.seen || a.known
	if known {
		out[partBefore] = a.held[roleBeyond] - outside
	}
	if !a.seen {
		return out
	}
	out[partCalls] = a.held[roleCall]
	rounding, unused := a.held[roleBacking]-a.held[roleCall]-(a.held[rolePlain]-outside), a.held[rolePool]-a.held[roleAsync]
	if a.late {
		if known {
			out[partBefore] += min(rounding, 0) + min(unused, 0)
		}
		rounding, unused = max(rounding, 0), max(unused, 0)
	}
	out[partRounding], out[partUnused] = rounding, unused
	return out
}

// partName names a part.
func (a *account) partName(part int) string {
	switch {
	case part == partRounding:
		return state.LineRounding
	case part == partCalls:
		return state.LineUnderWay
	case part == partUnused:
		return "[" + snapshot.Pool + "]"
	case a.late:
		return state.LineBefore
	}
	return state.LineRemainder
}

// fill makes rows of leaves.
func (d *document) fill(s *state.State) {
	w := d.w
	type key struct {
		proc event.Process
		gpu  string
	}
	accounts := map[key]*account{}
	d.rows, d.of = make([]int, len(w.leaves)), make([]*account, len(w.leaves))
	for i := range w.leaves {
		l := &w.leaves[i]
		x := d.sampleOf(l)
		if (l.role == roleOutside || l.role == roleCall) && s.IsAlive(l.key.Proc) {
			x.GPU = s.GPU(&l.key)
		}
		if l.role != roleOther {
			a := keyed.At(accounts, key{l.key.Proc, x.GPU})
			a.process, a.proc, a.gpu = w.seen[l.key.Proc], l.key.Proc, x.GPU
			d.of[i] = a
		}
		switch l.role {
		case roleBacking, rolePool, roleOutside, roleBeyond, roleCall:
			d.rows[i] = -1
		default:
			d.rows[i] = d.row(&x)
		}
	}
	unknown := map[event.Process]bool{}
	for _, a := range accounts {
		if a.late && !a.known || !a.seen && !a.known {
			unknown[a.proc] = true
		}
	}
	for _, id := range sorting.Keys(unknown, event.Process.Compare) {
		d.meta.Notes = append(d.meta.Notes, fmt.Sprintf("what %s (%d) holds on GPUs beyond what was seen is not known", web.Clean(cmp.Or(w.names[id], "process")), id.PID))
	}
	for _, x := range w.lives.all {
		if x.leaf >= 0 && d.rows[x.leaf] >= 0 {
			x.leaf = int32(d.rows[x.leaf])
			d.lives = append(d.lives, x)
		}
	}
	d.moments, d.until = w.lives.moments, w.lives.until
}

// growth adds the growth over the last training steps.
func (d *document) growth(snap *snapshot.Snapshot) {
	for i := range snap.Steps {
		x := &snap.Steps[i]
		for j := range x.Grew {
			before := len(d.meta.Rows.Place)
			if row := d.row(x.Grew[j].Sample); row < before {
				d.meta.Rows.Grew[row] = int(x.Grew[j].Bytes)
			}
		}
	}
}
