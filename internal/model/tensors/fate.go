package tensors

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

const (
	// maxFates bounds the stacks whose tensors' ends are counted: of all processes, beyond
	// those of which there is a call site.
	maxFates = 1 << 17
	// maxThreads bounds the threads of a process whose last tensor is known.
	maxThreads = 1 << 14
)

var lossFates = causes.Add("tensor_fates_full", "stacks whose counts of frees were dropped because there were too many stacks: the category of their tensors may be wrong")

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

// A fateTable has the fates of all processes.
type fateTable struct {
	processes map[event.Process]*processFates
	n         int
	sweepAt   int // n at which fates without a call site are dropped
	loss      *loss.Set
}

type processFates struct {
	byStack map[uint64]*Fate
	last    map[uint32]made // by thread
}

// process returns the fates of a process, made if need be.
func (t *fateTable) process(id event.Process) *processFates {
	p := t.processes[id]
	if p == nil {
		p = &processFates{map[uint64]*Fate{}, map[uint32]made{}}
		t.processes[id] = p
	}
	return p
}

// Fate returns how the tensors of a stack ended that a process made.
func (l *Ledger) Fate(proc event.Process, stack uint64) Fate {
	if p := l.fates.processes[proc]; p != nil && p.byStack[stack] != nil {
		return *p.byStack[stack]
	}
	return Fate{}
}

// addTensor records which tensor is a thread's last.
func (t *fateTable) addTensor(e *event.Event) {
	last := t.process(e.Proc).last
	if _, ok := last[e.TID]; !ok && len(last) >= maxThreads {
		clear(last)
	}
	last[e.TID] = made{e.Addr, e.Stack}
}

// addEnd counts the end of x by e.
func (t *fateTable) addEnd(x *tensor, e *event.Event, rows *ledger.Ledger) {
	p := t.process(e.Proc)
	f := p.byStack[x.stack]
	if f == nil {
		if t.n >= t.sweepAt {
			t.sweep(rows)
		}
		f = &Fate{}
		p.byStack[x.stack] = f
		t.n++
	}
	if e.TID != x.thread {
		f.Crossed++
		return
	}
	f.Stayed++
	if last := p.last[e.TID]; last.addr == e.Addr {
		f.After = 0
	} else {
		f.After = last.stack
	}
}

// sweep drops the fates of stacks that have no call site in rows any more: nobody asks
// for them.
func (t *fateTable) sweep(rows *ledger.Ledger) {
	before := t.n
	used := map[ledger.SiteKey]bool{}
	for s := range rows.Sites {
		used[ledger.SiteKey{Proc: s.Proc, Stack: s.Stack}] = true
	}
	t.n = 0
	for id, p := range t.processes {
		for stack := range p.byStack {
			if !used[ledger.SiteKey{Proc: id, Stack: stack}] {
				delete(p.byStack, stack)
			}
		}
		t.n += len(p.byStack)
	}
	t.loss.Add(lossFates, uint64(before-t.n))
	t.sweepAt = max(maxFates, 2*t.n)
}

// exit drops what only a living process needs.
func (t *fateTable) exit(id event.Process) {
	if p := t.processes[id]; p != nil {
		p.last = nil
	}
}

func (t *fateTable) forget(id event.Process) {
	if p := t.processes[id]; p != nil {
		t.n -= len(p.byStack)
		delete(t.processes, id)
	}
}
