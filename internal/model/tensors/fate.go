package tensors

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

const (
	// maxFates bounds the stacks whose tensors' ends are counted: of all processes, beyond
	// those of which there is a call site.
	maxFates = 1 << 17
	// maxThreads bounds the threads of a process whose last tensor is known.
	maxThreads = 1 << 14
)

var lossFates = causes.Add("tensor_fates_full", "stacks whose frees are counted anew because there were too many: what their tensors are for may be told wrongly")

// A Fate is how the tensors of one stack ended. They count as those of Rows do.
type Fate struct {
	Crossed int64 // freed by another thread than the one that made them
	Stayed  int64 // freed by the one that made them
	// After is the stack of the last tensor that the thread had made when it last
	// freed one of these that it had made, 0 where that was the freed one.
	After uint64
}

// A made is a tensor that was made.
type made struct {
	addr, stack uint64
}

// Fate returns how the tensors of a stack ended that a process made.
func (l *Ledger) Fate(proc event.Process, stack uint64) Fate {
	p := l.procs[proc]
	if p == nil || p.fates[stack] == nil {
		return Fate{}
	}
	return *p.fates[stack]
}

// makes keeps which tensor is a thread's last.
func (p *process) makes(e *event.Event) {
	if _, ok := p.last[e.TID]; !ok && len(p.last) >= maxThreads {
		clear(p.last)
	}
	p.last[e.TID] = made{e.Addr, e.Stack}
}

// count counts the end of t, by e.
func (l *Ledger) count(p *process, t *tensor, e *event.Event) {
	f := p.fates[t.stack]
	if f == nil {
		if l.fates >= l.fatesAt {
			l.dropFates()
		}
		f = &Fate{}
		p.fates[t.stack] = f
		l.fates++
	}
	n := l.weigh(t.size).Objects
	if e.TID != t.thread {
		f.Crossed += n
		return
	}
	f.Stayed += n
	if last := p.last[e.TID]; last.addr == e.Addr {
		f.After = 0
	} else {
		f.After = last.stack
	}
}

// dropFates drops those of which there is no call site any more: nobody asks for them.
func (l *Ledger) dropFates() {
	kept := map[*process]map[uint64]*Fate{}
	before := l.fates
	l.fates = 0
	for s := range l.Rows.Sites {
		p := l.procs[s.Proc]
		if p == nil || p.fates[s.Stack] == nil {
			continue
		}
		if kept[p] == nil {
			kept[p] = map[uint64]*Fate{}
		}
		kept[p][s.Stack] = p.fates[s.Stack]
	}
	for _, p := range l.procs {
		p.fates = kept[p]
		if p.fates == nil {
			p.fates = map[uint64]*Fate{}
		}
		l.fates += len(p.fates)
	}
	l.loss.Add(lossFates, uint64(before-l.fates))
	l.fatesAt = max(maxFates, 2*l.fates)
}
