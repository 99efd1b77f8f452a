package export

import (
	"strconv"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A flow is the memory that was allocated and freed between two moments.
type flow struct {
	before, allocated, after, peak int64
}

// freed returns the bytes that ended: by a free, or with their process.
func (f *flow) freed() int64 { return f.before + f.allocated - f.after }

func (f *flow) cells() []string {
	return []string{bytefmt.Format(f.before), bytefmt.Format(f.allocated), bytefmt.Format(f.freed()), bytefmt.Format(f.after), bytefmt.Format(f.peak)}
}

// between writes how much memory each process allocated and freed between two snapshots.
func between(page *render.Page, before, s *snapshot.Snapshot) {
	type key struct {
		pid     int
		tensors bool
	}
	flows := map[key]*flow{}
	of := func(pid int, tensors bool) *flow {
		k := key{pid, tensors}
		if flows[k] == nil {
			flows[k] = &flow{}
		}
		return flows[k]
	}
	for i := range before.Processes {
		if p := &before.Processes[i]; !p.Exited {
			of(p.PID, false).before = p.Inuse
		}
	}
	for i := range s.Processes {
		p := &s.Processes[i]
		f := of(p.PID, false)
		f.allocated, f.after, f.peak = f.allocated+p.Allocated, f.after+p.Inuse, max(f.peak, p.Peak)
	}
	for i := range before.Samples {
		if x := &before.Samples[i]; x.Kind == "tensor" {
			of(x.PID, true).before += x.InuseBytes
		}
	}
	for i := range s.Samples {
		if x := &s.Samples[i]; x.Kind == "tensor" {
			f := of(x.PID, true)
			f.allocated, f.after, f.peak = f.allocated+x.AllocBytes, f.after+x.InuseBytes, f.peak+x.PeakBytes
		}
	}
	var rows []render.Row
	for i := range s.Processes {
		p := &s.Processes[i]
		for _, tensors := range []bool{false, true} {
			k := key{p.PID, tensors}
			f := flows[k]
			if f == nil || *f == (flow{}) {
				continue
			}
			delete(flows, k)
			what := "allocations"
			if tensors {
				what = "tensors"
			}
			rows = append(rows, render.Row{Cells: append([]string{p.Name, strconv.Itoa(p.PID), what}, f.cells()...)})
		}
	}
	page.Heading("From %v to %v after the trace began", before.Meta.Duration, s.Meta.Duration)
	page.Table([]string{"PROCESS", ">PID", "WHAT", ">BEFORE", ">ALLOCATED", ">FREED", ">AFTER", ">AT PEAK"}, rows)
}
