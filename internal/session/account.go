package session

import (
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
)

// accountables copies what the accounts need from the ledger.
func (s *Session) accountables() []*accountable {
	s.mu.Lock()
	defer s.mu.Unlock()
	byProc := map[event.Process]*accountable{}
	// A late target may hold memory without having made a call yet.
	for _, id := range s.procs.current {
		byProc[id] = &accountable{proc: id, fromStart: s.procs.known[id].fromStart, holdings: map[int32]*holding{}}
	}
	for t := range s.ledger.Processes {
		if p := byProc[t.Proc]; p != nil {
			p.unmatched, p.peak = uint64(t.UnmatchedFrees), t.Peak
		}
	}
	for site := range s.ledger.Sites {
		p := byProc[site.Proc]
		if p == nil || site.Kind.Class() != event.ClassDevice {
			continue
		}
		h := p.holdings[site.Device]
		if h == nil {
			h = &holding{}
			p.holdings[site.Device] = h
			if site.Device != event.NoDevice {
				p.used = append(p.used, int(site.Device))
			}
		}
		h.tracked += site.InuseBytes
	}
	for a := range s.ledger.Live {
		if p := byProc[a.Proc]; p != nil && rounded(a.Site) {
			p.holdings[a.Site.Device].rounding.Add(int64(a.Size))
		}
	}
	return slices.Collect(maps.Values(byProc))
}

// rounded tells whether the driver rounds a site's allocations one by one.
// Stream-ordered memory comes from a pool.
func rounded(site *ledger.Site) bool {
	return site.Kind.Class() == event.ClassDevice && site.Kind != event.KindAsync
}

// readGPUs reads the driver's figures now. What it reads belongs to a moment
// between two states of the ledger, so it reads again if that changed. It is
// for the goroutine of readings.
func (s *Session) readGPUs() {
	if s.gpus.nvml == nil {
		return
	}
	for range 3 {
		if n := s.eventCount(); n != s.accountedAt || s.accounted == nil {
			s.accounted, s.accountedAt = s.accountables(), n
		}
		s.gpus.observe(s.accounted)
		s.forgetEnded(s.accounted)
		if s.eventCount() == s.accountedAt {
			return
		}
	}
}

// forgetEnded drops what a reading kept of processes that are known no more:
// they ended while it was made.
func (s *Session) forgetEnded(read []*accountable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range read {
		if s.procs.known[p.proc] == nil {
			s.gpus.forget(p.proc)
		}
	}
}

func (s *Session) eventCount() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events
}
