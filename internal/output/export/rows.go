package export

import (
	"slices"
	"strconv"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
)

// groupColumns are the columns before the figures of rows by something: what sections differ in,
// and then every grouping there is. They do not depend on the grouping.
func groupColumns() (names []string) {
	names = []string{"process", "pid", "gpu", "class"}
	for _, name := range ByNames() {
		if name != "process" && name != "pid" && name != "gpu" {
			names = append(names, name)
		}
	}
	return names
}

// groupCells returns the cells of groupColumns. Those by which rows are not grouped are nil.
func (by By) groupCells(x section, values []string) []any {
	known := map[string]any{"class": x.class}
	if x.process != "" {
		known["process"] = x.process
	}
	if x.pid != 0 {
		known["pid"] = int64(x.pid)
	}
	if x.gpu != "" {
		known["gpu"] = x.gpu
	}
	for i, c := range by {
		known[c.name] = values[i]
		if n, err := strconv.ParseInt(values[i], 10, 64); err == nil && c.name == "pid" {
			known[c.name] = n
		}
	}
	names := groupColumns()
	cells := make([]any, len(names))
	for i, name := range names {
		cells[i] = known[name]
	}
	return cells
}

// ReportRows returns the rows of a Report with By. A row has groupColumns, of which the class is
// "" for memory on the GPU; every value of profiles; the freed bytes and objects; and the net,
// which is allocated less freed. The same figures of all memory inside of the row follow, as
// total_NAME. Figures that are not known by By are empty.
func ReportRows(s *snapshot.Snapshot, o Options) *table.Table {
	by, samples := o.By.exact().samples(s)
	known := map[string]bool{}
	for _, f := range o.figures() {
		known[f.key] = true
	}
	t := table.New(table.Names(groupColumns()...)...)
	for _, prefix := range []string{"", "total_"} {
		for _, f := range figures() {
			t.Columns = append(t.Columns, table.Column{Name: prefix + f.key})
		}
	}
	sections := by.sections(samples, func(a *amount) bool { return a.Succeeded() })
	for _, x := range by.ordered(sections, o.face(s)) {
		groups := by.groups(sections[x].samples)
		for _, key := range rowsOf(groups, o.face(s)) {
			row := by.groupCells(x, groups[key].values)
			for _, a := range []*amount{&groups[key].amount, &groups[key].total} {
				for _, f := range figures() {
					if known[f.key] {
						row = append(row, f.of(a))
					} else {
						row = append(row, nil)
					}
				}
			}
			t.Add(row...)
		}
	}
	return t
}

// DiffRows returns the rows of a Diff by something that differ. A row has groupColumns, without
// the processes and GPUs that rows are not grouped by, and the bytes and objects in use before,
// after, and the difference.
func DiffRows(a, b Side, o Options) *table.Table {
	align(&a, &b)
	t := table.New(table.Names(append(groupColumns(), "before_bytes", "before_objects", "after_bytes", "after_objects", "change_bytes", "change_objects")...)...)
	all := tally(o.By, a.Snapshot, b.Snapshot)
	for _, class := range classesOf(all) {
		for _, r := range differences(all[class], (*tallied).change) {
			x, y := &r.sums[0], &r.sums[1]
			t.Add(append(o.By.groupCells(section{class: class}, r.values),
				x.InuseBytes, x.InuseObjects, y.InuseBytes, y.InuseObjects, r.change(), r.objects())...)
		}
	}
	return t
}

// RanksRows returns what each rank has of each row of Ranks: groupColumns, then the rank and its
// bytes and objects in use on GPUs.
func RanksRows(ranks []Side, o Options) *table.Table {
	by := o.By
	if by == nil {
		by = lineBy
	}
	t := table.New(table.Names(append(groupColumns(), "rank", "inuse_bytes", "inuse_objects")...)...)
	rows := tally(by, Align(contents(ranks)...)...)[""]
	slices.SortFunc(rows, func(a, b *tallied) int { return slices.Compare(a.values, b.values) })
	for _, r := range rows {
		for i := range ranks {
			t.Add(append(by.groupCells(section{}, r.values), ranks[i].Name, r.sums[i].InuseBytes, r.sums[i].InuseObjects)...)
		}
	}
	return t
}
