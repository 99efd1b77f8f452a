package export

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// owner is what most readers ask for first.
var owner = &snapshot.AllLabels[slices.IndexFunc(snapshot.AllLabels[:], func(l snapshot.Label) bool { return l.Name == "owner" })]

// groups writes one row for each value of a label (nil for totals) and each
// class, whose bytes (device, managed, host, ...) are never added up. It writes
// nothing when no sample has the label.
func groups(page *render.Page, samples []snapshot.Sample, by *snapshot.Label) {
	type key struct{ value, class string }
	columns := succeeded()
	sums, all := make(map[key]*snapshot.Values), make(map[string]int64)
	known := by == nil
	for i := range samples {
		s := &samples[i]
		if !s.Succeeded() {
			continue
		}
		k := key{class: render.Class(s.Kind)}
		if by != nil {
			k.value = by.Get(&s.Labels)
		}
		known = known || k.value != ""
		sum(sums, k).Add(&s.Values)
		all[k.class] += columns.first(&s.Values)
	}
	if !known || len(sums) == 0 {
		return
	}
	keys := slices.SortedFunc(maps.Keys(sums), func(a, b key) int {
		return cmp.Or(
			cmp.Compare(sums[b].InuseBytes, sums[a].InuseBytes),
			cmp.Compare(sums[b].AllocBytes, sums[a].AllocBytes),
			strings.Compare(a.value, b.value),
			strings.Compare(a.class, b.class),
		)
	})
	title, column, absent := "Totals", "", "" // without a value, a column is left out
	if by != nil {
		title, column, absent = "By "+by.Title, strings.ToUpper(by.Title), "-"
	}
	rows := make([]render.Row, len(keys))
	for i, k := range keys {
		rows[i].Cells = append([]string{cmp.Or(k.value, absent), k.class}, columns.cells(sums[k], all[k.class])...)
	}
	page.Heading("%s", title)
	page.Table(append([]string{column, "CLASS"}, columns.header()...), rows)
}
