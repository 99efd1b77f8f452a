package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	tty "github.com/charmbracelet/x/term"
	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/atomicfile"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/output/memoryviz"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// outputFlags say what is written, where, and how it looks.
type outputFlags struct {
	output     string
	format     string
	force      bool
	interval   time.Duration // between numbered files, 0 for none
	native     stacks.Native
	noResidual bool
	quiet      bool
	verbose    bool
	traceMax   int
}

// want is what the output shows, with live rows or without.
func (f *outputFlags) want(live bool) state.Want {
	return state.Want{Live: live, Native: f.native, Driver: !f.noResidual, Holders: true, Windows: true}
}

// addOutputFlags adds what says where a file goes, by default to a name, in which of all formats, and how it looks.
func addOutputFlags(s *pflag.FlagSet, f *outputFlags, name string, all export.Formats) {
	s.StringVarP(&f.output, "output", "o", "", "write to this file, or - for stdout (default "+name+")")
	s.StringVar(&f.format, "format", "", "one of "+strings.Join(all.Names(), ", ")+" (default: by the file's extension)")
	s.IntVar(&f.traceMax, "trace-max", 200_000, "the most changes of memory in a pickle; the latest are kept")
	s.BoolVar(&f.force, "force", false, "replace an existing file")
	s.BoolVar(&f.noResidual, "no-residual", false, "leave out the driver's own memory, and the accounts (each process's total on a GPU, divided by cause)")
	s.Var(&f.native, "native", "native frames to show in stacks that have Python frames: all, python (only those that Python called, without the interpreter's own) or none")
	s.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing but errors")
	s.BoolVarP(&f.verbose, "verbose", "v", false, "print what is probed and every counter")
}

// formats returns every format, the default one first.
func formats() export.Formats {
	pprof := export.Format{Name: "pprof", Extensions: []string{".pb.gz", ".pprof", ".prof"}, Binary: true,
		Write: func(w io.Writer, s *snapshot.Snapshot, _ export.Options) error { return pprof.Write(w, s) }}
	viewer := export.Format{Name: "pickle", Extensions: []string{".pickle"}, Binary: true, Layout: true,
		Write: func(w io.Writer, s *snapshot.Snapshot, _ export.Options) error { return memoryviz.Pickle(w, s) }}
	// An extension that is a suffix of another one must come after it.
	all := append(export.Formats{pprof, viewer}, export.Builtin()...)
	page := export.Format{Name: "timeline", Extensions: []string{".html"}, Binary: true, Series: true}
	return append(all, page)
}

// ofMoments returns the formats that a running trace can be written in.
func ofMoments() export.Formats {
	return slices.DeleteFunc(formats(), func(f export.Format) bool { return f.Series })
}

// ofHeaps returns the formats of holders, with table as the first.
func ofHeaps() export.Formats {
	all := formats()
	var out export.Formats
	for _, name := range []string{"table", "json", "csv", "folded", "pprof"} {
		out = append(out, all[slices.IndexFunc(all, func(f export.Format) bool { return f.Name == name })])
	}
	return out
}

// An output is where profiles go, and how.
type output struct {
	path   string // "-" is standard output
	base   string // of a default name, which gets a number if it is taken; "" for other names
	format export.Format
	force  bool
	n      int // numbered files tried
	failed int // numbered files that could not be written
}

// newOutput finds out before the trace whether its result can be written, in one of all formats.
func newOutput(f *outputFlags, all export.Formats) (*output, error) {
	o := &output{path: f.output, force: f.force, format: all[0]}
	if o.path == "" {
		o.base, o.force = "gpumemtrace-"+time.Now().Format("20060102-150405"), false
		o.path = o.base + o.format.Extensions[0]
		if f.format != "" && f.format != o.format.Name {
			o.path = "-"
		}
	}
	var err error
	if f.format != "" {
		o.format, err = all.ByName(f.format)
	} else if o.format, err = all.ByExtension(o.path); err != nil {
		err = fmt.Errorf("%w, or say --format", err)
	}
	if err != nil {
		return nil, usageError{err}
	}
	if o.path == "-" {
		if f.interval > 0 {
			return nil, usagef("--interval writes numbered files: give -o a file name")
		}
		if o.format.Binary && columns(os.Stdout) > 0 {
			return nil, usagef("a %s profile is not for a terminal: redirect stdout, or give -o a file name", o.format.Name)
		}
		return o, nil
	}
	return o, o.untaken(func() error { return atomicfile.Check(o.path, o.force) })
}

// untaken calls write, which writes to the output's path. If the path is a default name that
// another trace of the same second has taken, untaken tries the next name.
func (o *output) untaken(write func() error) error {
	err := write()
	for n := 2; o.base != "" && errors.Is(err, fs.ErrExist); n++ {
		o.path = fmt.Sprintf("%s-%d%s", o.base, n, formats()[0].Extensions[0])
		err = write()
	}
	return err
}

// want returns what the output shows. It includes live rows if live is set or the output
// needs them.
func (o *output) want(f *outputFlags, live bool) state.Want {
	want := f.want(live || o.format.Live)
	want.Layout = o.format.Layout
	return want
}

func (o *output) write(s *snapshot.Snapshot) error {
	if o.path != "-" {
		return o.untaken(func() error { return o.writeFile(o.path, s) })
	}
	return o.put(func(w io.Writer) error { return o.format.Write(w, s, layout(os.Stdout)) })
}

// put writes what content produces to the file or to stdout.
func (o *output) put(content func(io.Writer) error) error {
	if o.path != "-" {
		return atomicfile.Write(o.path, o.force, content)
	}
	w := bufio.NewWriter(os.Stdout)
	if err := content(w); err != nil {
		return fmt.Errorf("write to stdout: %w", err)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write to stdout: %w", err)
	}
	return nil
}

// writeNumbered writes the next of a series of files beside the output.
func (o *output) writeNumbered(s *snapshot.Snapshot) error {
	if o.path == "-" {
		return o.write(s)
	}
	o.n++
	return o.untaken(func() error { return o.writeFile(formats().Numbered(o.path, o.n), s) })
}

func (o *output) writeFile(path string, s *snapshot.Snapshot) error {
	return atomicfile.Write(path, o.force, func(w io.Writer) error {
		return o.format.Write(w, s, export.Options{})
	})
}

// layout returns the layout of pages that are printed to f.
func layout(f *os.File) export.Options {
	width := columns(f)
	if width == 0 {
		return export.Options{Width: render.Whole}
	}
	return export.Options{Width: width, Color: os.Getenv("NO_COLOR") == "" && runtime.GOOS != "windows"} // its consoles may show escape sequences
}

// columns returns the width of the terminal f, 0 if f is not a terminal.
func columns(f *os.File) int {
	width, _, err := tty.GetSize(f.Fd())
	if err != nil {
		return 0
	}
	return max(width, 1)
}

// readyFile is the path of the empty file that says that the probes are on, ""
// for none.
type readyFile string

// newReadyFile finds out before the trace whether the file can be created. A file
// that exists already would say ready too early: with --force it is removed, and
// without --force it is an error. No symbolic link is followed.
func newReadyFile(path string, force bool) (readyFile, error) {
	if path == "" {
		return "", nil
	}
	err := atomicfile.Check(path, force)
	if err == nil && force {
		if err = os.Remove(path); os.IsNotExist(err) {
			err = nil
		}
	}
	return readyFile(path), err
}

func (r readyFile) write() error {
	if r == "" {
		return nil
	}
	if err := atomicfile.Write(string(r), false, func(io.Writer) error { return nil }); err != nil {
		return fmt.Errorf("say ready: %w", err)
	}
	return nil
}
