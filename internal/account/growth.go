package account

import (
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
)

// maxGrowths bounds the call sites of one account that growth is put under.
const maxGrowths = 1000

// Suspects are calls for which the driver may take memory of its own. When the
// residual has grown between two readings, and all suspects between them were
// one call site, the growth is put under its stack. That is an inference:
// something else may have grown meanwhile.
type suspects struct {
	site  ledger.SiteKey
	mixed bool // more than one call site since the last reading
}

// A Growth is what one call site is believed to have made the driver take.
type Growth struct {
	Site  ledger.SiteKey
	Bytes int64
}

// Suspect takes note of a call of a process, until the next reading.
func (a *Accounts) Suspect(site ledger.SiteKey) {
	if s := a.suspects[site.Proc]; s != nil {
		s.mixed = s.mixed || s.site != site
		s.site = site
		return
	}
	a.suspects[site.Proc] = &suspects{site: site}
}

// grew puts a reading's growth under the suspect before it, nil for none. Memory
// given back is taken from the latest growths first.
func (a *account) grew(bytes int64, s *suspects) {
	if bytes > 0 && s != nil && !s.mixed {
		for i := range a.growths {
			if a.growths[i].Site == s.site {
				a.growths[i].Bytes += bytes
				return
			}
		}
		if len(a.growths) < maxGrowths {
			a.growths = append(a.growths, Growth{s.site, bytes})
		}
		return
	}
	for ; bytes < 0 && len(a.growths) > 0; a.growths = a.growths[:len(a.growths)-1] {
		last := &a.growths[len(a.growths)-1]
		if last.Bytes+bytes > 0 {
			last.Bytes += bytes
			return
		}
		bytes += last.Bytes
	}
}

// explained is what all growths add up to.
func (a *account) explained() (sum int64) {
	for _, g := range a.growths {
		sum += g.Bytes
	}
	return sum
}
