package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// costly are forgings that once took far more than their size is worth, with the commands.
var costly = map[string][]string{
	"exits":                        {"convert FILE --format timeline -o -"},
	"many readings":                {"diff FILE OTHER -o page.html"},
	"processes with a new PID":     {"top FILE --once"},
	"devices and processes":        {"report FILE -n -1"},
	"reports of processes":         {"report FILE -n -1"},
	"graphs":                       {"report FILE -n -1"},
	"moments over all times":       {"report FILE --leaks --leak-interval 1h"},
	"processes that allocate":      {"top FILE --once --json", "report FILE --from 1s"},
	"long texts in many lines":     {"convert FILE --format timeline -o -", "diff --ranks FILE OTHER", "whatif FILE"},
	"one long line in many stacks": {"report FILE -n -1"},
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
			m := newMeter(t, recordingMemory)
			for _, command := range costly[c.Name] {
				m.costs(strings.Fields(forged(t, c.Fill, hostileSize).Replace(command))...)
			}
			files := forged(t, c.Fill, hostileSize/8)
			for j := i; j < len(commands); j += n {
				m.costs(strings.Fields(files.Replace(commands[j]))...)
			}
		})
	}
}
