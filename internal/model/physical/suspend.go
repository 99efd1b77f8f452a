package physical

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A checkpoint (cuCheckpointProcessCheckpoint, cuda-checkpoint, CRIU) has a thread of libcuda's
// own free every object of the process, clients included. A restore makes them again, on a client
// with another number, and gives each memory the number and the size that it had. No probed
// function encloses either. So what is freed in no function is remembered, and what comes back in
// none under its number is again for the calls that it was for.

// A parked memory is one that was freed in no probed function.
type parked struct {
	rows  []row
	size  uint64
	backs address // the allocation that it is for, if known
}

// maxParked bounds the parked memory of a process: 128 GiB in pieces of 2 MiB.
const maxParked = 1 << 16

var lossParked = lossCauses.Add("driver_parked_full", "memory that a checkpoint freed and that is not remembered because there was too much: after a restore its cause is not known")

// park remembers the memory of o and of what is below it.
func (l *Ledger) park(p *process, o *object) {
	for x := o; x != nil; x = x.after(o) {
		m := x.memory
		if m == nil || !m.owner {
			continue
		}
		if _, again := p.parked[uint32(x.name)]; !again && len(p.parked) >= maxParked {
			l.loss.Add(lossParked, 1)
			continue
		}
		p.parked[uint32(x.name)] = parked{m.rows, m.size, address{m.backs.Space, m.backs.Addr}}
	}
	p.suspended = p.suspended || o.name == clientOf(o.name)
}

// unpark has m, which e made in no probed function, be for the calls that the memory of its number
// and size was for.
func (p *process) unpark(m *memory, e *event.Event) {
	old, ok := p.parked[uint32(e.Handle)]
	if !ok || old.size != e.Size || (old.rows[0].kind == event.KindSystem) != (e.Kind == event.KindSystem) {
		return
	}
	delete(p.parked, uint32(e.Handle))
	for i := range old.rows {
		old.rows[i].device = m.rows[0].device
	}
	m.rows = old.rows
	if at := old.backs; at.addr != 0 && p.backing[at] == nil {
		m.backs.Space, m.backs.Addr, m.backs.Block = at.space, at.addr, m.size
		p.backing[at] = m
	}
}

// Suspended reports whether a process gave all its memory back to the kernel driver in no function
// of CUDA's: a checkpoint holds it until a restore.
func (l *Ledger) Suspended(proc event.Process) bool {
	p := l.lookup(proc)
	return p.suspended && !p.exited && len(p.parked) > 0 && !slices.ContainsFunc(p.gpus, func(g GPU) bool { return g.bytes != 0 })
}
