package timeline

import (
	"fmt"
	"io"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/series"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// WriteProfile writes the page of one moment: what was in use then, and nothing over time.
// It returns a counter for each way in which the page lacks something.
func WriteProfile(w io.Writer, s *snapshot.Snapshot) ([]loss.Counter, error) {
	return writeProfile(w, s, maxLeaves)
}

func writeProfile(w io.Writer, s *snapshot.Snapshot, mostRows int) ([]loss.Counter, error) {
	lost := loss.New(causes)
	d := &document{w: &run{lost: lost}, meta: meta{Stacks: web.NewStacks(maxNodes)}, totals: render.Index[string]{}, byText: render.Index[string]{}}
	m := &d.meta
	m.Profile, m.Exact, m.MapExact, m.Bucket, m.Changes, m.Instants = true, true, true, 1, 1, 1
	m.Title, m.Version, m.Driver = web.Clean(render.Target(s)), web.Clean(s.Meta.Version), web.Clean(s.Meta.Driver)
	m.BeginMS, m.End = s.Meta.Start.UnixMilli(), uint64(max(s.Meta.Duration, 0))
	for _, text := range s.Notes {
		m.Notes = append(m.Notes, web.Clean(text))
	}
	c := newChanges(d)
	for i := range s.Samples {
		x := s.Samples[i]
		held := s.Meta.Held(&x.Values)
		if held == 0 {
			continue
		}
		if len(m.Rows.Place) >= mostRows {
			lost.Add(lossSites, 1)
			x.Labels = snapshot.Labels{Kind: x.Kind, GPU: x.GPU}
			x.Stack = []*snapshot.Location{named("[no call site: limit reached]")}
		}
		c.by = append(c.by, series.Delta{Line: int32(d.row(&x)), Bytes: held})
	}
	c.end(0)
	m.Loss = shownLoss(lost.Counters())
	if err := d.write(w, append(append([]block{m.packed()}, c.blocks()...), d.lifeBlock())); err != nil {
		return nil, fmt.Errorf("write the page: %w", err)
	}
	return lost.Counters(), nil
}
