package ledger

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// process returns the state of id, made if need be, or nil when it is
// forgotten or there is no room.
func (l *Ledger) process(id event.Process) *process {
	if l.last != nil && l.last.id == id {
		return l.last
	}
	p := l.procs[id]
	if p == nil {
		if _, gone := l.gone.set[id]; gone {
			l.loss.Add(lossForgotten, 1)
			return nil
		}
		for len(l.procs) >= l.opt.MaxProcesses {
			if !l.drop(l.idle) && !l.drop(l.ended) {
				l.loss.Add(lossProcesses, 1)
				return nil
			}
		}
		p = &process{l: l, loss: l.loss, id: id, end: never, at: len(l.order)}
		l.procs[id] = p
		l.order = append(l.order, p)
	}
	l.last = p
	return p
}

// inOrder yields all processes in order of appearance.
func (l *Ledger) inOrder(yield func(*process) bool) {
	for _, p := range l.order {
		if p != nil && !yield(p) {
			return
		}
	}
}

// exit ends p. What it holds then stays as its last state.
func (l *Ledger) exit(p *process, at uint64) {
	if p.exited {
		return
	}
	p.end, p.exited = at, true
	l.endedRows += p.held[Rows]
	list := &l.idle
	if p.active {
		list = &l.ended
	}
	*list = append(*list, p)
	if len(*list) > l.opt.MaxEnded {
		l.drop(*list)
	}
}

// reclaim makes room for rows of p: it drops those of the process that ended first, but
// for p.
func (l *Ledger) reclaim(p *process) {
	if l.endedRows == 0 {
		return
	}
	for _, q := range l.ended {
		if n := q.held[Rows]; n > 0 && q != p {
			l.loss.Add(lossEndedRows, uint64(n))
			q.freeze()
			return
		}
	}
}

// drop forgets the first process of l.ended or l.idle, and returns whether there was
// one. An idle one that a late event made active counts as the others do.
func (l *Ledger) drop(list []*process) bool {
	if len(list) == 0 {
		return false
	}
	if list[0].active {
		l.loss.Add(lossEnded, 1)
	}
	l.Forget(list[0].id)
	return true
}

// dropBeside forgets the process that ended first, but for p, and returns whether there was
// one.
func (l *Ledger) dropBeside(p *process) bool {
	i := slices.IndexFunc(l.ended, func(q *process) bool { return q != p })
	return i >= 0 && l.drop(l.ended[i:])
}

// forgotten remembers which processes were forgotten last, so that late events do not
// bring them back to life.
type forgotten struct {
	max   int
	set   map[event.Process]struct{}
	queue []event.Process
}

func (f *forgotten) add(id event.Process) {
	if len(f.queue) >= f.max {
		delete(f.set, f.queue[0])
		f.queue = slices.Delete(f.queue, 0, 1)
	}
	f.set[id] = struct{}{}
	f.queue = append(f.queue, id)
}
