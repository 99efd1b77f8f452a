package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// recordingCommands are the commands that read a recording, FILE.
var recordingCommands = []string{
	"report FILE -n -1",
	"report FILE --by size",
	"report FILE --by owner,kind -n -1",
	"report FILE --steps",
	"report FILE --from 1s",
	"diff FILE --before 2s -n -1",
	"convert FILE --format table -o -",
	"convert FILE --format pprof -o -",
	"convert FILE --format folded -o -",
	"convert FILE --format csv -o -",
	"convert FILE --format json -o -",
	"convert FILE --format memory_viz -o -",
	"convert FILE --format pickle -o -",
	"convert FILE --format table --oom-dir reports -o -",
	"convert FILE --format perfetto --slices -o -",
	"convert FILE --format timeline -o -",
	"top FILE --once",
	"top FILE --once --json",
}

// A small recording takes little memory and time, whatever is in it. Each of them is read
// by one of the commands, so that all together meet each command.
func TestHostileRecordings(t *testing.T) {
	for i, c := range recordtest.Hostile {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			f := recordtest.Forge(hostileSize)
			f.Trace(10, "", "cuMemAlloc_v2")
			c.Fill(f)
			path := filepath.Join(t.TempDir(), "x.gmt")
			if err := os.WriteFile(path, f.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			costs(t, strings.Fields(strings.Replace(recordingCommands[7*i%len(recordingCommands)], "FILE", path, 1))...)
		})
	}
}
