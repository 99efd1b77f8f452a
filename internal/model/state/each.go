package state

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// One is a process by itself.
type One struct {
	Process event.Process
	Name    string // comm
	// Ended is when it ended, zero while it lives.
	Ended time.Time

	view   *View
	shapes *Shapes
}

// Snapshot shows nothing of other processes, but for what was lost.
func (o *One) Snapshot() *snapshot.Snapshot { return o.view.build(o.shapes) }

// Each returns the processes of the view, each by itself. Together they show what
// Snapshot does, but for live rows, layout, steps and frees, which none has. They are for
// one goroutine, and for no longer than until the next Snapshot with the same Shapes.
func (v *View) Each() []One {
	ids := make([]event.Process, len(v.processes))
	for i, p := range v.processes {
		ids[i] = p.id
	}
	shapes, parts := v.shapes(), v.parts(ids)
	out := make([]One, 0, len(parts))
	for i, p := range v.processes {
		part := parts[p.id]
		part.snapshot.Processes = v.snapshot.Processes[i : i+1]
		one := One{Process: p.id, Name: v.snapshot.Processes[i].Name, view: part, shapes: shapes}
		if p.end != 0 {
			one.Ended = v.trace.Boot.Add(time.Duration(p.end))
		}
		out = append(out, one)
	}
	return out
}

// Interval is what Unreported is of: from the last record.Reported, or the beginning of
// the trace, to the moment that v shows.
func (v *View) Interval() (begin, end time.Time) {
	begin, end = v.trace.Start, v.snapshot.Meta.Start.Add(v.snapshot.Meta.Duration)
	if v.reported != 0 {
		begin = v.trace.Boot.Add(time.Duration(v.reported))
	}
	return begin, end
}

// parts returns a view of each of some processes.
func (v *View) parts(ids []event.Process) map[event.Process]*View {
	parts, shown := make(map[event.Process]*View, len(ids)), map[event.Process]bool{}
	for _, id := range v.shown {
		shown[id] = true
	}
	for _, id := range ids {
		part := &View{want: v.want, trace: v.trace, snapshot: v.snapshot, names: v.names,
			partial: v.partial, sample: v.sample, least: v.least, whole: v.whole, located: v.located, admitted: v.admitted}
		if shown[id] {
			part.shown = []event.Process{id}
		}
		part.snapshot.Meta.Target = ""
		part.snapshot.GPUs = nil
		parts[id] = part
	}
	deal(v.sites, parts, func(x *site) event.Process { return x.Proc }, func(p *View) *[]site { return &p.sites })
	deal(v.physical, parts, func(x *site) event.Process { return x.Proc }, func(p *View) *[]site { return &p.physical })
	deal(v.tensors, parts, func(x *site) event.Process { return x.Proc }, func(p *View) *[]site { return &p.tensors })
	deal(v.outside, parts, func(x *outside) event.Process { return x.id }, func(p *View) *[]outside { return &p.outside })
	deal(v.allocators, parts, func(x *allocator) event.Process { return x.id }, func(p *View) *[]allocator { return &p.allocators })
	deal(v.caches, parts, func(x *cache) event.Process { return x.id }, func(p *View) *[]cache { return &p.caches })
	deal(v.stated, parts, func(x *stated) event.Process { return x.id }, func(p *View) *[]stated { return &p.stated })
	deal(v.presences, parts, func(x *presence) event.Process { return x.id }, func(p *View) *[]presence { return &p.presences })
	deal(v.programs, parts, func(x *executable) event.Process { return x.id }, func(p *View) *[]executable { return &p.programs })
	return parts
}

// deal gives each part what is its process's, in the order of all.
func deal[T any](all []T, parts map[event.Process]*View, of func(*T) event.Process, to func(*View) *[]T) {
	for begin := 0; begin < len(all); {
		end, id := begin+1, of(&all[begin])
		for end < len(all) && of(&all[end]) == id {
			end++
		}
		if part := parts[id]; part != nil {
			if own := to(part); *own == nil {
				*own = all[begin:end:end]
			} else {
				*own = append(*own, all[begin:end]...)
			}
		}
		begin = end
	}
}
