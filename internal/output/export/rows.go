package export

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A RowFormat is how the rows of a page are written for other programs.
type RowFormat string

// The formats of rows.
const (
	RowsCSV  RowFormat = "csv"
	RowsJSON RowFormat = "json" // an array of objects
)

// A sheet is rows for other programs. A cell is a string, an int64, a json.Number, or nil where there is
// no value.
type sheet struct {
	columns []string
	rows    [][]any
}

func (t *sheet) write(w io.Writer, format RowFormat) error {
	if format == RowsJSON {
		return t.writeJSON(w)
	}
	out := csv.NewWriter(w)
	_ = out.Write(t.columns) // Error returns the first error
	for _, row := range t.rows {
		text := make([]string, len(row))
		for i, x := range row {
			switch x := x.(type) {
			case string:
				text[i] = cell(x)
			case int64:
				text[i] = strconv.FormatInt(x, 10)
			case json.Number:
				text[i] = x.String()
			}
		}
		_ = out.Write(text)
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
	return nil
}

// writeJSON writes an object for each row, whose keys are in the order of the columns.
func (t *sheet) writeJSON(w io.Writer) error {
	var out bytes.Buffer
	out.WriteByte('[')
	for i, row := range t.rows {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString("\n{")
		for j, x := range row {
			if j > 0 {
				out.WriteByte(',')
			}
			if s, ok := x.(string); ok {
				x = render.Clean(s)
			}
			value, err := json.Marshal(x)
			if err != nil {
				return fmt.Errorf("write json: %w", err)
			}
			fmt.Fprintf(&out, "%q:%s", t.columns[j], value)
		}
		out.WriteByte('}')
	}
	out.WriteString("\n]\n")
	if _, err := w.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	return nil
}

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

// ReportRows writes the rows of a Report with By. A row has groupColumns, of which the class is
// "" for memory on the GPU; every value of profiles; the freed bytes and objects; and the net,
// which is allocated less freed. The same figures of all memory inside of the row follow, as
// total_NAME. Figures that are not known by By are empty.
func ReportRows(w io.Writer, s *snapshot.Snapshot, o Options, format RowFormat) error {
	if o.By == nil {
		return errors.New("write rows: a report has rows only by something")
	}
	by, samples := o.By.samples(s)
	known := map[string]bool{}
	for _, f := range o.figures() {
		known[f.key] = true
	}
	t := sheet{columns: groupColumns()}
	for _, prefix := range []string{"", "total_"} {
		for _, f := range figures() {
			t.columns = append(t.columns, prefix+f.key)
		}
	}
	sections := by.sections(samples, func(a *amount) bool { return a.Succeeded() })
	for _, x := range by.ordered(sections, o.face()) {
		groups := by.groups(sections[x].samples)
		for _, key := range rowsOf(groups, o.face()) {
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
			t.rows = append(t.rows, row)
		}
	}
	return t.write(w, format)
}

// DiffRows writes the rows of a Diff by something that differ. A row has groupColumns, without
// the processes and GPUs that rows are not grouped by, and the bytes and objects in use before,
// after, and the difference.
func DiffRows(w io.Writer, a, b Side, o Options, format RowFormat) error {
	if o.By == nil {
		return errors.New("write rows: a comparison has rows only by something")
	}
	align(&a, &b)
	t := sheet{columns: append(groupColumns(), "before_bytes", "before_objects", "after_bytes", "after_objects", "change_bytes", "change_objects")}
	all := tally(o.By, a.Snapshot, b.Snapshot)
	for _, class := range classesOf(all) {
		for _, r := range differences(all[class], (*tallied).change) {
			x, y := &r.sums[0], &r.sums[1]
			t.rows = append(t.rows, append(o.By.groupCells(section{class: class}, r.values),
				x.InuseBytes, x.InuseObjects, y.InuseBytes, y.InuseObjects, r.change(), y.InuseObjects-x.InuseObjects))
		}
	}
	return t.write(w, format)
}

// RanksRows writes what each rank has of each row of Ranks: groupColumns, then the rank and its
// bytes and objects in use on GPUs.
func RanksRows(w io.Writer, ranks []Side, o Options, format RowFormat) error {
	by := o.By
	if by == nil {
		by = lineBy
	}
	t := sheet{columns: append(groupColumns(), "rank", "inuse_bytes", "inuse_objects")}
	rows := tally(by, Align(contents(ranks)...)...)[""]
	slices.SortFunc(rows, func(a, b *tallied) int { return slices.Compare(a.values, b.values) })
	for _, r := range rows {
		for i := range ranks {
			t.rows = append(t.rows, append(by.groupCells(section{}, r.values), ranks[i].Name, r.sums[i].InuseBytes, r.sums[i].InuseObjects))
		}
	}
	return t.write(w, format)
}
