package session

import (
	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// maxGrowths bounds the call sites of one account that growth is put under.
const maxGrowths = 1000

// Suspects are calls for which the driver may take memory of its own. When the
// residual has grown between two readings, and all suspects between them were
// one call site, the growth is put under its stack. That is an inference:
// something else may have grown meanwhile.
type suspects struct {
	site  ledger.Site
	mixed bool // more than one call site since the last reading
	any   bool
}

// A growth is what one call site is believed to have made the driver take.
type growth struct {
	site  ledger.Site
	bytes int64
}

// suspect takes note of a call, until the next reading.
func (g *gpus) suspect(e *event.Event) {
	if g.nvml == nil {
		return
	}
	site := siteOf(e)
	site.Device, site.Kind = event.NoDevice, event.KindNone
	g.mu.Lock()
	s := g.suspects[e.Proc]
	if s == nil {
		s = &suspects{}
		g.suspects[e.Proc] = s
	}
	s.mixed = s.mixed || s.any && s.site.SiteKey != site.SiteKey
	s.site, s.any = site, true
	g.mu.Unlock()
	select {
	case g.look <- struct{}{}:
	default: // a reading is due anyway
	}
}

// grew puts a reading's growth under the suspect before it. Memory given back
// is taken from the latest growths first. g.mu is held.
func (a *account) grew(bytes int64, s *suspects) {
	if bytes > 0 && s != nil && s.any && !s.mixed {
		for i := range a.growths {
			if a.growths[i].site.SiteKey == s.site.SiteKey {
				a.growths[i].bytes += bytes
				return
			}
		}
		if len(a.growths) < maxGrowths {
			a.growths = append(a.growths, growth{s.site, bytes})
		}
		return
	}
	for ; bytes < 0 && len(a.growths) > 0; a.growths = a.growths[:len(a.growths)-1] {
		last := &a.growths[len(a.growths)-1]
		if last.bytes+bytes > 0 {
			last.bytes += bytes
			return
		}
		bytes += last.bytes
	}
}

// explained is what all growths add up to.
func (a *account) explained() (sum int64) {
	for _, g := range a.growths {
		sum += g.bytes
	}
	return sum
}

// A grown is a growth on one GPU.
type grown struct {
	gpu string
	growth
}

// growth returns a growth as a sample of kind "driver".
func (b *builder) growth(g grown, name string) snapshot.Sample {
	s := b.sample(&g.site)
	s.Labels.Kind, s.Labels.GPU, s.Labels.Process = "driver", g.gpu, name
	s.Stack = append([]*snapshot.Location{inferredFrame}, s.Stack...)
	s.Values = snapshot.Values{InuseBytes: g.bytes}
	return s
}

// inferredFrame is the leaf of what was inferred, not seen.
var inferredFrame = &snapshot.Location{Lines: []snapshot.Line{{Function: lineGrowth}}}

// stackIDs are the stacks that growths need.
func (g *gpus) stackIDs() (ids []uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range g.accounts {
		for _, w := range a.growths {
			ids = append(ids, w.site.Stack)
		}
	}
	return ids
}
