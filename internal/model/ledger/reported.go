package ledger

// Reported keeps what each call site has allocated so far, beside what it allocates. Of a
// process that allocated nothing since the last time no site is visited.
func (l *Ledger) Reported() {
	for _, p := range l.order {
		if !p.unreported {
			continue
		}
		p.unreported = false
		for _, s := range p.sites {
			if s != nil {
				s.ReportedObjects, s.ReportedBytes = s.AllocObjects, s.AllocBytes
			}
		}
	}
}

// Unreported returns what was allocated after the last Reported.
func (s *Site) Unreported() (objects, bytes int64) {
	return s.AllocObjects - s.ReportedObjects, s.AllocBytes - s.ReportedBytes
}
