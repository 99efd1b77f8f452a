// Package stacks holds call stacks by id, and reads them: which library allocated (Owner),
// in which operator, module and training step of PyTorch, for which category of tensors,
// and which frames are worth a line (Fold). These are pure functions of the frames.
//
// A Table holds a stack as long as something refers to it, within a bound that all users
// share fairly.
package stacks

import (
	"cmp"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/share"
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
	holder *shareholder
}

// size is how many frames a stack counts for.
func (st *stack) size() int { return len(st.Frames) + len(st.Modules) + stackFrames }

// A shareholder is a process with stacks: it has a share of the frames.
type shareholder struct {
	share.Share[*shareholder]
	id event.Process
}

// A Table has the call stacks by id. One stays for as long as something refers
// to it: a call site, or an event that is on its way. So the others go in two
// steps, see record.Sweep.
type Table struct {
	// User, if set, returns which user a process runs as, if that is known already. All
	// processes of a user together have a share of the frames.
	User func(event.Process) (uid uint32, known bool)

	byID map[uint64]*stack
	// unnamed are those of which a look at the places may be of use.
	unnamed map[uint64]*stack
	shares  *share.Table[*shareholder] // of frames
	holders map[event.Process]*shareholder
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
	t := &Table{byID: map[uint64]*stack{}, unnamed: map[uint64]*stack{}, holders: map[event.Process]*shareholder{},
		lost: loss.New(causes), sweepAt: sweepAt, refused: map[uint64]uint32{}}
	t.shares = share.New(MaxFrames, t.evict)
	return t
}

// holder returns a process that has stacks, made if need be.
func (t *Table) holder(id event.Process) *shareholder {
	h := t.holders[id]
	if h == nil {
		h = &shareholder{id: id}
		t.holders[id] = h
		t.shares.Join(&h.Share, h)
		if t.User != nil {
			if uid, known := t.User(id); known {
				h.SetUser(uid)
			}
		}
	}
	return h
}

// Belongs says which user a process runs as.
func (t *Table) Belongs(id event.Process, uid uint32) {
	if h := t.holders[id]; h != nil {
		h.SetUser(uid)
	}
}

// evict drops stacks of a process that count for n frames. The same records always drop the
// same ones.
func (t *Table) evict(h *shareholder, n int) {
	var own []*stack
	for _, st := range t.byID {
		if st.holder == h {
			own = append(own, st)
		}
	}
	slices.SortFunc(own, func(a, b *stack) int {
		return cmp.Or(cmp.Compare(share.Mix(a.ID, 0), share.Mix(b.ID, 0)), cmp.Compare(a.ID, b.ID))
	})
	for _, st := range own {
		if n <= 0 {
			break
		}
		n -= st.size()
		t.refuse(h, st.Stack)
		t.remove(st)
	}
}

// refuse counts a stack for which there is no room.
func (t *Table) refuse(h *shareholder, st *record.Stack) {
	h.AddLost(1)
	t.lost.Add(lossDropped, 1)
	if len(t.refused) < maxRefused {
		t.refused[st.ID] = st.Process.PID
	}
}

func (t *Table) remove(st *stack) {
	delete(t.byID, st.ID)
	delete(t.unnamed, st.ID)
	st.holder.Add(-st.size())
}

// A Shortage says of a process that it wanted more frames than its share.
type Shortage struct {
	Process event.Process
	Held    int    // frames
	Lost    uint64 // stacks
}

// Shortages yields the shortages of all processes.
func (t *Table) Shortages(yield func(Shortage) bool) {
	for h := range t.shares.Shortages {
		if !yield(Shortage{h.id, h.Len(), h.Lost()}) {
			return
		}
	}
}

// Add adds a stack, if there is room.
func (t *Table) Add(st *record.Stack) {
	if old, ok := t.byID[st.ID]; ok { // evicted in the kernel and reported again
		old.doomed = false
		return
	}
	h := t.holder(st.Process)
	one := &stack{Stack: st, holder: h}
	if !h.Room(one.size()) {
		t.refuse(h, st)
		return
	}
	t.byID[st.ID], t.unnamed[st.ID] = one, one
	h.Add(one.size())
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
	return !t.sweeping && (t.shares.Len() >= t.sweepAt || len(t.refused) > 0)
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
	for id, h := range t.holders {
		if h.Len() == 0 {
			h.Leave()
			delete(t.holders, id)
		}
	}
	t.sweeping = false
	t.sweepAt = max(sweepAt, min(t.shares.Len()+sweepAgain, MaxFrames))
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
