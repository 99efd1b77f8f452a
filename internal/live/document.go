package live

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// DocumentVersion changes when a reader of the JSON would have to. New keys do not change
// it.
const DocumentVersion = 1

// A Document is a Picture for programs, as one JSON object. All bytes are whole numbers,
// rates are a second, times are in nanoseconds; "interval_ns" is what rates are of and
// "window_ns" what growth is of, 0 where there is none yet.
type Document struct {
	SchemaVersion int                `json:"schema_version"`
	Meta          snapshot.Meta      `json:"meta"` // as in the JSON output of a trace
	Interval      time.Duration      `json:"interval_ns"`
	Window        time.Duration      `json:"window_ns"`
	Total         DocumentTotal      `json:"total"`
	GPUs          []DocumentGPU      `json:"gpus"`
	Processes     []DocumentProc     `json:"processes"`
	Accounts      []snapshot.Account `json:"accounts"` // as in the JSON output of a trace
	Owners        []DocumentOwner    `json:"owners"`   // the largest first
	// Stacks are those that hold most, Growing those that grew most in the window.
	Stacks  []DocumentStack `json:"stacks"`
	Growing []DocumentStack `json:"growing"`
	// StacksLeftOut are those that Stacks has not.
	StacksLeftOut int            `json:"stacks_left_out"`
	Lost          []loss.Counter `json:"loss"` // those that are not zero
	Notes         []string       `json:"notes"`
	Cost          *DocumentCost  `json:"own_cost"` // null for a recording
	Ended         string         `json:"ended,omitempty"`
}

// A DocumentTotal is of all GPUs, and of all traced processes.
type DocumentTotal struct {
	Held        int64   `json:"held_bytes"` // what traced processes hold, of whatever cause
	Known       bool    `json:"known"`      // Held is all of that
	Unexplained int64   `json:"unexplained_bytes"`
	Inuse       int64   `json:"inuse_bytes"` // of processes, as below
	Grown       int64   `json:"grown_bytes"`
	Rate        float64 `json:"allocated_bytes_per_second"`
	EventRate   float64 `json:"events_per_second"`
	Failed      int64   `json:"failed"`
	OutOfMemory int64   `json:"out_of_memory"`
}

// A DocumentGPU is one GPU. Total and Used are null where NVML was not asked.
type DocumentGPU struct {
	GPU         string `json:"gpu"`
	Name        string `json:"name"`
	Total       *int64 `json:"total_bytes"`
	Used        *int64 `json:"used_bytes"`
	Held        int64  `json:"held_bytes"`
	Known       bool   `json:"known"` // all of what its processes hold is
	Unexplained int64  `json:"unexplained_bytes"`
	Traced      int    `json:"traced_processes"`
	Others      int    `json:"other_processes"`
}

// A DocumentProc is one process.
type DocumentProc struct {
	snapshot.Process
	GPUs        []string `json:"gpus"`
	Held        int64    `json:"held_bytes"`
	Known       bool     `json:"known"`
	Unexplained int64    `json:"unexplained_bytes"`
	Grown       int64    `json:"grown_bytes"`
	Rate        float64  `json:"allocated_bytes_per_second"`
	// Difference is what the driver says beyond what it holds, null where that was not
	// compared.
	Difference *int64 `json:"difference_bytes"`
}

// A DocumentOwner is one owner, of all processes.
type DocumentOwner struct {
	Owner string  `json:"owner"` // "" where it is not known
	Inuse int64   `json:"inuse_bytes"`
	Grown int64   `json:"grown_bytes"`
	Rate  float64 `json:"allocated_bytes_per_second"`
}

// A DocumentStack is one call site.
type DocumentStack struct {
	PID     int             `json:"pid"`
	Process string          `json:"process"`
	GPU     string          `json:"gpu"` // "" for memory on none
	Kind    string          `json:"kind"`
	API     string          `json:"api"`
	Owner   string          `json:"owner"`
	Inuse   int64           `json:"inuse_bytes"`
	Objects int64           `json:"inuse_objects"`
	Peak    int64           `json:"peak_bytes"`
	Alloc   int64           `json:"alloc_bytes"`
	Grown   int64           `json:"grown_bytes"`
	Rate    float64         `json:"allocated_bytes_per_second"`
	Text    string          `json:"text"`   // a line that names it
	Frames  []snapshot.Line `json:"frames"` // leaf first
}

