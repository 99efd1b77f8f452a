package main

import (
	"fmt"
	"os"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

// A logger writes what people read to standard error.
type logger struct{ quiet, verbose bool }

func newLogger(f *outputFlags) logger { return logger{f.quiet, f.verbose} }

func (l logger) warn(text string) {
	if !l.quiet {
		fmt.Fprintf(os.Stderr, "gpumemtrace: %s\n", render.Clean(text))
	}
}

func (l logger) started(target string, interactive bool) {
	if l.quiet {
		return
	}
	end := "until it ends"
	if interactive {
		end = "Ctrl-C stops and writes the profile"
	}
	fmt.Fprintf(os.Stderr, "gpumemtrace: tracing %s; %s\n", render.Clean(target), end)
}

func (l logger) summary(s *snapshot.Snapshot) {
	if !l.quiet {
		_ = export.Summary(os.Stderr, s, l.verbose) // nobody is left to read it
	}
}

// wrote says where the output is.
func (l logger) wrote(o *output) {
	if !l.quiet && o.path != "-" {
		fmt.Fprintf(os.Stderr, "\nWrote %s. Next:\n  %s\n", o.path, nextCommand(o))
	}
}

// others says how to convert a recording to something else than a page.
func (l logger) others(path string) {
	if !l.quiet {
		fmt.Fprintf(os.Stderr, "Other formats go by the name of the file, such as a profile:\n  gpumemtrace convert %s %s\n", path, of(path, ".pb.gz"))
	}
}

// recorded says where the recording is, "" for none.
func (l logger) recorded(path string) {
	info, err := os.Stat(path)
	if l.quiet || path == "" || err != nil {
		return
	}
	fmt.Fprintf(os.Stderr, "\nRecorded %s, %s. Next, with --at TIME for any moment:\n  gpumemtrace report %s\nor over time, as a page for a browser:\n  gpumemtrace convert %s %s\n",
		path, bytefmt.Format(info.Size()), path, path, of(path, ".html"))
}

// of returns the name of what is made of a recording.
func of(recording, extension string) string {
	return userfile.Stem(recording) + extension
}

func nextCommand(o *output) string {
	switch o.format.Name {
	case "pprof":
		return "gpumemtrace report " + o.path + "\nor as a flame graph, where Go is installed:\n  go tool pprof -http=: " + o.path
	case "folded":
		return "flamegraph.pl " + o.path + " > memory.svg"
	case "timeline":
		return "open it in a browser: " + o.path
	case "pickle":
		return "drop it on https://pytorch.org/memory_viz"
	}
	return "less " + o.path
}
