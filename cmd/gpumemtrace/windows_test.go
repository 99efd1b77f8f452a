package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// Each page of a recording with windows says so, and what needs every tensor refuses it.
func TestWindowsOfRecording(t *testing.T) {
	path := recordtest.Windowed(t)
	whole, err := filepath.Abs("../../test/recordings/profiler.gmt")
	if err != nil {
		t.Fatal(err)
	}
	const which = "of 1 window of 2s, one each 1m"
	for _, c := range []struct {
		args string
		code int
		says []string
	}{
		{"report " + path, exitDone, []string{which, "[tensors from before the window]", "train.py:7 forward", "At the peak", "64.0 MiB"}},
		{"report --windows " + path, exitDone, []string{which, "40.0 MiB", "12.0 MiB", "forward train.py:7"}},
		{"report --windows --csv " + path, exitDone, []string{"train,17,cuda:0,1,2.000000000,0,41943040", "12582912,1,0,,,1,12582912"}},
		{"report --by line " + path, exitDone, []string{"Here segments are whole", "traced in windows only"}},
		{"report --steps " + path, exitDone, []string{"No step was seen in 1 window of 2s"}},
		{"report --leaks " + path, exitDone, []string{"Too short to tell what leaks"}},
		{"convert -o - --format json " + path, exitDone, []string{`"tensor_windows":{"length_ns":2000000000`, `"before_bytes":41943040`, `"inuse_bytes":67108864`}},
		{"convert -o - --format pickle " + path, exitDone, []string{"This file has no tensors, because they were traced in windows only"}},
		{"top --once --at end " + path, exitDone, []string{which, "[tensors from before the window]", "12.0 MiB", "forward train.py:7"}},
		{"top --tensors-window 2s --tensors -p 1", exitUsage, []string{"tensors-window replaces tensors"}},
		{"report --windows " + whole, exitUsage, []string{"has no windows of tensors"}},
		{"report --windows --steps " + path, exitUsage, []string{"give only one of"}},
		{"whatif " + path, exitFailed, []string{"lacks the tensors between windows"}},
		{"fit 8=" + path + " 16=" + path + " --to 32", exitFailed, []string{"lacks the tensors between windows"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			v := command(t, strings.Fields(c.args)...).start().ends(c.code)
			if c.code != exitDone {
				v.says(c.says...)
				return
			}
			for _, text := range c.says {
				if !strings.Contains(v.stdout.String(), text) {
					t.Errorf("it lacks %q:\n%s", text, v.stdout.String())
				}
			}
		})
	}
}
