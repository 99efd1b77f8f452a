// Package export writes snapshots in the formats that are not pprof: folded
// stacks, CSV, JSON, and pages for people.
package export

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Options are how readable pages are laid out.
type Options struct {
	Top int // stacks shown, 0 for 10 (3 of each row of By), negative for all
	By  By  // what a report has a row for each of, nil for its default page
	// Turnover: By shows what was allocated and freed, not what is held.
	Turnover bool
	// Before, if set, is what a recording showed at the moment from which on the snapshot
	// counts: a report says what came and went since.
	Before *snapshot.Snapshot
	Width  int // columns, 0 for render.DefaultWidth
	Color  bool
}

// A Format is one way to write a snapshot.
type Format struct {
	Name       string
	Extensions []string // with the dot, such as ".pb.gz"
	Write      func(io.Writer, *snapshot.Snapshot, Options) error
	Binary     bool // not for a terminal
	Live       bool // shows Snapshot.Live, which must then be asked for
	Layout     bool // shows Snapshot.Layout, likewise
	// Series: it shows how a recording went. Write is nil: no moment has that.
	Series bool
}

// Formats are the formats that a program knows, the default one first.
type Formats []Format

// Builtin returns this package's formats. A program that has others puts them
// in front: append(Formats{pprof}, Builtin()...).
func Builtin() Formats {
	return Formats{
		{Name: "folded", Extensions: []string{".folded", ".collapsed"}, Write: Folded},
		{Name: "csv", Extensions: []string{".csv"}, Write: CSV, Live: true},
		{Name: "json", Extensions: []string{".json"}, Write: JSON, Live: true},
		{Name: "table", Extensions: []string{".txt"}, Write: Table},
	}
}

// Names returns the formats' names.
func (f Formats) Names() []string {
	names := make([]string, len(f))
	for i := range f {
		names[i] = f[i].Name
	}
	return names
}

// ByName returns the format called name, or an error that lists those there
// are.
func (f Formats) ByName(name string) (Format, error) {
	if i := slices.IndexFunc(f, func(f Format) bool { return f.Name == name }); i >= 0 {
		return f[i], nil
	}
	return Format{}, fmt.Errorf("unknown format %q: use one of %s", name, strings.Join(f.Names(), ", "))
}

// ByExtension returns the format that path's name asks for, the default one if it has no
// extension, or an error that lists those there are.
func (f Formats) ByExtension(path string) (Format, error) {
	i, ext := f.extension(path)
	switch {
	case i >= 0:
		return f[i], nil
	case ext == "":
		return f[0], nil
	}
	var all []string
	for i := range f {
		all = append(all, f[i].Extensions...)
	}
	return Format{}, fmt.Errorf("unknown extension %q of %s: use one of %s", ext, path, strings.Join(all, ", "))
}

// Numbered returns path with a six-digit number before its extension:
// "out.pb.gz" and 1 give "out.000001.pb.gz".
func (f Formats) Numbered(path string, n int) string {
	_, ext := f.extension(path)
	return fmt.Sprintf("%s.%06d%s", strings.TrimSuffix(path, ext), n, ext)
}

// extension returns path's extension as written and the index of the format
// it belongs to, -1 for none. A name that is all extension has none.
func (f Formats) extension(path string) (int, string) {
	base := filepath.Base(path)
	for i := range f {
		for _, e := range f[i].Extensions {
			if n := len(base) - len(e); n > 0 && strings.EqualFold(base[n:], e) {
				return i, base[n:]
			}
		}
	}
	if ext := filepath.Ext(base); len(ext) < len(base) {
		return -1, ext
	}
	return -1, ""
}
