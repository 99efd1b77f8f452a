package memoryviz

import (
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
)

// notes are sentences on what the file lacks or holds twice, and those of the snapshot.
func (d *document) notes() (out []string) {
	note := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if n := d.layout.Dropped; n > 0 {
		note("device_traces lack the first %d changes: the latest %d are kept (--trace-max).", n, d.layout.Changes)
	}
	if d.snapshot.Meta.Windows != nil {
		note("This file has no tensors, because they were traced in windows only (--tensors-window): each segment is shown as one block in use. gpumemtrace report --windows shows what was seen of them.")
	}
	mapped, older := map[int]int64{}, map[int]int64{} // by process
	for i := range d.layout.Segments {
		s := &d.layout.Segments[i]
		if pid := d.layout.Places[s.Place].PID; s.Source < 0 {
			older[pid] += int64(s.Size)
		} else {
			mapped[pid] += int64(s.Size)
		}
	}
	for i := range d.snapshot.Processes {
		p := &d.snapshot.Processes[i]
		switch missing := p.Inuse - mapped[p.PID]; {
		case missing > 0:
			note("Process %d has %s of device memory more, which is at no address of its own (arrays, physical memory that is not mapped).", p.PID, bytefmt.Format(missing))
		case missing < 0:
			note("Of process %d's segments %s are mapped at several addresses, and so are here several times.", p.PID, bytefmt.Format(-missing))
		}
		if beside := p.Physical - p.Inuse; beside > 0 {
			note("The driver took %s for process %d beside these segments (context, code, streams, rounding), which are at no address.", bytefmt.Format(beside), p.PID)
		}
		if n := older[p.PID]; n > 0 {
			note("Segments of process %d from before the trace are known only by the tensors in them: %s.", p.PID, bytefmt.Format(n))
		}
	}
	if d.high > 0 {
		note("%s lie at addresses from 2^53 on, which the viewer cannot show: they are left out.", bytefmt.Format(int64(d.high)))
	}
	return append(out, d.snapshot.Notes...)
}
