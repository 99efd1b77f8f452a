package replay

import (
	"errors"
	"io"
	"maps"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// heldBy is what tells sums of a snapshot's samples apart.
type heldBy struct{ gpu, kind, owner string }

type held struct{ objects, live, peak int64 }

func (h held) plus(o held) held { return held{h.objects + o.objects, h.live + o.live, h.peak + o.peak} }

// sums adds up the samples of a view, and its totals.
func sums(v *state.View) (samples, totals map[heldBy]held) {
	samples, totals = map[heldBy]held{}, map[heldBy]held{}
	add := func(to map[heldBy]held, k heldBy, h held) {
		to[k] = to[k].plus(h)
	}
	snap := v.Snapshot()
	for i := range snap.Samples {
		x := &snap.Samples[i]
		add(samples, heldBy{x.GPU, x.Kind, x.Owner}, held{x.InuseObjects, x.InuseBytes, x.PeakBytes})
	}
	for _, g := range v.Totals().Groups {
		add(totals, heldBy{g.GPU, g.Kind.String(), g.Owner}, held{g.LiveObjects, g.LiveBytes, g.PeakBytes})
	}
	for _, all := range []map[heldBy]held{samples, totals} {
		maps.DeleteFunc(all, func(_ heldBy, h held) bool { return h == held{} })
	}
	return samples, totals
}

// Totals of real programs are those of snapshots, to the byte: at each reading by GPU,
// kind and owner, whether stacks have names or not yet. Their accounts are the same.
// No counter ever falls, and what was allocated and not freed is what is live.
func TestTotals(t *testing.T) {
	residuals := 0
	for name, path := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			r, err := record.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			s := state.New()
			before := map[state.Group]state.GroupFigures{}
			compared, bytes := 0, int64(0)
			compare := func(end bool) {
				t.Helper()
				v := s.View(state.Want{Totals: true})
				want, got := sums(v)
				if !maps.Equal(want, got) {
					t.Fatalf("after %v: samples add up to\n%+v, totals are\n%+v", v.Totals().Meta.Duration, want, got)
				}
				compared++
				total := v.Totals()
				snap := v.Snapshot()
				if len(total.Accounts) != len(snap.Accounts) {
					t.Fatalf("%d accounts, want %d", len(total.Accounts), len(snap.Accounts))
				}
				for i, a := range snap.Accounts {
					if b := total.Accounts[i]; a.Total != b.Total || a.PID != b.PID || a.GPU != b.GPU || a.Known != b.Known {
						t.Errorf("account %+v, want %+v", b, a)
					}
				}
				for _, g := range total.GPUs {
					if !g.ResidualKnown {
						continue
					}
					// Nothing else ran there: the driver has a little for itself.
					if residuals++; g.Residual < 0 || g.Residual > 1<<30 {
						t.Errorf("of %d bytes in use on GPU %s nobody traced holds %d", g.Used, g.GPU, g.Residual)
					}
				}
				var live, allocated, ever int64
				for _, u := range total.Uses {
					live += u.Live
				}
				for _, p := range total.Processes {
					ever += p.Allocated
				}
				for _, g := range total.Groups {
					old := before[g.Group]
					if g.AllocBytes < old.AllocBytes || g.FreedBytes < old.FreedBytes || g.AllocObjects < old.AllocObjects ||
						g.FreedObjects < old.FreedObjects || g.FailedObjects < old.FailedObjects || g.AllocBytes < g.FreedBytes {
						t.Errorf("%+v after %+v", g, old)
					}
					before[g.Group] = g
					if g.Kind.Class() == event.ClassDevice {
						allocated += g.AllocBytes - g.FreedBytes
						ever -= g.AllocBytes
					}
					bytes += g.AllocBytes
				}
				if !end {
					return // counts wait for names
				}
				if ever != 0 {
					t.Errorf("%d bytes more than counted were ever allocated", ever)
				}
				if len(total.Uses) > 0 && live != allocated {
					t.Errorf("%d bytes are live, %d were allocated and not freed", live, allocated)
				}
			}
			for {
				rec, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				s.Apply(rec)
				if _, ok := rec.(*record.Reading); ok {
					compare(false)
				}
			}
			compare(true)
			if name == "out_of_memory" && residuals == 0 {
				t.Error("no GPU's memory was read")
			}
			if compared < 2 || bytes == 0 {
				t.Errorf("compared %d times, %d bytes", compared, bytes)
			}
		})
	}
}
