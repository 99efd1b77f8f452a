package export

import (
	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A flow is the memory that was allocated and freed between two moments.
type flow struct {
	before, allocated, after, peak int64
}

// freed returns the bytes that ended: by a free, or with their process.
func (f *flow) freed() int64 { return f.before + f.allocated - f.after }

// between writes how much memory each process allocated and freed between two snapshots.
func between(page *render.Page, before, s *snapshot.Snapshot) {
	type key struct {
		pid     int
		tensors bool
	}
	flows := map[key]*flow{}
	of := func(pid int, tensors bool) *flow { return keyed.At(flows, key{pid, tensors}) }
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
	t := table.New(table.Text("PROCESS"), table.TextRight("PID"), table.Text("WHAT"), table.Bytes("BEFORE"), table.Bytes("ALLOCATED"), table.Bytes("FREED"), table.Bytes("AFTER"), table.Bytes("AT PEAK"))
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
			t.Add(p.Name, p.PID, what, f.before, f.allocated, f.freed(), f.after, f.peak)
		}
	}
	page.Heading("From %v to %v after the trace began", before.Meta.Duration, s.Meta.Duration)
	t.Text(page)
}
