package ledger

import (
	"maps"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

func (p *modelProc) lose(size uint64) {
	p.unknownN++
	p.unknownB = addSaturated(p.unknownB, size)
}

func (p *modelProc) bring(s *modelSite, objects int64, size uint64) {
	s.objects += objects
	s.bytes = addSaturated(s.bytes, size)
	if s.Kind.Class() == event.ClassDevice {
		p.allocated = addSaturated(p.allocated, size)
	}
}

func (p *modelProc) site(e *event.Event) *modelSite {
	key := SiteKey{Proc: e.Proc, Stack: e.Stack, API: e.API, Outer: e.Outer, Kind: e.Kind, Device: e.Device}
	if key.Device < 0 {
		key.Device = -1
		if e.Kind.Class() != event.ClassHost && e.Ctx != 0 && e.Time > p.exec {
			if d, ok := p.ctxDevice[e.Ctx]; ok {
				key.Device = d
			} else {
				key.Ctx = e.Ctx
			}
		}
	}
	for _, s := range p.sites {
		if s.SiteKey == key && !s.detached {
			return s
		}
	}
	s := &modelSite{SiteKey: key}
	p.sites = append(p.sites, s)
	return s
}

type modelUse struct{ objects, bytes int64 }

func (p *modelProc) poolUse() map[poolKey]modelUse {
	used := map[poolKey]modelUse{}
	for _, a := range p.allocs {
		if a.pool != nil {
			u := used[*a.pool]
			u.objects++
			if a.site.Kind == event.KindAsync {
				u.bytes += int64(a.size)
			}
			used[*a.pool] = u
		}
	}
	return used
}

func (p *modelProc) recountPools() {
	if len(p.pools) == 0 {
		return
	}
	used := p.poolUse()
	for key, q := range p.pools {
		u := used[key]
		if q.high < u.bytes || q.destroyed {
			q.high = u.bytes
		}
		if q.destroyed && u.objects == 0 {
			p.dropPool(key)
		}
	}
}

// recount ends physical memory that nothing keeps, and adds up all the rest.
func (p *modelProc) recount() {
	kept := map[*modelPhys]bool{}
	for _, x := range p.maps {
		kept[x.phys] = true
	}
	maps.DeleteFunc(p.phys, func(_ uint64, ph *modelPhys) bool { return ph.refs == 0 && !kept[ph] })
	p.recountPools()
	p.pruneGraphs()
	for _, s := range p.sites {
		s.inuseObjects, s.inuseBytes = 0, 0
	}
	var inuse [event.NumClasses]int64
	count := func(s *modelSite, size uint64) {
		s.inuseObjects++
		s.inuseBytes += int64(size)
		inuse[s.Kind.Class()] += int64(size)
	}
	for _, a := range p.allocs {
		count(a.site, a.size)
	}
	for _, ph := range p.phys {
		count(ph.site, ph.size)
	}
	for class := range event.NumClasses {
		if total := inuse[class]; total > p.peak[class] {
			p.peak[class] = total
			p.mark(func(c event.Class) bool { return c == class && !onGPU(c) || class == event.ClassDevice && onGPU(c) })
		}
	}
}

// onGPU are the classes of which a process has one peak.
func onGPU(c event.Class) bool {
	return c == event.ClassDevice || c == event.ClassDriver || c == event.ClassTensor
}

// mark makes what each site of some classes holds what it held at the peak.
func (p *modelProc) mark(of func(event.Class) bool) {
	for _, s := range p.sites {
		if of(s.Kind.Class()) {
			p.peakOf[s] = s.inuseBytes
		}
	}
}

func (p *modelProc) inuse(c event.Class) (sum int64) {
	for _, s := range p.sites {
		if s.Kind.Class() == c {
			sum += s.inuseBytes
		}
	}
	return sum
}

func (m *model) forget(id event.Process) {
	if p := m.procs[id]; p != nil {
		delete(m.procs, id)
		if p.active {
			m.gone[id] = true
		}
	}
}

// totals, sites, live and losses are what the ledger's views must show.

func (p *modelProc) totals() ProcessTotals {
	t := ProcessTotals{
		Proc: p.proc, Exited: p.exited,
		Inuse: p.inuse(event.ClassDevice), Peak: p.peak[event.ClassDevice], Allocated: p.allocated,
		Managed: p.inuse(event.ClassManaged), Host: p.inuse(event.ClassHost),
		Imported: p.inuse(event.ClassImported), Graph: p.inuse(event.ClassGraph),
		LiveObjects: int64(len(p.allocs) + len(p.phys)),
		Failed:      p.failed, OutOfMemory: p.oom,
		UnmatchedFrees: p.unmatched, UnknownBytes: p.unknownB,
	}
	for _, a := range p.allocs {
		if a.site.Kind == event.KindAsync {
			t.AsyncInuse += int64(a.size)
		}
	}
	for _, q := range p.pools {
		t.AsyncHigh += q.high
	}
	return t
}

// holdings are the bytes that Holdings must say, by device.
func (p *modelProc) holdings() map[int32]int64 {
	out := map[int32]int64{}
	for _, s := range p.sites {
		if class := s.Kind.Class(); class == event.ClassDevice || class == event.ClassDriver {
			out[s.Device] += s.inuseBytes
		}
	}
	if out[-1] == 0 {
		delete(out, -1)
	}
	return out
}

type siteFigures struct {
	Objects, Bytes, Peak, InuseObjects, InuseBytes, FailedObjects, FailedBytes int64
}

func (f *siteFigures) add(g siteFigures) {
	f.Objects += g.Objects
	f.Bytes = addSaturated(f.Bytes, uint64(g.Bytes))
	f.Peak += g.Peak
	f.InuseObjects += g.InuseObjects
	f.InuseBytes += g.InuseBytes
	f.FailedObjects += g.FailedObjects
	f.FailedBytes = addSaturated(f.FailedBytes, uint64(g.FailedBytes))
}

func (m *model) sites() map[SiteKey]siteFigures {
	out := map[SiteKey]siteFigures{}
	for _, p := range m.procs {
		for _, s := range p.sites {
			f := out[s.SiteKey]
			f.add(siteFigures{
				s.objects, s.bytes, p.peakOf[s], s.inuseObjects, s.inuseBytes,
				s.failedObjects, s.failedBytes,
			})
			out[s.SiteKey] = f
		}
	}
	return out
}

func (m *model) live() map[liveRow]int {
	out := map[liveRow]int{}
	for _, p := range m.procs {
		for at, a := range p.allocs {
			out[liveRow{p.proc, 0, at.space, at.addr, a.size, a.time, a.site.SiteKey}]++
		}
		for h, ph := range p.phys {
			out[liveRow{p.proc, h, 0, 0, ph.size, ph.time, ph.site.SiteKey}]++
		}
	}
	return out
}

// A liveRow is one live allocation.
type liveRow struct {
	proc             event.Process
	handle           uint64
	space            event.Space
	addr, size, time uint64
	site             SiteKey
}
