package state

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// ProcessView is a process by itself.
type ProcessView struct {
	Process event.Process
	Name    string // comm
	// Ended is when it ended, zero while it lives.
	Ended time.Time

	view   *View
	shapes *Shapes
}

// Snapshot shows nothing of other processes, but for what was lost.
func (o *ProcessView) Snapshot() *snapshot.Snapshot { return o.view.build(o.shapes) }

// ByProcess returns the processes of the view, each by itself. Together they show the same as
// Snapshot, but for live rows, layout, steps and frees, which none has. They are for
// one goroutine, and for no longer than until the next Snapshot with the same Shapes.
func (v *View) ByProcess() []ProcessView {
	ids := make([]event.Process, len(v.processes))
	for i, p := range v.processes {
		ids[i] = p.id
	}
	shapes, parts := v.shapes(), v.byProcess(ids)
	out := make([]ProcessView, 0, len(parts))
	for i, p := range v.processes {
		part := parts[p.id]
		part.snapshot.Processes = v.snapshot.Processes[i : i+1]
		one := ProcessView{Process: p.id, Name: v.snapshot.Processes[i].Name, view: part, shapes: shapes}
		if p.end != 0 {
			one.Ended = v.trace.Boot.Add(time.Duration(p.end))
		}
		out = append(out, one)
	}
	return out
}

// Interval is the time that Want.Unreported covers: from the last record.Reported, or the
// beginning of the trace, to the moment that v shows.
func (v *View) Interval() (begin, end time.Time) {
	begin, end = v.trace.Start, v.snapshot.Meta.Start.Add(v.snapshot.Meta.Duration)
	if v.reported != 0 {
		begin = v.trace.Boot.Add(time.Duration(v.reported))
	}
	return begin, end
}

// byProcess returns a view of each of some processes.
func (v *View) byProcess(ids []event.Process) map[event.Process]*View {
	parts, shown := make(map[event.Process]*View, len(ids)), map[event.Process]bool{}
	for _, id := range v.shown {
		shown[id] = true
	}
	for _, id := range ids {
		part := &View{want: v.want, trace: v.trace, snapshot: v.snapshot, names: v.names, whos: v.whos,
			located: v.located}
		if shown[id] {
			part.shown = []event.Process{id}
		}
		part.snapshot.Meta.Target = ""
		part.snapshot.GPUs = nil
		parts[id] = part
	}
	distribute(v.sites, parts, func(p *View) *[]site { return &p.sites })
	distribute(v.physical, parts, func(p *View) *[]site { return &p.physical })
	distribute(v.tensors, parts, func(p *View) *[]site { return &p.tensors })
	distribute(v.strays, parts, func(p *View) *[]strayTensors { return &p.strays })
	distribute(v.allocators, parts, func(p *View) *[]allocator { return &p.allocators })
	distribute(v.caches, parts, func(p *View) *[]cache { return &p.caches })
	distribute(v.presences, parts, func(p *View) *[]presence { return &p.presences })
	distribute(v.programs, parts, func(p *View) *[]executable { return &p.programs })
	return parts
}

// distribute appends each element to a list of its process's view, in the order of all.
func distribute[T any, P interface {
	*T
	process() event.Process
}](all []T, parts map[event.Process]*View, list func(*View) *[]T) {
	for begin := 0; begin < len(all); {
		end, id := begin+1, P(&all[begin]).process()
		for end < len(all) && P(&all[end]).process() == id {
			end++
		}
		if part := parts[id]; part != nil {
			if own := list(part); *own == nil {
				*own = all[begin:end:end]
			} else {
				*own = append(*own, all[begin:end]...)
			}
		}
		begin = end
	}
}

func (x *site) process() event.Process       { return x.Proc }
func (x *presence) process() event.Process   { return x.id }
func (x *executable) process() event.Process { return x.id }
