package ledger

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

func (m *model) newPhys(p *modelProc, e *event.Event, s *modelSite) {
	if e.Handle == 0 {
		m.loss["allocations_without_address"]++
		p.lose(e.Size)
		return
	}
	p.phys[e.Handle] = &modelPhys{size: e.Size, time: e.Time, refs: 1, site: s}
}

func (m *model) oneMore(ph *modelPhys, t uint64) {
	if ph.time > t {
		m.loss["frees_stale"]++
	} else {
		ph.refs++
	}
}

func (x *modelMap) hits(y *modelMap) bool {
	if x.array != y.array {
		return false
	}
	if x.array {
		return x.addr == y.addr && x.index == y.index
	}
	return x.addr < y.end && y.addr < x.end
}

func modelRange(e *event.Event) *modelMap {
	x := &modelMap{addr: e.Addr, end: e.Addr + e.Size, size: e.Size, time: e.Time}
	if e.Op == event.OpMapArray || e.Op == event.OpUnmapArray {
		x.array, x.index, x.end = true, e.Part, 0
	}
	return x
}

func (m *model) mapping(p *modelProc, e *event.Event) {
	x := modelRange(e)
	x.phys = p.phys[e.Handle]
	if x.phys == nil {
		m.loss["handles_unmatched"]++
	} else if x.phys.time > e.Time {
		m.loss["frees_stale"]++
		return
	}
	overtaken := false
	p.maps = slices.DeleteFunc(p.maps, func(y *modelMap) bool {
		if !x.hits(y) {
			return false
		}
		m.loss["allocations_replaced"]++
		if y.time > x.time {
			overtaken = true
			return false
		}
		return true
	})
	if overtaken {
		return
	}
	p.maps = append(p.maps, x)
	if x.phys != nil && x.phys.size == 0 && x.size > 0 && x.phys.site.Kind != event.KindMulticast {
		x.phys.size = x.size
		p.bring(x.phys.site, 0, x.size)
	}
}

func (m *model) unmapping(p *modelProc, e *event.Event) {
	x := modelRange(e)
	hit := false
	p.maps = slices.DeleteFunc(p.maps, func(y *modelMap) bool {
		if !x.hits(y) {
			return false
		}
		hit = true
		if y.time > e.Time {
			m.loss["frees_stale"]++
			return false
		}
		if !x.array && (y.addr < x.addr || y.end > x.end) {
			m.loss["unmaps_partial"]++
			return false
		}
		return true
	})
	if !hit {
		m.loss["unmaps_unmatched"]++
	}
}