// A DocumentCost is what this process took.
type DocumentCost struct {
	CPU    time.Duration `json:"cpu_ns"`       // since it began
	Load   float64       `json:"cpu_share"`    // of a core, in the interval
	Memory int64         `json:"memory_bytes"` // the most that it had
}

// Document returns p with n stacks of each sort, all if n is negative.
func (p *Picture) Document(n int) *Document {
	part := p.Part(&Scope{}, "", ByInuse, false)
	d := &Document{
		SchemaVersion: DocumentVersion, Meta: p.Meta, Interval: p.Interval, Window: p.Window, Ended: p.Ended,
		Total: DocumentTotal{Held: part.Held, Known: !part.Partial, Unexplained: part.Unexplained, Rate: part.Rate, EventRate: p.EventRate, Failed: part.Failed, OutOfMemory: part.OutOfMemory},
		GPUs:  []DocumentGPU{}, Processes: []DocumentProc{}, Owners: []DocumentOwner{}, Stacks: []DocumentStack{}, Growing: []DocumentStack{},
		Accounts: orEmpty(p.Accounts), Lost: orEmpty(p.Lost), Notes: orEmpty(p.Notes),
	}
	d.Meta.Duration = p.Elapsed
	for i := range part.GPUs {
		g := &part.GPUs[i]
		one := DocumentGPU{GPU: g.Label, Name: g.Name, Held: g.Held, Known: !g.Part, Unexplained: g.Unexplained, Traced: g.Traced, Others: g.Others}
		if g.Total > 0 {
			one.Total, one.Used = &g.Total, &g.Used
		}
		d.GPUs = append(d.GPUs, one)
	}
	for i := range part.Processes {
		x := &part.Processes[i]
		one := DocumentProc{Process: x.Process, GPUs: orEmpty(x.GPUs), Held: x.Held, Known: x.Known, Unexplained: x.Unexplained, Grown: x.Grown, Rate: x.Rate}
		if x.Compared {
			one.Difference = &x.Difference
		}
		d.Processes = append(d.Processes, one)
		d.Total.Inuse += x.Inuse
		d.Total.Grown += x.Grown
	}
	for _, o := range part.Owners {
		d.Owners = append(d.Owners, DocumentOwner{o.Name, o.Inuse, o.Grown, o.Rate})
	}
	most := func(xs []*Stack) []*Stack {
		if n >= 0 {
			return xs[:min(n, len(xs))]
		}
		return xs
	}
	for _, x := range most(part.Stacks) {
		d.Stacks = append(d.Stacks, x.document())
	}
	d.StacksLeftOut = len(part.Stacks) - len(d.Stacks)
	part.Sort(ByGrown, false)
	for _, x := range most(part.Stacks) {
		if x.Grown > 0 {
			d.Growing = append(d.Growing, x.document())
		}
	}
	if p.Cost != nil {
		d.Cost = &DocumentCost{p.Cost.CPU, p.Load, p.Cost.Memory}
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
	out := DocumentStack{PID: s.PID, Process: s.Process, GPU: s.GPU, Kind: s.Kind, API: s.API, Owner: s.Owner,
		Inuse: s.InuseBytes, Objects: s.InuseObjects, Peak: s.PeakBytes, Alloc: s.AllocBytes, Grown: x.Grown, Rate: x.Rate, Text: x.Text()}
	for _, l := range s.Frames() {
		out.Frames = append(out.Frames, l.Lines...)
	}
	return out
}

// JSON writes p as a Document on one line, with n stacks of each sort.
func JSON(w io.Writer, p *Picture, n int) error { return p.Document(n).Write(w) }

// Write writes d on one line. What a terminal could act upon is escaped beyond what JSON
// asks for.
func (d *Document) Write(w io.Writer) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(d); err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	line := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	out := make([]byte, 0, len(line)+1)
	for _, r := range string(line) {
		if !render.Unsafe(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	if _, err := w.Write(append(out, '\n')); err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	return nil
}
