package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// Afresh makes what was ever allocated, failed calls, unmatched frees and peaks count
// from this moment on. What is in use is at its peak.
func (l *Ledger) Afresh() {
	for _, p := range l.order {
		for _, s := range p.sites {
			if s != nil {
				s.AllocObjects, s.AllocBytes, s.FailedObjects, s.FailedBytes = 0, 0, 0, 0
				s.FreedObjects, s.FreedBytes, s.told = 0, 0, Counts{}
				s.ReportedObjects, s.ReportedBytes = 0, 0
			}
		}
		p.epoch++
		p.sums.Peak = p.inuse[event.ClassDevice]
		p.sums.Allocated, p.sums.Failed, p.sums.OutOfMemory, p.sums.UnmatchedFrees = 0, 0, 0, 0
	}
}

// Empty tells whether s has no figure.
func (s *Site) Empty() bool {
	return s.AllocObjects == 0 && s.AllocBytes == 0 && s.PeakBytes == 0 && s.InuseObjects == 0 && s.InuseBytes == 0 &&
		s.FailedObjects == 0 && s.FailedBytes == 0
}
