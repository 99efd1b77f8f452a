// Package account splits what the driver reports for one process on one GPU.
// It is pure: readings go in, statements come out.
//
// At each moment
//
//	NVML = tracked + rounding + [allocated before attach] + [cuda context and driver]
//
// NVML's figure, tracked and rounding are known, so the last two are one
// residual that must be split:
//
//   - traced from its start, nothing was allocated before: the residual is
//     context and driver;
//   - attached late, the first residual is the before-attach line, whose Note
//     says that it includes the context, whose size nobody tells;
//   - afterwards, a residual that falls while frees of unseen addresses were
//     counted shrinks before-attach, to no less than zero; every other change
//     is context and driver (modules, local memory, graphs).
//
// Nothing is clamped: a line may be negative, which means that the reading and
// the events raced, that events were lost, or that a device was mistaken.
// Managed memory is in none of the lines: NVML does not count it for a process,
// touched on the GPU or not. A stream-ordered pool's unused reserve is part of
// context and driver.
package account

import (
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// Names of the lines that no call stack accounts for. They are synthetic
// frames in profiles and rows in tables.
const (
	LineTracked  = "tracked"
	LineRounding = "[driver rounding]"
	LineBefore   = "[allocated before attach]"
	LineContext  = "[cuda context and driver]"
	LineGrowth   = "[driver growth, inferred]"
)

const (
	noteBefore = "includes the CUDA context as it was at attach, whose size is not known"
	noteGrowth = "grew across calls that load code, instantiate graphs or set limits; by stack in the profile"
)

// An account reconciles one process on one GPU over time. The zero value is a
// process attached late.
type account struct {
	fromStart bool // traced before its first allocation

	seen      bool
	before    int64 // [allocated before attach]
	residual  int64 // at the last reading
	unmatched int64
	freed     bool // an unmatched free has not shown in the residual yet

	last   balance
	peak   int64 // of the process's device total, at the last reading
	atPeak []snapshot.AccountLine
	// growths are parts of the context's line, by call site.
	growths []Growth
	// unlisted is how many readings in a row did not show the process here.
	unlisted int
}

// A moment is what is known of an account at one reading.
type moment struct {
	total    int64 // NVML's figure in bytes, if known
	known    bool
	inferred bool
	// tracked is the live device memory in bytes as it was asked for, of owned
	// classes alone: no managed, host, imported or graph memory. rounding is
	// what the driver holds beyond that.
	tracked, rounding int64
	unmatched         int64 // frees of unseen addresses since attach
}

// A balance is one reading, split.
type balance struct {
	moment
	// lines add up to total. When that is not known there are only those that
	// do not need it.
	lines []snapshot.AccountLine
	// grew is how much the residual grew (shrank, when negative) since the last
	// known reading, 0 at the first: growth is memory that no traced allocation
	// asked for.
	grew int64
}

// observe takes the next reading, in order of time.
func (a *account) observe(m moment) balance {
	b := balance{moment: m, lines: []snapshot.AccountLine{
		{Name: LineTracked, Bytes: m.tracked}, {Name: LineRounding, Bytes: m.rounding, Inferred: true}}}
	if !m.known {
		return b
	}
	b.grew = a.advance(m.total-m.tracked-m.rounding, m.unmatched)
	inferred := m.inferred || !a.fromStart
	before := snapshot.AccountLine{Name: LineBefore, Bytes: a.before, Inferred: inferred}
	if !a.fromStart {
		before.Note = noteBefore
	}
	b.lines = append(b.lines, before, snapshot.AccountLine{Name: LineContext, Bytes: a.residual - a.before, Inferred: inferred})
	return b
}

// advance moves the residual and says by how much. What shrinks is taken from
// before-attach if unseen memory was freed, else from context and driver; where
// that is used up, from the other. Only a negative residual leaves a negative
// line.
func (a *account) advance(residual, unmatched int64) (grew int64) {
	if !a.seen {
		if !a.fromStart {
			a.before = max(residual, 0)
		}
		a.seen, a.residual, a.unmatched = true, residual, unmatched
		return 0
	}
	a.freed = a.freed || unmatched > a.unmatched
	grew = residual - a.residual
	if drop := -grew; drop > 0 {
		if !a.freed {
			drop -= max(min(drop, a.residual-a.before), 0)
		}
		a.before -= min(drop, a.before)
		a.freed = false
	}
	a.residual, a.unmatched = residual, max(unmatched, a.unmatched)
	return grew
}

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
