package ledger

import (
	"cmp"
	"slices"
)

// fold makes room for sites: of those that hold nothing it puts the counters of
// the half that was called least lately into the synthetic site of their kind.
// Every sum over a process's sites stays what it was. It says whether there were
// any, and looks through all of them only every so often when there are not.
func (l *Ledger) fold() bool {
	if l.foldAgain > 0 {
		l.foldAgain--
		return false
	}
	type dead struct {
		p    *process
		site uint32
		last uint64
	}
	var all []dead
	for _, p := range l.order {
		for i, s := range p.sites {
			if s != nil && !s.Synthetic && s.InuseObjects == 0 && s.InuseBytes == 0 {
				all = append(all, dead{p, uint32(i), s.last})
			}
		}
	}
	if len(all) == 0 {
		l.foldAgain = l.opt.MaxSites / 4
		return false
	}
	slices.SortFunc(all, func(a, b dead) int { return cmp.Compare(a.last, b.last) })
	for _, d := range all[:(len(all)+1)/2] {
		l.foldSite(d.p, d.site)
	}
	return true
}

func (l *Ledger) foldSite(p *process, i uint32) {
	s := p.sites[i]
	p.settle(s)
	_, into := p.synthetic(s.Kind)
	p.settle(into)
	into.AllocObjects += s.AllocObjects
	into.AllocBytes = addSaturated(into.AllocBytes, uint64(s.AllocBytes))
	into.PeakBytes += s.PeakBytes
	into.FailedObjects += s.FailedObjects
	into.FailedBytes = addSaturated(into.FailedBytes, uint64(s.FailedBytes))
	into.seen(s.last)
	// One whose context's device became known is found no more already.
	if at, ok := p.siteAt[s.key()]; ok && at == i {
		delete(p.siteAt, s.key())
	}
	if c, ok := p.contextAt[s.Ctx]; ok && s.Ctx != 0 {
		wait := &p.contexts[c].unresolved
		*wait = slices.DeleteFunc(*wait, func(id uint32) bool { return id == i })
	}
	p.sites[i] = nil
	p.freeSite = append(p.freeSite, i)
	p.ownSites--
	l.sites--
	l.loss.Add(lossFolded, 1)
}
