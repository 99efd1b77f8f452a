// Package export writes snapshots in the formats that are not pprof: folded
// stacks, CSV, JSON, and pages for people.
package export

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/findings"
)

// Options are how readable pages are laid out.
type Options struct {
	Top int // stacks shown, and rows of By, 0 for 10 stacks (all rows of By, with 3 stacks each), negative for all
	By  By  // the columns that rows of a report differ in, nil for its default page
	// Turnover: By shows memory that was allocated and freed, not memory that is held.
	Turnover bool
	// Segments: a report is of the segments of caching allocators.
	Segments bool
	// Before, if set, is an earlier snapshot of the recording: a report says how much was
	// allocated and freed since.
	Before *snapshot.Snapshot
	// Moment, if set, is the moment of a recording that the snapshot is of, and File is what
	// the next command is to read.
	Moment   *Moment
	File     string
	Failures Failures           // of the recording
	Settings []findings.Setting // that would have helped PyTorch's allocators, or have been tried
	Width    int                // columns, 0 for render.DefaultWidth
	Color    bool
}

// byRank returns o with processes named as Snapshot.ByRank does.
func (o Options) byRank() Options {
	if o.Before != nil {
		o.Before = o.Before.ByRank()
	}
	if o.Moment != nil && o.Moment.End != nil {
		m := *o.Moment
		m.End = m.End.ByRank()
		o.Moment = &m
	}
	if o.Failures.Last != nil {
		o.Failures.Last = o.Failures.Last.ByRank()
	}
	return o
}

// Failures are the requests of a recording that failed for want of memory.
type Failures struct {
	All, Recovered int
	Refused, Calls int                   // those that the driver refused, and its calls that did
	Last           *snapshot.OutOfMemory // that did not recover, nil for none
}

// Add adds a failure, in the order of their times.
func (f *Failures) Add(o *snapshot.OutOfMemory) {
	f.All++
	f.Calls += o.Calls
	if o.Calls > 0 {
		f.Refused++
	}
	if o.Recovered {
		f.Recovered++
	} else {
		f.Last = o
	}
}

// counted says how many requests failed, and how many calls that were: a request is repeated after the
// caching allocator gave memory back, and a limit of the program's own refuses it without a call.
func (f *Failures) counted() string {
	text := bytefmt.Counted(f.All, "request") + " failed for want of memory"
	switch {
	case f.Calls == 0:
		return text
	case f.All == 1:
		return text + " (the driver refused it " + times(f.Calls) + ")"
	case f.Refused < f.All:
		return fmt.Sprintf("%s (%d by the driver, which was asked %s, and %d by a limit of the program's own)", text, f.Refused, times(f.Calls), f.All-f.Refused)
	}
	return text + " (the driver refused " + bytefmt.Counted(f.Calls, "call") + " for them)"
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// says says how many there were, and begins a clause about the last one that did not recover.
func (f *Failures) says() string {
	switch {
	case f.All == 1:
		return f.counted() + ","
	case f.Recovered == 0:
		return f.counted() + ". The last one,"
	}
	return fmt.Sprintf("%s, of which %d were granted in the end. The last one that was not,", f.counted(), f.Recovered)
}

// Order says what the pages about several failures are, the last one that did not recover first:
// "" for a single one.
func (f *Failures) Order() string {
	switch {
	case f.All == 1:
		return ""
	case f.Last == nil:
		return f.counted() + ", and each was granted in the end."
	case f.Recovered == 0:
		return f.counted() + ". The last one comes first: if one of them ended the program, it was this one."
	}
	return fmt.Sprintf("%s, of which %d were granted in the end. The last one that was not comes first: if one ended the program, it was this one.", f.counted(), f.Recovered)
}

// A Moment is a moment of a recording, as durations since its trace began.
type Moment struct {
	At    time.Duration
	First time.Duration // when memory on a GPU was first held
	Peak  time.Duration // when most was held
	Most  time.Duration // when tensors held most
	// Tensors is how many bytes they held then, 0 if that is not known.
	Tensors int64
	End     *snapshot.Snapshot // what the end of the recording holds
}

// A Format is one way to write a snapshot.
type Format struct {
	Name       string
	Extensions []string // with the dot, such as ".pb.gz"
	Write      func(io.Writer, *snapshot.Snapshot, Options) error
	Binary     bool // not for a terminal
	Live       bool // needs Snapshot.Live
	Layout     bool // needs Snapshot.Layout
	// Series: it shows a whole recording. Write is nil.
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
