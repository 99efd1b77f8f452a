package leak

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// A world is a traced program made of allocations: a snapshot of it has the
// figures and the Live rows that a ledger would give.
type world struct {
	now      time.Time
	programs []*program
	noLive   bool // as when the trace reached its limit of rows
}

// A program allocates at one call site. It runs once in every interval.
type program struct {
	name string
	live []allocation
	run  func(p *program, interval int)
	now  time.Time
}

type allocation struct {
	size int64
	time time.Time
}

func newWorld(programs ...*program) *world {
	return &world{now: snapshottest.Start, programs: programs}
}

func (p *program) alloc(size int64) { p.live = append(p.live, allocation{size, p.now}) }

// free frees the n oldest allocations.
func (p *program) free(n int) { p.live = slices.Delete(p.live, 0, min(n, len(p.live))) }

// interval runs every program in the middle of one interval.
func (w *world) interval(n int, length time.Duration) {
	w.now = w.now.Add(length / 2)
	for _, p := range w.programs {
		p.now = w.now
		p.run(p, n)
	}
	w.now = w.now.Add(length - length/2)
}

// held is what a state would say that the programs hold.
func (w *world) held(yield func(state.SiteUsage) bool) {
	for i, p := range w.programs {
		h := state.SiteUsage{Site: siteKey(i)}
		for _, a := range p.live {
			h.Bytes += a.size
			h.Objects++
		}
		if !yield(h) {
			return
		}
	}
}

func siteKey(i int) ledger.SiteKey { return ledger.SiteKey{Stack: uint64(i + 1)} }

// sites are those of a snapshot's samples.
func (w *world) sites(yield func(ledger.SiteKey) bool) {
	for i := range w.programs {
		if !yield(siteKey(i)) {
			return
		}
	}
}

// snapshot makes new locations every time: nothing may rely on pointers.
func (w *world) snapshot(live bool) *snapshot.Snapshot {
	s := &snapshot.Snapshot{Meta: snapshot.Meta{
		Target: "pid 4711 (python3)", Start: snapshottest.Start, Duration: w.now.Sub(snapshottest.Start),
	}}
	for i, p := range w.programs {
		sample := snapshot.Sample{
			Stack: []*snapshot.Location{
				snapshottest.API("cuMemAlloc_v2"),
				{Address: 0x7f0000001000 + uint64(i), Lines: []snapshot.Line{{Function: "pool::grow(unsigned long)", File: "/src/pool.cc", Line: 77}}},
				snapshottest.Frame(p.name, "/home/me/train.py", 41+i),
				snapshottest.Frame("<module>", "/home/me/train.py", 102),
			},
			Labels: snapshot.Labels{Kind: "device", API: "cuMemAlloc_v2", GPU: "0", Owner: "pytorch", Process: "python3", PID: 4711},
		}
		for _, a := range p.live {
			sample.InuseObjects++
			sample.InuseBytes += a.size
			if live && !w.noLive {
				s.Live = append(s.Live, snapshot.Allocation{Sample: i, Size: a.size, Time: a.time})
			}
		}
		s.Samples = append(s.Samples, sample)
	}
	return s
}

// watch runs w for so many intervals, then after (nil for nothing), and
// reports half an interval later.
func watch(o Options, w *world, intervals int, after func()) *Report {
	d := New(o)
	for i := range intervals {
		w.interval(i+1, d.opts.Interval)
		d.Observe(w.now, w.held)
	}
	if after != nil {
		after()
	}
	w.now = w.now.Add(d.opts.Interval / 2)
	return d.Report(w.snapshot(true), w.sites)
}

// names returns the programs that r says leak.
func names(r *Report) []string {
	var out []string
	for _, s := range r.Stacks {
		out = append(out, s.Sample.Stack[2].Lines[0].Function)
	}
	return out
}

const kib, mib = 1 << 10, 1 << 20

func leaking(size int64) *program {
	return &program{name: fmt.Sprintf("leak_%d", size), run: func(p *program, _ int) { p.alloc(size) }}
}
