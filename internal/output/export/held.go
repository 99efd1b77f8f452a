package export

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// Held writes what each process holds on each GPU: a row for each holder, role and kind of memory, the largest
// first. The rows add up to the process's account. It writes nothing if no process holds anything.
func Held(w io.Writer, s *snapshot.Snapshot, o Options) error {
	const usual = 15
	s = s.ByRank()
	page := render.NewPage(w, o.Width, o.Color)
	for i := range s.Accounts {
		a := &s.Accounts[i]
		type row struct{ role, what string }
		samples := slices.DeleteFunc(onGPU(s), func(x *snapshot.Sample) bool { return x.PID != a.PID || x.GPU != a.GPU || x.InuseBytes == 0 })
		if len(samples) == 0 {
			continue
		}
		all, rows := sumOf(samples), gather(samples, func(x *snapshot.Sample) row {
			if x.Holder == "" {
				return row{x.Category, "[" + snapshot.Cause(x) + "]"}
			}
			return row{x.Category, holder.Alike(x.Holder)}
		})
		page.Heading("%s (%d) holds %s of GPU %s%s", a.Process, a.PID, bytefmt.Format(all.InuseBytes), a.GPU, beside(a))
		t := table.New(table.Bytes("BYTES"), table.Share("OF ALL"), table.Count("TENSORS"), table.Text("ROLE"), table.Ending("HELD BY"))
		add := func(v *snapshot.Values, role, what string) {
			t.Add(v.InuseBytes, table.Part{Of: v.InuseBytes, Whole: all.InuseBytes}, v.InuseObjects, role, what)
		}
		keys := sorting.Keys(rows, func(x, y row) int {
			return cmp.Or(cmp.Compare(rows[y].InuseBytes, rows[x].InuseBytes), cmp.Compare(x.what, y.what), cmp.Compare(x.role, y.role))
		})
		top := o.Most(len(keys), usual)
		if top == len(keys)-1 { // a row for one more takes as much room as that one
			top++
		}
		for _, key := range keys[:top] {
			add(&rows[key].Values, key.role, key.what)
		}
		rest := snapshot.Values{}
		for _, key := range keys[top:] {
			rest.Add(&rows[key].Values)
		}
		if n := len(keys) - top; n > 0 {
			add(&rest, "", fmt.Sprintf("%d rows more", n))
		}
		t.Text(page)
		notes(page, a)
	}
	return page.Flush("write what is held")
}
