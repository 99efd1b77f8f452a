package session

import (
	"context"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
)

// accountables copies what the accounts need from the ledger.
func (s *Session) accountables() []*accountable {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*accountable
	byProc := map[event.Process]*accountable{}
	for t := range s.ledger.Processes {
		if t.Exited {
			continue
		}
		p := &accountable{
			pid: t.Proc.PID, fromStart: s.procs.fromStart[t.Proc.PID],
			unmatched: uint64(t.UnmatchedFrees), peak: t.Peak, holdings: map[int32]*holding{},
		}
		byProc[t.Proc] = p
		out = append(out, p)
	}
	// A late target may hold memory without having made a call yet.
	for pid := range s.procs.alive {
		if !slices.ContainsFunc(out, func(p *accountable) bool { return p.pid == pid }) {
			out = append(out, &accountable{pid: pid, fromStart: s.procs.fromStart[pid]})
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
	return out
}

// rounded tells whether the driver rounds a site's allocations one by one.
// Stream-ordered memory comes from a pool.
func rounded(site *ledger.Site) bool {
	return site.Kind.Class() == event.ClassDevice && site.Kind != event.KindAsync
}

// observe reads the driver's figures now. What it reads belongs to a moment
// between two states of the ledger, so it reads again if that changed.
func (s *Session) observe() {
	if s.gpus.nvml == nil {
		return
	}
	s.observing.Lock()
	defer s.observing.Unlock()
	for range 3 {
		if n := s.eventCount(); n != s.accountedAt || s.accounted == nil {
			s.accounted, s.accountedAt = s.accountables(), n
		}
		s.gpus.observe(s.accounted)
		if s.eventCount() == s.accountedAt {
			return
		}
	}
}

func (s *Session) eventCount() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events
}

// keepAccounts reads the driver's figures every so often until ctx ends.
func (s *Session) keepAccounts(ctx context.Context) {
	tick := time.NewTicker(accountInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.gpus.look:
		}
		s.observe()
	}
}
