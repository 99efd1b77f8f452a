package export

import (
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// keepers writes which objects of the process's heap keep its memory, if that was read:
// what would be freed with each, and the tensors by holder.
func keepers(page *render.Page, o *snapshot.OutOfMemory) {
	i := slices.IndexFunc(o.Snapshot.Heaps, func(h snapshot.Heap) bool { return h.PID == o.PID })
	if i < 0 {
		return
	}
	h := &o.Snapshot.Heaps[i]
	when := "after"
	apart := h.End.Sub(o.Time)
	if apart < 0 {
		when, apart = "before", -apart
	}
	page.Heading("What keeps it alive, by the program's heap %s %s the failure", apart.Round(10*time.Millisecond), when)
	if h.Reading.Refused != "" {
		page.Line("  Not known: %s.", h.Reading.Refused)
		return
	}
	t := table.New(table.SomeBytes("FREED WITH IT"), table.SomeBytes("AUTOGRAD GRAPHS"), table.SomeCount("TENSORS"), table.SomeCount("ITEMS"), table.Text("CLASS"), table.Ending("OBJECT"))
	retainers := holder.AlikeRetainers(h.Reading.Retainers)
	for _, r := range retainers[:min(maxTensorRows, len(retainers))] {
		t.Add(bytesOf(r.Retained), bytesOf(r.Graph), r.Storages, r.Items, r.Class, r.Holder)
	}
	if len(t.Rows) == 0 {
		page.Line("  No object keeps any tensor.")
	} else {
		t.Text(page)
	}
	var samples []*snapshot.Sample
	for i := range o.Snapshot.Samples {
		if s := &o.Snapshot.Samples[i]; there(o, s) && s.Holder != "" && s.InuseBytes != 0 {
			samples = append(samples, s)
		}
	}
	tensorsBy(page, "holder", table.Ending("HOLDER"), samples, holderAlike)
}

// bytesOf returns n, or the largest number of bytes that there can be.
func bytesOf(n uint64) int64 { return int64(min(n, 1<<62)) }
