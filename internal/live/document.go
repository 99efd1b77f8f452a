package live

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// DocumentVersion changes when a reader of the JSON would have to. New keys do not change
// it.
const DocumentVersion = 1

// A Document is a status for programs, as one JSON object. All bytes are whole numbers,
// rates are by second, times are in nanoseconds. Rates are of the last "interval_ns", and
// growth of the last "window_ns", 0 where there is none yet.
type Document struct {
	SchemaVersion int                `json:"schema_version"`
	Meta          snapshot.Meta      `json:"meta"` // as in the JSON output of a trace
	Interval      time.Duration      `json:"interval_ns"`
	Window        time.Duration      `json:"window_ns"`
	Total         Total              `json:"total"`
	GPUs          []DocumentGPU      `json:"gpus"`
	Processes     []Process          `json:"processes"`
	Accounts      []snapshot.Account `json:"accounts"` // as in the JSON output of a trace
	Owners        []Owner            `json:"owners"`   // the largest first
	// Stacks are those that hold most, Growing those that grew most in the window.
	Stacks  []DocumentStack `json:"stacks"`
	Growing []DocumentStack `json:"growing"`
	// Windowed are the tensors that were seen in windows, where Meta says that there are some.
	Windowed []DocumentWindowed `json:"windows,omitempty"`
	// StacksLeftOut are those that Stacks has not.
	StacksLeftOut int            `json:"stacks_left_out"`
	Lost          []loss.Counter `json:"loss"` // those that are not zero
	Notes         []string       `json:"notes"`
	Cost          *DocumentCost  `json:"own_cost"` // null for a recording
	Ended         string         `json:"ended,omitempty"`
}

// A DocumentGPU is one GPU. Total and Used are null where NVML was not asked.
type DocumentGPU struct {
	GPU
	Total *int64 `json:"total_bytes"`
	Used  *int64 `json:"used_bytes"`
}

// A DocumentStack is one call site.
type DocumentStack struct {
	PID     int             `json:"pid"`
	Process string          `json:"process"`
	GPU     string          `json:"gpu"` // "" for memory on none
	Kind    string          `json:"kind"`
	API     string          `json:"api"`
	Owner   string          `json:"owner"`
	Holder  string          `json:"holder,omitempty"` // of most of it, where heaps are read
	Inuse   int64           `json:"inuse_bytes"`
	Objects int64           `json:"inuse_objects"`
	Peak    int64           `json:"peak_bytes"`
	Alloc   int64           `json:"alloc_bytes"`
	Grown   int64           `json:"grown_bytes"`
	Rate    float64         `json:"allocated_bytes_per_second"`
	Text    string          `json:"text"`   // a line that names it
	Frames  []snapshot.Line `json:"frames"` // leaf first
}

// A DocumentCost is what this process cost.
type DocumentCost struct {
	Cost
	Load float64 `json:"cpu_share"` // of a core, in the interval
}

// Document returns p with n stacks of each sort, all if n is negative.
func (p *Status) Document(n int) *Document {
	all := p.Select(&Scope{}, "", ByInuse, false)
	d := &Document{
		SchemaVersion: DocumentVersion, Meta: p.Meta, Interval: p.Interval, Window: p.Window, Ended: p.Ended, Total: all.Total,
		GPUs: []DocumentGPU{}, Processes: orEmpty(slices.Clone(all.Processes)), Owners: orEmpty(slices.Clone(all.Owners)), Stacks: []DocumentStack{}, Growing: []DocumentStack{},
		Accounts: orEmpty(p.Accounts), Lost: orEmpty(p.Lost), Notes: orEmpty(p.Notes),
	}
	d.Meta.Duration = p.Elapsed
	for i := range d.Processes {
		d.Processes[i].GPUs = orEmpty(d.Processes[i].GPUs)
	}
	for _, g := range all.GPUs {
		one := DocumentGPU{GPU: g}
		if g.Total > 0 {
			one.Total, one.Used = &g.Total, &g.Used
		}
		d.GPUs = append(d.GPUs, one)
	}
	most := func(xs []*Stack) []*Stack {
		if n >= 0 {
			return xs[:min(n, len(xs))]
		}
		return xs
	}
	for _, x := range most(all.Stacks) {
		d.Stacks = append(d.Stacks, x.document())
	}
	d.StacksLeftOut = len(all.Stacks) - len(d.Stacks)
	all.Sort(ByGrown, false)
	for _, x := range most(all.Stacks) {
		if x.Grown > 0 {
			d.Growing = append(d.Growing, x.document())
		}
	}
	d.Windowed = windowed(p.Windowed, n)
	if p.Cost != nil {
		d.Cost = &DocumentCost{*p.Cost, p.Load}
	}
	return d
}

// orEmpty returns a list that is [] and not null where it is empty.
func orEmpty[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

func (x *Stack) document() DocumentStack {
	s := x.Sample
	out := DocumentStack{PID: s.PID, Process: s.Process, GPU: s.GPU, Kind: s.Kind, API: s.API, Owner: s.Owner, Holder: x.Holder(),
		Inuse: s.InuseBytes, Objects: s.InuseObjects, Peak: s.PeakBytes, Alloc: s.AllocBytes, Grown: x.Grown, Rate: x.Rate, Text: x.Text()}
	for _, l := range s.Frames() {
		out.Frames = append(out.Frames, l.Lines...)
	}
	return out
}

// JSON writes p as a Document on one line, with n stacks of each sort.
func JSON(w io.Writer, p *Status, n int) error { return p.Document(n).Write(w) }

// Write writes d on one line. What a terminal could act upon is escaped beyond what JSON
// asks for.
func (d *Document) Write(w io.Writer) error {
	line, err := render.JSON(d)
	if err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	return nil
}
