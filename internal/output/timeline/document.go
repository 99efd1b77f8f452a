package timeline

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A document is what the page is made of.
type document struct {
	meta    meta
	lives   []life // whose leaf is a row
	moments []uint64
	until   uint64
	begin   uint64
	w       *watcher
	places  map[string]int
	rowOf   map[string]int
	rows    []int      // of leaves, negative for none
	of      []*account // of leaves, nil for none
}

// meta is the part of the page that is not numbers over time. Names are indexes into
// Strings. Times are nanoseconds since Begin.
type meta struct {
	Title    string `json:"title"`
	Version  string `json:"version"`
	Command  string `json:"command"`
	Driver   string `json:"driver"`
	BeginMS  int64  `json:"begin_ms"` // of the wall clock
	After    uint64 `json:"after"`    // from when the trace began to Begin
	End      uint64 `json:"end"`
	Changes  int    `json:"changes"` // that there were
	Instants int    `json:"instants"`
	Exact    bool   `json:"exact"`  // every change is an instant
	Bucket   int    `json:"bucket"` // of so many changes some are, 1 if it is exact
	MapExact bool   `json:"map_exact"`
	*web.Stacks
	Rows   rows        `json:"rows"`
	Places []placeMeta `json:"places"`
	Marks  []mark      `json:"marks"`
	Notes  []string    `json:"notes"`
	Loss   []lossMeta  `json:"loss"`
}

// rows are leaves by columns.
type rows struct {
	Place    []int `json:"place"`
	Process  []int `json:"process"`
	Owner    []int `json:"owner"`
	Cause    []int `json:"cause"`
	Category []int `json:"category"`
	Module   []int `json:"module"`
	API      []int `json:"api"`
	Title    []int `json:"title"` // the few frames of the stack that tell most
	Node     []int `json:"node"`  // of the stack's leaf
	Grew     []int `json:"grew"`  // bytes, over the last training steps
}

