package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/event"

// hold changes what s has in use, and with it its process's totals and what
// it holds on the device. Every
// change of memory in use goes through here.
//
// A new peak means that each site's PeakBytes is now its InuseBytes. Instead
// of visiting all sites, hold starts a new epoch; a site of an older epoch
// takes its InuseBytes over just before they change, or when it is read.
func (p *process) hold(s *Site, objects, bytes int64) {
	p.settle(s)
	s.InuseObjects += objects
	s.InuseBytes += bytes
	p.sums.LiveObjects += objects
	class := s.Kind.Class()
	p.inuse[class] += bytes
	if class != event.ClassDevice {
		return
	}
	p.devices[s.device].Bytes += bytes
	if p.inuse[class] > p.sums.Peak {
		p.sums.Peak = p.inuse[class]
		p.epoch++
	}
}

// settle brings s's PeakBytes up to the epoch.
func (p *process) settle(s *Site) {
	if s.epoch != p.epoch {
		s.PeakBytes = s.InuseBytes
		s.epoch = p.epoch
	}
}
