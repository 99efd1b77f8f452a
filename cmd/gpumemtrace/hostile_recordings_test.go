package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// costly are forgings that once took far more than their size is worth, with the commands.
var costly = map[string][]string{
	"exits":                    {"convert FILE --format timeline -o -", "diff --ranks FILE OTHER"},
	"many readings":            {"diff FILE OTHER -o page.html"},
	"processes with a new PID": {"convert FILE --format timeline -o -", "report FILE -n -1", "top FILE --once"},
	"devices and processes":    {"report FILE -n -1"},
	"reports of processes":     {"report FILE -n -1"},
	"graphs":                   {"report FILE -n -1"},
	"moments over all times":   {"report FILE --leaks", "report FILE --leaks --leak-interval 1h"},
	"processes that allocate":  {"top FILE --once --json", "report FILE --from 1s"},
}

// forged writes a forged recording twice, and returns what names the files in a command. The
// recording has a version that the program refuses (see recordtest.Forger): until that changes,
// the tests below measure a refusal, and not what the recording holds.
func forged(t *testing.T, fill func(*recordtest.Forger), size int) *strings.Replacer {
	t.Helper()
	f := recordtest.Forge(size)
	f.Trace(10, "", "cuMemAlloc_v2")
	fill(f)
	data, dir := f.Bytes(), t.TempDir()
	if _, err := record.NewReader(bytes.NewReader(data), int64(len(data))); !errors.Is(err, record.ErrVersion) {
		t.Fatalf("got %v, want %v: forged recordings are read again, so remove this check and what comments and docs/limits.md say of it", err, record.ErrVersion)
	}
	path, other := filepath.Join(dir, "x.gmt"), filepath.Join(dir, "y.gmt")
	for _, path := range []string{path, other} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return strings.NewReplacer("FILE", path, "OTHER", other)
}

// A small recording takes little memory and work, whatever is in it.
func TestHostileRecordings(t *testing.T) {
	for _, c := range recordtest.Hostile {
		memory := int64(hostileMemory)
		if strings.HasPrefix(c.Name, "processes ") {
			memory = processMemory
		}
		for _, command := range costly[c.Name] {
			t.Run(c.Name+": "+command, func(t *testing.T) {
				t.Parallel()
				newMeter(t, memory).costs(strings.Fields(forged(t, c.Fill, hostileSize).Replace(command))...)
			})
		}
	}
}

// Each recording is read by some of the commands, so that all together meet each command.
func TestHostileCommands(t *testing.T) {
	commands := recordingCommands(t)
	n := len(recordtest.Hostile)
	for i, c := range recordtest.Hostile {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			files, m := forged(t, c.Fill, hostileSize/2), newMeter(t, processMemory)
			for j := i; j < len(commands); j += n {
				m.costs(strings.Fields(files.Replace(commands[j]))...)
			}
		})
	}
}
