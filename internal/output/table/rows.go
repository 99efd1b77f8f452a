package table

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A Format is how rows are written for other programs.
type Format string

// The formats of rows.
const (
	FormatCSV  Format = "csv"
	FormatJSON Format = "json" // an array of objects
)

// Write writes the rows. Bytes are numbers, and so are seconds, of a time since 1970.
func (t *Table) Write(w io.Writer, format Format) error {
	if format == FormatJSON {
		return t.JSON(w)
	}
	return t.CSV(w)
}

// CSV writes the rows under their columns' names.
func (t *Table) CSV(w io.Writer) error {
	out := csv.NewWriter(w)
	line := make([]string, len(t.Columns))
	for i := range t.Columns {
		line[i] = t.Columns[i].Name
	}
	_ = out.Write(line) // Error returns the first error
	for _, row := range t.Rows {
		for i, cell := range row.Cells {
			switch x := plain(cell).(type) {
			case nil:
				line[i] = ""
			case string:
				line[i] = Cell(x)
			default:
				line[i] = fmt.Sprint(x)
			}
		}
		_ = out.Write(line)
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
	return nil
}

// Cell returns a text as a cell of CSV. It guards against formula injection (OWASP, "CSV Injection").
func Cell(s string) string {
	s = render.Clean(s)
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
}

// JSON writes an array of Objects, each on a line of its own.
func (t *Table) JSON(w io.Writer) error {
	out := bufio.NewWriter(w)
	out.WriteByte('[')
	for i := range t.Rows {
		if i > 0 {
			out.WriteByte(',')
		}
		line, err := render.JSON(Object(t.Columns, t.Rows[i].Cells))
		if err != nil {
			return fmt.Errorf("write json: %w", err)
		}
		out.WriteByte('\n')
		out.Write(line)
	}
	out.WriteString("\n]\n")
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	return nil
}

// Object returns a row as an object of JSON, whose keys are the columns' names in their order.
func Object(columns []Column, cells []any) json.Marshaler { return object{columns, cells} }

type object struct {
	columns []Column
	cells   []any
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	for i, cell := range o.cells {
		value, err := render.JSON(plain(cell))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, ",%q:%s", o.columns[i].Name, value)
	}
	return fmt.Appendf(nil, "{%s}", bytes.TrimPrefix(out.Bytes(), []byte(","))), nil
}

// plain returns a cell as a number, a text or nil.
func plain(cell any) any {
	switch x := cell.(type) {
	case time.Time:
		return json.Number(fmt.Sprintf("%d.%09d", x.Unix(), x.Nanosecond()))
	case time.Duration:
		return json.Number(fmt.Sprintf("%.9f", x.Seconds()))
	}
	return cell
}
