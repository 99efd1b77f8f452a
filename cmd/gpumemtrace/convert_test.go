package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
)

// ofMoments returns the formats that a running trace can be written in.
func ofMoments() export.Formats {
	return slices.DeleteFunc(formats(), func(f export.Format) bool { return f.Series })
}

// A Perfetto trace is made of a recording, whole or up to a moment, and never of a trace
// that runs. (What is in one: package perfetto.)
func TestConvertToPerfetto(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/profiler.gmt")
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int{}
	for _, args := range []string{"", "--slices", "--at 14s"} {
		v := command(t, append([]string{"convert", recording, "-o", "x.perfetto-trace"}, strings.Fields(args)...)...).start().ends(exitDone)
		for _, says := range []string{"https://ui.perfetto.dev", "unnamed_no_symbol"} {
			if !strings.Contains(v.stderr.String(), says) {
				t.Errorf("no %q in %s", says, v.stderr.String())
			}
		}
		b := read(t, filepath.Join(v.cmd.Dir, "x.perfetto-trace"))
		if len(b) < 1000 || b[0] != 1<<3|2 || !bytes.Contains(b, []byte("GPU 0 tensors: ")) {
			t.Errorf("%s: %d bytes, which begin with %x", args, len(b), b[:min(len(b), 8)])
		}
		sizes[args] = len(b)
	}
	if sizes["--slices"] <= sizes[""] || sizes["--at 14s"] >= sizes[""] {
		t.Errorf("sizes %v", sizes)
	}
	v := command(t, "convert", recording, "--format", "perfetto", "-o", "-", "-q").start().ends(exitDone)
	if len(v.stdout.String()) != sizes[""] || v.stderr.String() != "" {
		t.Errorf("%d bytes to stdout, %q to stderr", len(v.stdout.String()), v.stderr.String())
	}
	for args, says := range map[string]string{
		"-p 1 -o x.perfetto-trace":                    "--record",
		"convert " + recording + " --slices":          "--slices is for",
		"convert " + recording + " --slices -o x.txt": "--slices is for",
	} {
		v := command(t, strings.Fields(args)...).start().ends(exitUsage)
		if !strings.Contains(v.stderr.String(), says) {
			t.Errorf("%s: %s", args, v.stderr.String())
		}
		if left := names(t, v.cmd.Dir); len(left) != 0 {
			t.Errorf("%s left %q", args, left)
		}
	}
	v = command(t, "convert", recording, "--at", "1h", "-o", "x.perfetto-trace").start().ends(exitFailed)
	v.says("it ends at")
	if left := names(t, v.cmd.Dir); len(left) != 0 {
		t.Errorf("it left %q", left)
	}
}

// A report has a stretch of a recording, which diff has not: what came and went in it.
func TestReportFrom(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/profiler.gmt")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"--from 13.5s --to 14.5s", exitDone, "From 13.469071682s to 14.256883271s"},
		{"--from 13.5s --at 14.5s --by owner", exitDone, "From 13.469071682s to 14.256883271s"},
		{"--from 0s", exitDone, "From 0s to 22.219800266s"},
		{"--from 15s --to 14s", exitUsage, "--from 15s is after --to 14s"},
		{"--from 1h", exitFailed, "it ends at"},
		{"--from 13s --to 1h", exitFailed, "it ends at"},
		{"--from soon", exitUsage, "--from"},
		{"--from 14s --steps", exitDone, "python3 (429) on GPU 0: 2 steps"},
		{"--from 14s --to 15s --steps", exitDone, "Steps that began between 13.811841365s and 14.995687001s"},
		{"--from 14s --steps --csv", exitDone, "python3,429,0,4,"},
		{"--from 13s --by owner,freed-by", exitUsage, "leave out --from"},
	} {
		v := command(t, append([]string{"report", recording}, strings.Fields(c.args)...)...).start().ends(c.code)
		if got := v.stdout.String() + v.stderr.String(); !strings.Contains(got, c.says) {
			t.Errorf("%s: %s", c.args, got)
		}
	}
	for _, args := range []string{"", recording + " "} { // the second file may be left out
		v := command(t, strings.Fields("diff "+recording+" "+args+"--before 13.5s --after 14.5s")...).start().ends(exitDone)
		if got := v.stdout.String(); !strings.Contains(got, "tensor   2.0 GiB   2.4 GiB   +406 MiB") {
			t.Errorf("diff of two moments: %s", got)
		}
	}
	command(t, "diff", recording).start().ends(exitUsage).says("two moments of a recording")
	profile := savedProfile(t)
	v := command(t, "report", profile, "--from", "1s").start().ends(exitUsage)
	v.says("one moment only")
}

// A recording becomes a page, whose name may follow the recording's. (What is on it:
// package timeline.)
func TestConvertToTimeline(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/profiler.gmt")
	if err != nil {
		t.Fatal(err)
	}
	var first []byte
	for _, args := range []string{"x.html", "-o x.html", "--format timeline -o x.html"} {
		v := command(t, append([]string{"convert", recording}, strings.Fields(args)...)...).start().ends(exitDone)
		if !strings.Contains(v.stderr.String(), "in a browser: x.html") {
			t.Error(v.stderr.String())
		}
		b := read(t, filepath.Join(v.cmd.Dir, "x.html"))
		if first == nil {
			first = b
		}
		if !bytes.HasPrefix(b, []byte("<!doctype html>")) || !bytes.Equal(b, first) {
			t.Errorf("%s: %d bytes, at first %d", args, len(b), len(first))
		}
	}
	for args, says := range map[string]string{
		"convert " + recording + " x.html -o y.html": "once",
		"convert " + recording + " x.html y.html":    "at most one output",
		"convert " + recording + " x.html --slices":  "--slices is for",
		"-p 1 -o x.html": "--record",
	} {
		v := command(t, strings.Fields(args)...).start().ends(exitUsage)
		if v.says(says); len(names(t, v.cmd.Dir)) != 0 {
			t.Errorf("%s left %q", args, names(t, v.cmd.Dir))
		}
	}
}

// A recording whose disk was full from the beginning has its header alone. Whatever
// reads it says that it was cut short, and not that it is damaged.
func TestRecordingOfNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.gmt")
	whole := read(t, "../../test/recordings/nccl.gmt")
	if err := os.WriteFile(path, whole[:32], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"report", path}, {"convert", path}, {"convert", path, "x.html"}, {"convert", path, "x.perfetto-trace"},
		{"diff", path, "--before", "1s"}, {"top", path, "--once"},
	} {
		v := command(t, args...).start().ends(exitFailed)
		v.says(path, "the recording was cut short", "disk was full")
		if strings.Contains(v.stderr.String(), "damaged") {
			t.Errorf("%q says %q", args, v.stderr.String())
		}
		if got := names(t, v.cmd.Dir); len(got) != 0 {
			t.Errorf("%q left %q", args, got)
		}
	}
}
