package live

import (
	"io"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
)

// Now is what a status knows beside what every snapshot has as JSON: see export.LiveJSON. All
// bytes are whole numbers, rates are by second, times are in nanoseconds. Rates are of the last
// "interval_ns", and growth of the last "window_ns", 0 where there is none yet.
type Now struct {
	Interval  time.Duration `json:"interval_ns"`
	Window    time.Duration `json:"window_ns"`
	Total     Total         `json:"total"`
	GPUs      []GPU         `json:"gpus"`
	Processes []Process     `json:"processes"` // in the order of the snapshot's
	Owners    []Owner       `json:"owners"`    // the largest first
	// Stacks are those that hold most, Growing those that grew most in the window.
	Stacks  []Rate `json:"stacks"`
	Growing []Rate `json:"growing"`
	// StacksLeftOut are those that Stacks has not.
	StacksLeftOut int     `json:"stacks_left_out"`
	Cost          *Cost   `json:"own_cost"`      // null for a recording
	Load          float64 `json:"own_cpu_share"` // of a core, in the interval
	Ended         string  `json:"ended,omitempty"`
}

// A Rate is how fast a call site changes.
type Rate struct {
	Sample int     `json:"sample"`           // index into the snapshot's
	Text   string  `json:"text"`             // a line that names it
	Holder string  `json:"holder,omitempty"` // of most of it, where heaps are read
	Grown  int64   `json:"grown_bytes"`
	Rate   float64 `json:"allocated_bytes_per_second"`
}

// A Document is a status for programs. Its snapshot has the samples that Now names.
type Document struct {
	*snapshot.Snapshot
	Now Now
}

// Write writes d as one JSON object on one line.
func (d *Document) Write(w io.Writer) error { return export.LiveJSON(w, d.Snapshot, &d.Now) }

// Document returns p with n stacks of each sort, all if n is negative.
func (p *Status) Document(n int) *Document {
	all := p.Select(&Scope{}, "", ByInuse, false)
	d := &Document{
		Snapshot: &snapshot.Snapshot{Meta: p.Meta, Accounts: p.Accounts, Loss: p.Lost, Notes: p.Notes, Windowed: slices.Clone(p.Windowed)},
		Now: Now{Interval: p.Interval, Window: p.Window, Total: all.Total, GPUs: orEmpty(all.GPUs), Processes: orEmpty(all.Processes), Owners: orEmpty(all.Owners),
			Stacks: []Rate{}, Growing: []Rate{}, Cost: p.Cost, Load: p.Load, Ended: p.Ended},
	}
	d.Meta.Duration = p.Elapsed
	for i := range all.Processes {
		all.Processes[i].GPUs = orEmpty(all.Processes[i].GPUs)
		d.Processes = append(d.Processes, all.Processes[i].Process)
	}
	samples := map[*Stack]int{}
	rate := func(x *Stack) Rate {
		i, ok := samples[x]
		if !ok {
			i = len(samples)
			samples[x], d.Samples = i, append(d.Samples, *x.Sample)
		}
		return Rate{i, x.Text(), x.Holder(), x.Grown, x.Rate}
	}
	shown := len(all.Stacks)
	if n >= 0 {
		shown = min(n, shown)
		for i := range d.Windowed {
			x := &d.Windowed[i]
			x.Rows = x.Rows[:min(n, len(x.Rows))]
		}
	}
	for _, x := range all.Stacks[:shown] {
		d.Now.Stacks = append(d.Now.Stacks, rate(x))
	}
	d.Now.StacksLeftOut = len(all.Stacks) - shown
	all.Sort(ByGrown, false)
	for _, x := range all.Stacks[:shown] {
		if x.Grown > 0 {
			d.Now.Growing = append(d.Now.Growing, rate(x))
		}
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
