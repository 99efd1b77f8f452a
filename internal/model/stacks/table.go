// Package stacks holds call stacks by id, and reads them: which library allocated (Owner),
// in which operator, module and training step of PyTorch, for which category of tensors,
// and which frames are worth a line (Fold). These are pure functions of the frames.
//
// A Table holds a stack as long as something refers to it, within a bound.
package stacks

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

const (
	// MaxFrames bounds the frames of all stacks.
	MaxFrames = 4 << 20
	// sweepAt is the number of frames at which a sweep for stacks that nothing refers to
	// begins, and sweepAgain how many more there are at the next one.
	sweepAt    = MaxFrames / 4
	sweepAgain = MaxFrames / 16
	// stackFrames are those that a stack without any counts for.
	stackFrames = 4
)

// A stack is one call stack, leaf first.
type stack struct {
	*record.Stack
	doomed bool // goes at the end of the sweep, unless it is referred to then
}

// size is how many frames a stack counts for.
func size(st *record.Stack) int { return len(st.Frames) + len(st.Modules) + stackFrames }

// A Table has the call stacks by id. One stays for as long as something refers
// to it: a call site, or an event that is on its way. So the others go in two
// steps, see record.Sweep.
type Table struct {
	byID map[uint64]*stack
	// unnamed are those of which a look at the places may be of use.
	unnamed map[uint64]*stack
	frames  int                   // of all stacks, as size counts them
	of      map[event.Process]int // frames by the process that has them
	lost    *loss.Set

	sweepAt  int // frames at which the next sweep begins
	sweeping bool
	refused  map[uint64]uint32 // PID by id of stacks for which there was no room
}

// maxRefused bounds the refused stacks that are asked for again.
const maxRefused = 1 << 16

var causes loss.Causes

var lossDropped = causes.Add("stacks_dropped", "stacks without frames because too many different ones are in use")

// NewTable returns an empty Table.
func NewTable() *Table {
	return &Table{byID: map[uint64]*stack{}, unnamed: map[uint64]*stack{}, of: map[event.Process]int{},
		lost: loss.New(causes), sweepAt: sweepAt, refused: map[uint64]uint32{}}
}

// Refuse asks again for a stack that is not kept.
func (t *Table) Refuse(st *record.Stack) {
	if len(t.refused) < maxRefused {
		t.refused[st.ID] = st.Process.PID
	}
}

func (t *Table) remove(st *stack) {
	delete(t.byID, st.ID)
	delete(t.unnamed, st.ID)
	t.count(st, -size(st.Stack))
}

func (t *Table) count(st *stack, n int) {
	t.frames += n
	if t.of[st.Process] += n; t.of[st.Process] == 0 {
		delete(t.of, st.Process)
	}
}

// FrameCount returns how many frames all stacks count for.
func (t *Table) FrameCount() int { return t.frames }

// Held yields how many frames each process has, in no order.
func (t *Table) Held(yield func(event.Process, int) bool) {
	for id, n := range t.of {
		if !yield(id, n) {
			return
		}
	}
}

// HasRoom reports whether there is room for a stack.
func (t *Table) HasRoom(st *record.Stack) bool { return t.frames+size(st) <= MaxFrames }

// DropOf drops the stacks of ended processes, the first ended first, until a sixteenth of the frames
// is free. It visits all stacks, so it makes much room at once.
func (t *Table) DropOf(ended []event.Process) {
	left, gone := t.frames, map[event.Process]bool{}
	for _, id := range ended {
		if left <= MaxFrames-MaxFrames/16 {
			break
		}
		left -= t.of[id]
		gone[id] = t.of[id] > 0
	}
	for _, st := range t.byID {
		if gone[st.Process] {
			t.remove(st)
			t.lost.Add(lossDropped, 1)
		}
	}
}

// Add adds a stack, if there is room.
func (t *Table) Add(st *record.Stack) {
	if old, ok := t.byID[st.ID]; ok { // evicted in the kernel and reported again
		old.doomed = false
		return
	}
	one := &stack{Stack: st}
	if !t.HasRoom(st) {
		t.lost.Add(lossDropped, 1)
		t.Refuse(st)
		return
	}
	t.byID[st.ID], t.unnamed[st.ID] = one, one
	t.count(one, size(st))
}

// Frames returns those of a stack, leaf first, nil if it is not known.
func (t *Table) Frames(id uint64) []*record.Place {
	if st := t.byID[id]; st != nil {
		return st.Frames
	}
	return nil
}

// Modules returns the addresses of the modules of PyTorch that a stack is in, innermost first.
func (t *Table) Modules(id uint64) []uint64 {
	if st := t.byID[id]; st != nil {
		return st.Modules
	}
	return nil
}

// Unnamed returns the places whose names were not looked for, and those for
// which looking again may be of use, in any order. It takes no longer for stacks whose names
// are known.
func (t *Table) Unnamed() (first, again []*record.Place) {
	seen := map[*record.Place]bool{}
	for id, st := range t.unnamed {
		named := true
		for _, p := range st.Frames {
			if p.Final() {
				continue
			}
			named = false
			switch {
			case seen[p]:
			case p.Named():
				again = append(again, p)
			default:
				first = append(first, p)
			}
			seen[p] = true
		}
		if named {
			delete(t.unnamed, id)
		}
	}
	return first, again
}

// WantsSweep reports whether it is time to look for stacks that nothing refers to: there
// are many stacks, or there was no room for one.
func (t *Table) WantsSweep() bool {
	return !t.sweeping && (t.frames >= t.sweepAt || len(t.refused) > 0)
}

// Mark begins a sweep: it dooms the stacks that are not referred to.
func (t *Table) Mark(referred func(id uint64) bool) {
	for id, st := range t.byID {
		st.doomed = !referred(id)
	}
	t.sweeping = true
}

// Sweeping reports whether a sweep has begun and not ended.
func (t *Table) Sweeping() bool { return t.sweeping }

// Marked returns the stacks that a sweep is about to drop, and those for which
// there was no room, with the processes that they are of.
func (t *Table) Marked() (ids []uint64, pids map[uint32]bool) {
	pids = map[uint32]bool{}
	for id, st := range t.byID {
		if st.doomed {
			ids = append(ids, id)
			pids[st.Process.PID] = true
		}
	}
	for id, pid := range t.refused {
		ids = append(ids, id)
		pids[pid] = true
	}
	clear(t.refused)
	return ids, pids
}

// Drop ends a sweep.
func (t *Table) Drop(referred func(id uint64) bool) {
	for id, st := range t.byID {
		if st.doomed && !referred(id) {
			t.remove(st)
		}
		st.doomed = false
	}
	t.sweeping = false
	t.sweepAt = max(sweepAt, min(t.frames+sweepAgain, MaxFrames))
}

// All yields every stack.
func (t *Table) All(yield func(*record.Stack) bool) {
	for _, st := range t.byID {
		if !yield(st.Stack) {
			return
		}
	}
}

// Len returns how many stacks there are.
func (t *Table) Len() int { return len(t.byID) }

// Loss returns every cause of loss.
func (t *Table) Loss() []loss.Counter { return t.lost.Counters() }
