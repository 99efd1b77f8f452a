package ledger

import (
	"math"
	"slices"

	"github.com/google/btree"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/share"
)

const never = math.MaxUint64

type process struct {
	id event.Process

	active bool   // it called CUDA's memory functions
	exited bool   // its last thread ended
	frozen bool   // only its figures are left: no rows, no mappings
	exec   uint64 // time of its last exec, 0 for none
	end    uint64 // when its last thread ended, or never

	shares [NumShared]share.Share[*process] // of Ledger.tables

	live   [event.NumSpaces]map[uint64]row
	extra  [event.NumSpaces]map[uint64]extraRow // beyond MaxLive
	opened map[uint64]uint32                    // references beyond the first, by address in SpacePointer

	handles map[uint64]*physical
	ranges  *btree.BTreeG[*mapping]    // by address, never overlapping
	parts   map[uint64]map[uint64]part // array -> part -> what it shows

	contexts     []context         // ctxUnknown, ctxNone, then by handle
	contextAt    map[uint64]uint32 // handle -> index into contexts
	freeContext  []uint32
	older        int    // contexts known since the last exec that were not seen created
	lastCtx      uint64 // the context of the last event, 0 for none
	lastCtxIndex uint32

	pools    []pool // 0 holds what has no pool of its own
	poolAt   map[poolKey]uint32
	freePool []uint32

	graphs    []graph // 0 holds what has no graph of its own
	graphAt   map[uint64]uint32
	freeGraph []uint32
	captures  []capture // in order of appearance

	devices  []Holding // deviceUnknown, then in order of appearance
	sites    []*Site   // nil where one was folded
	freeSite []uint32
	siteAt   map[siteKey]uint32
	other    [event.NumKinds]uint32 // synthetic sites, index + 1
	// foldAgain is how many calls without room for a site there are to be until the next
	// look for some to fold.
	foldAgain int
	// unreported: a site has allocated since the last Reported.
	unreported bool
	epoch      uint64 // counts peaks

	inuse, unattributed [event.NumClasses]int64
	unknownObjects      int64  // live allocations of which nothing is kept
	unknownFrees        int64  // frees that may have ended one of them
	sums                Totals // but for what totals fills in
}

// put puts x into a free place of all, or behind the last one if all has fewer
// than max places.
func put[T any](all *[]T, free *[]uint32, max int, x T) (i uint32, ok bool) {
	if n := len(*free); n > 0 {
		i, *free = (*free)[n-1], (*free)[:n-1]
		(*all)[i] = x
		return i, true
	}
	if len(*all) >= max {
		return 0, false
	}
	*all = append(*all, x)
	return uint32(len(*all) - 1), true
}

// begin makes what p needs from its first call of CUDA's on.
func (l *Ledger) begin(p *process) {
	if p.active {
		return
	}
	p.active = true
	l.join(p)
	for space := range p.live {
		p.live[space], p.extra[space] = map[uint64]row{}, map[uint64]extraRow{}
	}
	p.opened, p.handles, p.parts = map[uint64]uint32{}, map[uint64]*physical{}, map[uint64]map[uint64]part{}
	p.contextAt, p.poolAt, p.graphAt = map[uint64]uint32{}, map[poolKey]uint32{}, map[uint64]uint32{}
	p.siteAt, p.graphs = map[siteKey]uint32{}, make([]graph, 1)
}

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
		p = &process{
			id:       id,
			end:      never,
			contexts: []context{ctxUnknown: {device: event.NoDevice}, ctxNone: {device: event.NoDevice}},
			pools:    []pool{{}},
			devices:  []Holding{deviceUnknown: {Device: event.NoDevice}},
		}
		l.procs[id] = p
		l.order = append(l.order, p)
	}
	l.last = p
	return p
}

// over says whether the image that an event of time t belongs to had ended by
// then.
func (p *process) over(t uint64) bool {
	return t <= p.exec || t >= p.end || p.frozen
}

// exec ends what the old image held at time t. What is newer belongs to the
// new image, whose first events may have overtaken the exec.
func (l *Ledger) exec(p *process, t uint64) {
	if p.exited || t <= p.exec {
		return
	}
	p.exec = t
	l.endAll(p, t)
	p.resetGraphs(t)
	p.unknownObjects, p.unknownFrees, p.sums.UnknownBytes = 0, 0, 0
}

// exit ends p. What it holds then stays as its last state.
func (l *Ledger) exit(p *process, t uint64) {
	if p.exited {
		return
	}
	p.end, p.exited = t, true
	l.endedRows += p.shares[SharedRows].Len()
	if !p.active {
		l.idle = append(l.idle, p)
		if len(l.idle) > l.opt.MaxEnded {
			l.drop(l.idle)
		}
		return
	}
	l.ended = append(l.ended, p)
	if len(l.ended) > l.opt.MaxEnded {
		l.drop(l.ended)
	}
}

// Active tells whether proc called CUDA's memory functions and is held.
func (l *Ledger) Active(proc event.Process) bool {
	p := l.procs[proc]
	return p != nil && p.active
}

// Release ends what proc, which has exited, held when it did. Its counters and
// its peak stay.
func (l *Ledger) Release(proc event.Process) {
	p := l.procs[proc]
	if p == nil || !p.exited {
		return
	}
	l.touched(p)
	l.endAll(p, never)
}

// endAll ends all memory of p not newer than t, with its contexts and pools.
func (l *Ledger) endAll(p *process, t uint64) {
	l.endRows(p, t, func(*row) bool { return true })
	l.endExtra(p, func(extraRow) bool { return true })
	l.endHandles(p, t)
	p.resetContexts()
	p.resetPools()
}

// addRows keeps the number of rows, which n more or fewer of p change.
func (l *Ledger) addRows(p *process, n int) {
	p.shares[SharedRows].Add(n)
	if p.exited {
		l.endedRows += n
	}
}

// freeze drops p's rows and mappings, and keeps its figures as they are.
func (l *Ledger) freeze(p *process) {
	l.addRows(p, -p.shares[SharedRows].Len())
	for _, of := range []Shared{SharedExtra, SharedMappings} {
		p.shares[of].Add(-p.shares[of].Len())
	}
	p.live = [event.NumSpaces]map[uint64]row{}
	p.extra = [event.NumSpaces]map[uint64]extraRow{}
	p.opened, p.handles, p.ranges, p.parts = nil, nil, nil, nil
	p.frozen = true
}

// reclaim makes room for rows by dropping those of the process that ended
// first, but for p.
func (l *Ledger) reclaim(p *process) {
	if l.endedRows == 0 {
		return
	}
	for _, q := range l.ended {
		if n := q.shares[SharedRows].Len(); n > 0 && q != p {
			l.loss.Add(lossEndedRows, uint64(n))
			l.freeze(q)
			return
		}
	}
}

// drop forgets the first process of l.ended or l.idle, and says whether there was
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

// forgotten remembers which processes were forgotten last, so that their
// stragglers do not bring them back to life.
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