type placeMeta struct {
	Name string `json:"name"`
	GPU  bool   `json:"gpu"` // its total is what processes hold on a GPU
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
func (w *watcher) document(s *state.State) *document {
	d := &document{w: w, begin: w.begin, meta: meta{Stacks: web.NewStacks(maxNodes)}, places: map[string]int{}, rowOf: map[string]int{}}
	view := s.View(state.Want{Steps: true, Native: w.opts.Native})
	snap := view.Snapshot()
	m := &d.meta
	m.Title, m.Version, m.Command, m.Driver = web.Clean(snap.Meta.Target), web.Clean(snap.Meta.Version), web.Clean(snap.Meta.CommandLine), web.Clean(snap.Meta.Driver)
	begin := w.trace.Boot.Add(time.Duration(w.begin))
	m.BeginMS, m.After, m.End = begin.UnixMilli(), uint64(max(begin.Sub(w.trace.Start), 0)), d.since(w.now)
	m.Changes = w.stream.changes
	m.MapExact = w.lives.until == 0
	for _, text := range snap.Notes {
		m.Notes = append(m.Notes, web.Clean(text))
	}
	m.Loss = shownLoss(snap.Loss)
	d.fill(s)
	d.stepMarks(w.steps)
	d.growth(snap)
	for i := range w.failures {
		f := &w.failures[i]
		m.Marks = append(m.Marks, mark{d.since(f.Time), "oom", web.Clean(failureText(f)), f.GPU, 0})
	}
	slices.SortStableFunc(m.Marks, func(a, b mark) int { return cmp.Compare(a.Time, b.Time) })
	return d
}

func (d *document) since(t uint64) uint64 { return t - min(t, d.begin) }

func shownLoss(all []loss.Counter) (out []lossMeta) {
	for _, c := range all {
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

// place returns the index of a total that memory of a kind is part of.
func (d *document) place(kind, gpu string) int {
	var name string
	on := render.OnGPU(kind)
	switch {
	case on:
		name = "GPU " + web.Clean(cmp.Or(gpu, unknownGPU))
	case kind == event.KindSystem.String():
		name = "driver's system memory"
	default:
		name = placeNames[render.Class(kind)]
		if name == "" {
			name = kind
		}
	}
	i, ok := d.places[name]
	if !ok {
		i = len(d.meta.Places)
		d.places[name] = i
		d.meta.Places = append(d.meta.Places, placeMeta{name, on})
	}
	return i
}

var placeNames = map[string]string{
	event.ClassHost.String():     "pinned host memory",
	event.ClassManaged.String():  "managed memory",
	event.ClassImported.String(): "imported memory",
	event.ClassGraph.String():    "addresses of CUDA graphs",
}

// row returns the index of what a sample shows.
func (d *document) row(x *snapshot.Sample) int {
	process := x.Process
	if x.PID != 0 {
		process = fmt.Sprintf("%s (%d)", cmp.Or(process, "?"), x.PID)
	}
	columns := []int{
		d.place(x.Kind, x.GPU), d.meta.Text(process), d.meta.Text(x.Owner), d.meta.Text(cause(x)), d.meta.Text(x.Category), d.meta.Text(x.Module), d.meta.Text(x.API), d.meta.Text(render.Telling(x.Frames(), 3)), d.stack(x.Frames()),
	}
	key := fmt.Sprint(columns)
	i, ok := d.rowOf[key]
	if !ok {
		r := &d.meta.Rows
		i = len(r.Place)
		d.rowOf[key] = i
		for j, to := range []*[]int{&r.Place, &r.Process, &r.Owner, &r.Cause, &r.Category, &r.Module, &r.API, &r.Title, &r.Node} {
			*to = append(*to, columns[j])
		}
		r.Grew = append(r.Grew, 0)
	}
	return i
}

// cause is what a sample's memory is for: as render.Cause has it, under the names of
// accounts.
func cause(x *snapshot.Sample) string {
	switch x.Kind {
	case event.KindTensor.String():
		return state.LineTensors
	case event.KindCached.String():
		return strings.Trim(state.LineCached, "[]")
	}
	return render.Cause(x)
}

// sampleOf returns what a leaf shows.
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

// An account follows what a process holds on a GPU: see state's accounts, whose parts
// without a call site these are.
type account struct {
	process
	proc                                         event.Process
	gpu                                          string
	plain, async, backing, pool, outside, beyond int64
	rounding, unused, before                     int // rows, from 1 on
	shownRounding, shownUnused, shownBefore      int64
	touched                                      bool
}

// reset forgets what was taken.
func (a *account) reset() {
	*a = account{process: a.process, proc: a.proc, gpu: a.gpu, rounding: a.rounding, unused: a.unused, before: a.before}
}

func (a *account) take(r role, bytes int64) {
	switch r {
	case rolePlain:
		a.plain += bytes
	case roleAsync:
		a.async += bytes
	case roleBacking:
		a.backing += bytes
	case rolePool:
		a.pool += bytes
	case roleOutside:
		a.outside += bytes
	case roleBeyond:
		a.beyond += bytes
	}
}

// parts returns what of the total no call site has.
func (a *account) parts() (rounding, unused, before int64) {
	known := !a.late && a.seen || a.told
	if known {
		before = a.beyond - a.outside
	}
	if !a.seen {
		return 0, 0, before
	}
	rounding, unused = a.backing-(a.plain-a.outside), a.pool-a.async
	if a.late {
		if known {
			before += min(rounding, 0) + min(unused, 0)
		}
		rounding, unused = max(rounding, 0), max(unused, 0)
	}
	return rounding, unused, before
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
		if l.role == roleOutside && s.Lives(l.key.Proc) {
			x.GPU = s.GPU(&l.key)
		}
		if l.role != roleOther {
			k := key{l.key.Proc, x.GPU}
			if accounts[k] == nil {
				accounts[k] = &account{process: w.seen[l.key.Proc], proc: l.key.Proc, gpu: x.GPU}
			}
			d.of[i] = accounts[k]
		}
		switch l.role {
		case roleBacking, rolePool, roleOutside, roleBeyond:
			d.rows[i] = -1
		default:
			d.rows[i] = d.row(&x)
		}
	}
	unknown := map[event.Process]bool{}
	for _, a := range accounts {
		if a.late && !a.told || !a.seen && !a.told {
			unknown[a.proc] = true
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(unknown), compareProcesses) {
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

func (a *account) beforeName() string {
	if a.late {
		return state.LineBefore
	}
	return state.LineRemainder
}

// growth adds what grew over the last training steps.
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
