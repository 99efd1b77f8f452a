package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	updateCorpus = flag.Bool("update-corpus", false, "write testdata/corpus anew")
	oldProgram   = flag.String("old", "", "show what differs from what this older program prints")
)

// corpusFolder has the recordings of real runs.
const corpusFolder = "../../test/recordings"

// TestCorpus holds what the program makes of each recording of a real run, with each command that
// reads recordings, against testdata/corpus. That has a line for each command: its exit code, and a
// sum of each output. With -old PROGRAM it shows how an output differs from another program's.
func TestCorpus(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(corpusFolder, "*.gmt"))
	if err != nil || len(files) < 15 {
		t.Fatal(len(files), "recordings:", err)
	}
	commands := recordingCommands(t)
	for _, name := range []string{"forward", "small"} {
		files = append(files, unzipped(t, name))
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got strings.Builder
			for _, c := range commands {
				made := makes(t, binary, file, c)
				fmt.Fprintf(&got, "%s:%s\n", c, made.sums())
				if *oldProgram != "" {
					made.compare(t, c, makes(t, *oldProgram, file, c))
				}
			}
			golden := filepath.Join("testdata/corpus", name+".txt")
			if *updateCorpus {
				if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); err != nil || d != "" {
				t.Errorf("%v (-want +got; -old PROGRAM shows how):\n%s", err, d)
			}
		})
	}
}

// made is what a command printed and wrote, by the name of a file or of a stream.
type made map[string][]byte

// makes runs a command in an empty folder, with the recording as run.gmt and another as other.gmt.
func makes(t *testing.T, program, file, command string) made {
	t.Helper()
	dir := t.TempDir()
	for name, path := range map[string]string{"run.gmt": file, "other.gmt": filepath.Join(corpusFolder, "accelerate.gmt")} {
		path, err := filepath.Abs(path)
		if err == nil {
			err = os.Symlink(path, filepath.Join(dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var stdout, stderr bytes.Buffer
	c := exec.Command(program, strings.Fields(strings.NewReplacer("FILE", "run.gmt", "OTHER", "other.gmt").Replace(command))...)
	c.Dir, c.Stdout, c.Stderr = dir, &stdout, &stderr
	// No output depends on Go's garbage collection, which would take a quarter of the time.
	c.Env = append(os.Environ(), "TZ=UTC", "LC_ALL=C.UTF-8", "GOGC=400")
	if err := c.Run(); err != nil {
		fmt.Fprintf(&stderr, "%v\n", err)
	}
	out := made{"stdout": plain(stdout.Bytes()), "stderr": stderr.Bytes()}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir+"/")] = plain(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// plain returns data without its compression.
func plain(data []byte) []byte {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return data
	}
	out, err := io.ReadAll(r)
	if err != nil {
		return data
	}
	return out
}

func (m made) names() (names []string) {
	for name, data := range m {
		if len(data) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// sums returns the name and a sum of each output.
func (m made) sums() (line string) {
	for _, name := range m.names() {
		sum := sha256.Sum256(m[name])
		line += fmt.Sprintf(" %s %s", name, hex.EncodeToString(sum[:6]))
	}
	return line
}

// compare shows how m differs from what an older program made.
func (m made) compare(t *testing.T, command string, old made) {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append(m.names(), old.names()...)))) {
		if a, b := string(old[name]), string(m[name]); a != b {
			t.Logf("%s: %s (-old +new):\n%.4000s", command, name, cmp.Diff(strings.SplitAfter(a, "\n"), strings.SplitAfter(b, "\n")))
		}
	}
}
