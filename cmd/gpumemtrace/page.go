package main

import (
	"io"
	"os"

	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/output/timeline"
)

// addPageFlags adds the flags of a command that can also write the page of a recording.
func addPageFlags(s *pflag.FlagSet, f *outputFlags, help string) {
	s.StringVarP(&f.output, "output", "o", "", help)
	s.BoolVar(&f.force, "force", false, "replace an existing page")
}

// pageOutput returns where that page goes.
func pageOutput(f *outputFlags) (*output, error) {
	out, err := newOutput(f, formats())
	if err == nil && (out.format.Name != "timeline" || out.path == "-") {
		err = usagef("-o writes a page: name it FILE.html, not %s", f.output)
	}
	return out, err
}

// writePage writes the page of a recording, with outlines and perhaps a comparison.
func writePage(out *output, path string, outlines []timeline.Outline, compared *timeline.Comparison) error {
	bar := newProgress(os.Stderr, true, "converting "+path)
	defer bar.clear()
	var failed failures
	return out.put(func(w io.Writer) error {
		_, _, err := timeline.Write(w, path, timeline.Options{Play: replay.Options{At: replay.End, Progress: bar.show, OutOfMemory: failed.add}, Outlines: outlines, Compared: compared,
			Failures: func() []timeline.Passage { return failed.passages(path) }})
		return err
	})
}
