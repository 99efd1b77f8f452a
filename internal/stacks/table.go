// Package stacks keeps call stacks by id, and shows them to people: whose code
// one is, and which of its frames are worth a line.
package stacks

import (
	"github.com/gpumemtrace/gpumemtrace/internal/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/record"
)

const (
	// maxFrames bounds the frames of the stacks kept.
	maxFrames = 4 << 20
	// sweepAt is how many are kept when stacks that nothing refers to are looked
	// for, and sweepAgain how many more when they are looked for again.
	sweepAt    = maxFrames / 4
	sweepAgain = maxFrames / 16
	// stackFrames are those that a stack without any counts for.
	stackFrames = 4
)

// A stack is one call stack, leaf first.
type stack struct {
	*record.Stack
	doomed bool // goes at the end of the sweep, unless it is referred to then
}

// A Table has the call stacks by id. One stays for as long as something refers
// to it: a call site, or an event that is on its way. So the others go in two
// steps, see record.Sweep.
type Table struct {
	byID map[uint64]*stack
	// unnamed are those of which a look at the places may be of use.
	unnamed map[uint64]*stack
	kept    int // frames
	lost    *loss.Set

	sweepAt  int // kept frames at which the next sweep begins
	sweeping bool
	refused  map[uint64]uint32 // PID by id of stacks for which there was no room
}

// maxRefused bounds the refused stacks that are asked for again.
const maxRefused = 1 << 16

var causes loss.Causes

var lossDropped = causes.Add("stacks_dropped", "stacks without frames because too many different ones are in use")

// NewTable returns an empty Table.
func NewTable() *Table {
	return &Table{byID: map[uint64]*stack{}, unnamed: map[uint64]*stack{}, lost: loss.New(causes), sweepAt: sweepAt, refused: map[uint64]uint32{}}
}

// Add keeps a stack, if there is room.
func (t *Table) Add(st *record.Stack) {
	if old, ok := t.byID[st.ID]; ok { // evicted in the kernel and told again
		old.doomed = false
		return
	}
	n := len(st.Frames) + stackFrames
	if t.kept+n > maxFrames {
		t.lost.Add(lossDropped, 1)
		if len(t.refused) < maxRefused {
			t.refused[st.ID] = st.Process.PID
		}
		return
	}
	one := &stack{Stack: st}
	t.byID[st.ID], t.unnamed[st.ID] = one, one
	t.kept += n
}

// Frames returns those of a stack, leaf first, nil if it is not known.
func (t *Table) Frames(id uint64) []*record.Place {
	if st := t.byID[id]; st != nil {
		return st.Frames
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

// WantsSweep tells whether it is time to look for what nothing refers to: there
// are many stacks, or there was no room for one.
func (t *Table) WantsSweep() bool {
	return !t.sweeping && (t.kept >= t.sweepAt || len(t.refused) > 0)
}

// Doom begins a sweep: it dooms the stacks that are not referred to.
func (t *Table) Doom(referred func(id uint64) bool) {
	for id, st := range t.byID {
		st.doomed = !referred(id)
	}
	t.sweeping = true
}

// Sweeping tells whether a sweep has begun and not ended.
func (t *Table) Sweeping() bool { return t.sweeping }

// Doomed returns the stacks that a sweep is about to drop, and those for which
// there was no room, with the processes that they are of.
func (t *Table) Doomed() (ids []uint64, pids map[uint32]bool) {
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
			delete(t.byID, id)
			delete(t.unnamed, id)
			t.kept -= len(st.Frames) + stackFrames
		}
		st.doomed = false
	}
	t.sweeping = false
	t.sweepAt = max(sweepAt, min(t.kept+sweepAgain, maxFrames))
}

// All yields every stack.
func (t *Table) All(yield func(*record.Stack) bool) {
	for _, st := range t.byID {
		if !yield(st.Stack) {
			return
		}
	}
}

// Len returns how many stacks are kept.
func (t *Table) Len() int { return len(t.byID) }

// Loss returns every cause of loss.
func (t *Table) Loss() []loss.Counter { return t.lost.Counters() }
