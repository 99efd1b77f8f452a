package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/event"

// An extraRow is one live allocation beyond MaxLive: enough of it to keep the
// totals right at its end, in a third of a row's bytes. Its bytes count at its
// kind's synthetic site. It has no time, so a stale free that races with the
// reuse of its address is taken for its own.
//
// From bit 0: 4 bits of kind, 12 of context index, 48 of size.
type extraRow uint64

const (
	extraMaxContext = 1<<12 - 1
	extraMaxSize    = 1<<48 - 1
)

func (r extraRow) kind() event.Kind { return event.Kind(r & 15) }
func (r extraRow) ctx() uint32      { return uint32(r>>4) & extraMaxContext }
func (r extraRow) size() int64      { return int64(r >> 16) }

// addExtra keeps an allocation for which there is no row.
func (l *Ledger) addExtra(p *process, e *event.Event, ctx uint32) {
	if l.extra >= l.opt.MaxUnattributed || e.Size > extraMaxSize {
		l.loss.Add(lossUnknown, 1)
		p.unknown(e.Size)
		return
	}
	l.loss.Add(lossUnattributed, 1)
	r := extraRow(e.Kind) | extraRow(ctx)<<4 | extraRow(e.Size)<<16
	p.extra[e.Space][e.Addr] = r
	p.contexts[ctx].live++
	if r.kind() == event.KindAsync {
		p.poolHold(0, 1, r.size())
	}
	l.holdExtra(p, r.kind(), 1, r.size())
}

// holdExtra changes what p has in use beyond MaxLive.
func (l *Ledger) holdExtra(p *process, k event.Kind, objects int, bytes int64) {
	_, s := p.synthetic(k)
	l.extra += objects
	p.extraRows += objects
	p.unattributed[k.Class()] += bytes
	p.hold(s, int64(objects), bytes)
}

func (l *Ledger) endExtraRow(p *process, space event.Space, addr uint64, r extraRow) {
	delete(p.extra[space], addr)
	p.forgetOpened(space, addr)
	p.contexts[r.ctx()].live--
	if r.kind() == event.KindAsync {
		p.poolHold(0, -1, -r.size())
	}
	l.holdExtra(p, r.kind(), -1, -r.size())
}

// endExtra ends the live allocations beyond MaxLive that match.
func (l *Ledger) endExtra(p *process, match func(extraRow) bool) {
	for space, rows := range p.extra {
		for addr, r := range rows {
			if match(r) {
				l.endExtraRow(p, event.Space(space), addr, r)
			}
		}
	}
}
