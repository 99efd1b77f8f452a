package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// A cost is what a command may take of a forged recording of so many kilobytes: the blocks of the
// program's code that may run, in millions.
type cost struct {
	command         string
	kilobytes, work int
}

// costly are forgings that once took far more than their size is worth, with the commands. A size
// at which the work would be far above its bound again is enough. The first takes the most memory.
var costly = map[string][]cost{
	"exits":                        {{"convert FILE --format timeline -o -", 1000, 500}},
	"many readings":                {{"diff FILE OTHER -o page.html", 250, 450}},
	"processes with a new PID":     {{"top FILE --once", 250, 60}},
	"devices and processes":        {{"report FILE -n -1", 250, 50}},
	"reports of processes":         {{"report FILE -n -1", 250, 50}},
	"graphs":                       {{"report FILE -n -1", 250, 180}},
	"moments over all times":       {{"report FILE --leaks --leak-interval 1h", 250, 600}},
	"processes that allocate":      {{"top FILE --once --json", 250, 110}, {"report FILE --from 1s", 250, 100}},
	"long texts in many lines":     {{"convert FILE --format timeline -o -", 250, 80}, {"diff --ranks FILE OTHER", 250, 100}, {"whatif FILE", 250, 40}},
	"one long line in many stacks": {{"report FILE -n -1", 250, 40}},
}

// forged writes a forged recording twice, and returns what names the files in a command.
func forged(t *testing.T, fill func(*recordtest.Forger), size int) *strings.Replacer {
	t.Helper()
	f := recordtest.Forge(size)
	f.Trace(10, "", "cuMemAlloc_v2")
	fill(f)
	data, dir := f.Bytes(), t.TempDir()
	path, other := filepath.Join(dir, "x.gmt"), filepath.Join(dir, "y.gmt")
	for _, path := range []string{path, other} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return strings.NewReplacer("FILE", path, "OTHER", other)
}

// A small recording takes little memory and work, whatever is in it. Each is read by the
// commands that it once cost most, and a smaller one by some of all commands, so that all
// recordings together meet each command.
func TestHostileRecordings(t *testing.T) {
	commands := recordingCommands(t)
	n := len(recordtest.Hostile)
	for i, c := range recordtest.Hostile {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			for _, x := range costly[c.Name] {
				newMeter(t, recordingMemory, x.work).costs(strings.Fields(forged(t, c.Fill, 1000*x.kilobytes).Replace(x.command))...)
			}
			m := newMeter(t, recordingMemory, 0)
			files := forged(t, c.Fill, hostileSize/8)
			for j := i; j < len(commands); j += n {
				m.costs(strings.Fields(files.Replace(commands[j]))...)
			}
		})
	}
}
