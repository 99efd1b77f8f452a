package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// An extraRow is one live allocation beyond MaxLive: enough of it to keep the
// totals right at its end, in fewer bytes than a row. Its bytes count at its
// kind's synthetic site. It has no time, so a stale free that races with the
// reuse of its address ends it.
//
// From bit 0: 5 bits of kind, 12 of context index, 47 of size.
type extraRow uint64

const (
	extraMaxKind    = 1<<5 - 1
	extraMaxContext = 1<<12 - 1
	extraMaxSize    = 1<<47 - 1
)

var _ [extraMaxKind + 1 - event.NumKinds]struct{} // each kind fits

func (r extraRow) kind() event.Kind { return event.Kind(r & extraMaxKind) }
func (r extraRow) ctx() uint32      { return uint32(r>>5) & extraMaxContext }
func (r extraRow) size() uint64     { return uint64(r >> 17) }

func extraOf(k event.Kind, ctx uint32, size uint64) extraRow {
	return extraRow(k) | extraRow(ctx)<<5 | extraRow(size)<<17
}

// addExtra adds an allocation for which there is no row.
func (t *allocTable) addExtra(e *event.Event, ctx uint32) {
	p := t.p
	if !p.extraRoom(e, e.Size) {
		t.addUnknown(e.Size)
		return
	}
	r := extraOf(e.Kind, ctx, e.Size)
	t.extra[e.Space][e.Addr] = r
	t.addExtraToOwners(r, 1)
	p.addExtra(r.kind(), 1, one(e.Size))
}

// addExtraToOwners counts r in its context and in the pool of those without one, or with
// n = -1 takes it out of them.
func (t *allocTable) addExtraToOwners(r extraRow, n int) {
	t.p.contexts.all[r.ctx()].live += n
	if r.kind().Async() {
		t.p.pools.add(0, r.kind(), n, int64(n)*int64(r.size()))
	}
}

// endExtra ends the allocation that has the extra row r.
func (t *allocTable) endExtra(space event.Space, addr uint64, r extraRow) {
	p := t.p
	delete(t.extra[space], addr)
	t.removeReferences(space, addr)
	t.addExtraToOwners(r, -1)
	p.addExtra(r.kind(), -1, one(r.size()).negative())
}

// endExtraRows ends the live allocations beyond MaxLive that match.
func (t *allocTable) endExtraRows(match func(extraRow) bool) {
	for space, rows := range t.extra {
		for addr, r := range rows {
			if match(r) {
				t.endExtra(event.Space(space), addr, r)
			}
		}
	}
}

// extraRoom returns whether an allocation that finds no row has room beyond MaxLive, and
// counts it as unattributed, or else as unknown.
func (p *process) extraRoom(e *event.Event, size uint64) bool {
	if e.Shut || size > extraMaxSize || p.l.full(Extra) {
		p.loss.Add(lossUnknown, 1)
		return false
	}
	p.loss.Add(lossUnattributed, 1)
	return true
}

// addExtra changes what p has in use beyond MaxLive, by so many allocations.
func (p *process) addExtra(k event.Kind, n int, w tally) {
	_, s := p.sites.synthetic(k)
	p.count(Extra, n)
	p.sites.unattributed[k.Class()] += w.bytes
	p.sites.add(s, w)
}
