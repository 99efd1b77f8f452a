package export

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// groups writes one row for each class, in each value of a label where by is
// not nil, and nothing when no sample has that label. Bytes of different
// classes (device, managed, host, ...) are never added up.
func groups(page *render.Page, samples []snapshot.Sample, by *snapshot.Label) {
	type key struct{ value, class string }
	sums, all := make(map[key]*snapshot.Values), make(map[string]*snapshot.Values)
	for i := range samples {
		s := &samples[i]
		k := key{class: render.Class(s.Kind)}
		if by != nil {
			k.value = by.Get(&s.Labels)
		}
		sum(sums, k).Add(s.Values)
		sum(all, k.class).Add(s.Values)
	}
	var keys []key
	labelled := by == nil
	for k, v := range sums {
		if slices.ContainsFunc(groupValues, func(c *snapshot.Value) bool { return *c.Of(v) != 0 }) {
			keys = append(keys, k)
			labelled = labelled || k.value != ""
		}
	}
	if !labelled || len(keys) == 0 {
		return
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(
			cmp.Compare(sums[b].InuseBytes, sums[a].InuseBytes),
			cmp.Compare(sums[b].AllocBytes, sums[a].AllocBytes),
			strings.Compare(a.value, b.value),
			strings.Compare(a.class, b.class),
		)
	})
	header := append([]string{"CLASS"}, figureTitles(groupValues)...)
	var rows []render.Row
	for _, k := range keys {
		cells := append([]string{k.class}, figures(groupValues, sums[k], all[k.class])...)
		if by != nil {
			cells = slices.Insert(cells, 0, cmp.Or(k.value, "-"))
		}
		rows = append(rows, render.Row{Cells: cells})
	}
	if by == nil {
		page.Heading("Totals")
	} else {
		page.Heading("By %s", by.Title)
		header = slices.Insert(header, 0, strings.ToUpper(by.Title))
	}
	page.Table(header, rows)
}

// sum returns the values of a key, zero at first.
func sum[K comparable](sums map[K]*snapshot.Values, k K) *snapshot.Values {
	v := sums[k]
	if v == nil {
		v = new(snapshot.Values)
		sums[k] = v
	}
	return v
}
