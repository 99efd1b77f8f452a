// Package table has the one table of this program: columns, and rows of typed cells. Text is for people,
// CSV and JSON are for other programs.
package table

import "github.com/gpumemtrace/gpumemtrace/internal/render"

// A Table is rows under columns.
type Table struct {
	Columns []Column
	Rows    []Row
}

// New returns a table without rows.
func New(columns ...Column) *Table { return &Table{Columns: columns} }

// A Row has a cell for each column: a string, an int or int64, a Part, a time.Duration, a time.Time, or
// nil where there is no value. In a table that is written as text alone, the last ones may be missing.
type Row struct {
	Cells []any
	Below []string // lines under it, in text alone
}

// Add adds a row.
func (t *Table) Add(cells ...any) { t.AddAbove(nil, cells...) }

// AddAbove adds a row that has lines under it.
func (t *Table) AddAbove(below []string, cells ...any) { t.Rows = append(t.Rows, Row{cells, below}) }

// Texts returns strings as cells.
func Texts(all []string) []any {
	cells := make([]any, len(all))
	for i, s := range all {
		cells[i] = s
	}
	return cells
}

// A Part is a part of a whole. Text has it in percent.
type Part struct{ Of, Whole int64 }

// A Column is one of a table. Text has its title, CSV and JSON have its name.
type Column struct {
	Title, Name string
	Some        bool // text leaves out a zero
	Signed      bool // text has a "+" before what was added

	right, bytes bool
	yields       func(string, int) string // shortens a cell to a width, nil where it stays whole
}

// Columns of text. Where a table is wider than the page, a cell of Ending loses its beginning, because
// its end says most, and a cell of Beginning its end.
var (
	Text      = like(Column{})
	TextRight = like(Column{right: true})
	Ending    = like(Column{yields: render.ShortenLeft})
	Beginning = like(Column{yields: render.Shorten})
)

// Columns of numbers.
var (
	Bytes       = like(Column{right: true, bytes: true})
	SomeBytes   = like(Column{right: true, bytes: true, Some: true})
	SignedBytes = like(Column{right: true, bytes: true, Signed: true})
	Count       = like(Column{right: true})
	SomeCount   = like(Column{right: true, Some: true})
	SignedCount = like(Column{right: true, Signed: true})
	Share       = like(Column{right: true}) // of Parts
)

func like(c Column) func(title string) Column {
	return func(title string) Column {
		c := c
		c.Title = title
		return c
	}
}

// As returns the column with a name.
func (c Column) As(name string) Column {
	c.Name = name
	return c
}

// Names returns columns that text does not have.
func Names(all ...string) []Column {
	columns := make([]Column, len(all))
	for i, name := range all {
		columns[i].Name = name
	}
	return columns
}
