package main

import (
	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
)

// rowFlags say that a command writes rows for other programs, not a page.
type rowFlags struct{ csv, json bool }

func (f *rowFlags) add(s *pflag.FlagSet, rows string) {
	s.BoolVar(&f.csv, "csv", false, "write "+rows+" as comma-separated values, in bytes")
	s.BoolVar(&f.json, "json", false, "write "+rows+" as JSON, in bytes")
}

// format returns how rows are written, "" for a page. Rows are of something, by which may say.
func (f *rowFlags) format(by bool) (table.Format, error) {
	name := ""
	switch {
	case f.csv && f.json:
		return "", usagef("give --csv or --json, not both")
	case f.csv:
		name = "csv"
	case f.json:
		name = "json"
	}
	if name != "" && !by {
		return "", usagef("--%s writes the rows of --by: say by what, such as --by line (everything in a file: gpumemtrace convert FILE --format %s)", name, name)
	}
	return table.Format(name), nil
}
