package perfetto

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// instants are those that a plot has.
type instants struct {
	failures, readings int // written
}

// failed writes a failure that is over.
func (t *plot) failed(f *state.Failure) {
	p := t.survey.processes[f.Proc]
	if t.failures >= maxInstants || p == nil {
		t.lost.Add(lossInstants, 1)
		return
	}
	t.failures++
	var a args
	a.int("requested bytes", int64(f.Requested))
	a.text("api", f.API)
	a.text("GPU", f.GPU)
	a.int("calls", f.Calls)
	a.int("thread", int64(f.TID))
	if f.Framework {
		a.int("PyTorch wanted bytes", int64(f.Wanted))
		a.int("PyTorch allocated bytes", int64(f.Allocated))
		a.int("PyTorch reserved bytes", int64(f.Reserved))
	}
	t.out.named(p.failures, f.Time, typeInstant, "out of memory", a.message)
}

// reading writes the driver's figures of each process.
func (t *plot) reading(r *record.Reading) {
	uses := map[event.Process]*args{}
	var order []event.Process
	for i := range r.Uses {
		u := &r.Uses[i]
		if !u.Known || u.Device < 0 || u.Device >= len(r.Devices) {
			continue
		}
		if uses[u.Process] == nil {
			uses[u.Process] = &args{}
			order = append(order, u.Process)
		}
		uses[u.Process].int("GPU "+r.Devices[u.Device].Label+" bytes", u.Bytes)
	}
	for _, id := range order {
		p := t.survey.processes[id]
		if t.readings >= maxInstants || p == nil {
			t.lost.Add(lossInstants, 1)
			continue
		}
		t.readings++
		t.out.named(p.readings, r.Time, typeInstant, "driver's reading", uses[id].message)
	}
}
