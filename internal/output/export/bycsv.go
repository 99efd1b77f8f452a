package export

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// sectionColumns tell the sections apart, where no column of By does.
var sectionColumns = [...]string{"process", "pid", "gpu", "class"}

func (x section) cells() [len(sectionColumns)]string {
	pid := ""
	if x.pid != 0 {
		pid = strconv.Itoa(x.pid)
	}
	return [...]string{x.process, pid, x.gpu, x.class}
}

// ReportCSV writes the rows of a Report with By as CSV does its: the process, its pid, the
// GPU and the class of memory ("" for what it holds on the GPU), each unless it is a
// column of By; what By tells apart; every value of profiles, what was freed, and the net,
// which is what was allocated less that; and with a nested column the same of all that is
// inside of that, as total_NAME.
func ReportCSV(w io.Writer, s *snapshot.Snapshot, o Options) error {
	if o.By == nil {
		return errors.New("write csv: a report has rows only by something")
	}
	by, samples := o.By.samples(s)
	out := csv.NewWriter(w)
	var header []string
	var shown []int // of sectionColumns
	for i, name := range sectionColumns {
		if o.By.index(name) < 0 {
			header, shown = append(header, name), append(shown, i)
		}
	}
	for _, c := range o.By {
		header = append(header, c.name)
	}
	values := o.figures()
	for _, prefix := range []string{"", "total_"} {
		if prefix != "" && !o.By.nests() {
			continue
		}
		for _, v := range values {
			header = append(header, prefix+v.key)
		}
	}
	rows := [][]string{header}
	sections := by.sections(samples, func(a *amount) bool { return a.Succeeded() })
	for _, x := range by.ordered(sections, o.face()) {
		groups := by.groups(sections[x].samples)
		for _, key := range rowsOf(groups, o.face()) {
			var row []string
			cells := x.cells()
			for _, i := range shown {
				row = append(row, cell(cells[i]))
			}
			for _, v := range groups[key].values {
				row = append(row, cell(v))
			}
			row = numbers(row, values, &groups[key].amount)
			if by.nests() {
				row = numbers(row, values, &groups[key].total)
			}
			rows = append(rows, row)
		}
	}
	if err := out.WriteAll(rows); err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
	return nil
}

// numbers appends the figures of a to row.
func numbers(row []string, figures []figure, a *amount) []string {
	for _, f := range figures {
		row = append(row, strconv.FormatInt(f.of(a), 10))
	}
	return row
}
