package timeline

import (
	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// holders adds to each row which object held most of its tensors at the end, where the
// heap was read.
func (d *document) holders(view *state.View, snap *snapshot.Snapshot) {
	if len(snap.Heaps) == 0 {
		return
	}
	rows := make(map[ledger.SiteKey]int, len(d.w.leaves))
	for i := range d.w.leaves {
		rows[d.w.leaves[i].key] = d.rows[i]
	}
	held := map[int]map[string]int64{} // bytes by row and holder
	i := 0
	for key := range view.Sites {
		row, known := rows[key]
		x := &snap.Samples[i]
		i++
		if !known || row < 0 || x.Holder == "" {
			continue
		}
		keyed.Map(held, row)[x.Holder] += x.InuseBytes
	}
	if len(held) == 0 {
		return
	}
	d.meta.Rows.Holder = make([]int, len(d.meta.Rows.Place))
	for row := range d.meta.Rows.Holder {
		d.meta.Rows.Holder[row] = d.meta.Text(holder.Most(held[row]))
	}
}
