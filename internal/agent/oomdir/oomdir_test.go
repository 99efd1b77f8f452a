package oomdir

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

func write(t *testing.T, d *Dir, pid int, at time.Time) {
	t.Helper()
	page, err := d.Write(&snapshot.OutOfMemory{Time: at, PID: pid, Snapshot: &snapshot.Snapshot{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(page); err != nil {
		t.Error(err)
	}
}

// The newest stay, of each process some, whatever another does; also those of an earlier
// run, and nothing else is touched.
func TestKeep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "oom")
	at := time.Date(2026, 3, 14, 3, 5, 0, 0, time.UTC)
	other := []string{"oom-20200101-000000-1-001.txt.bak", "notes.txt", "oom-x-1-001.txt"}
	var d *Dir
	for run := range 2 {
		var err error
		if d, err = Open(path, 0o700, false); err != nil {
			t.Fatal(err)
		}
		d.Keep(5)
		if run == 0 {
			for _, name := range other {
				if err := os.WriteFile(filepath.Join(path, name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		write(t, d, 11, at) // the one that matters
		for i := range 20 {
			write(t, d, 22, at.Add(time.Duration(i+1)*time.Second))
		}
		at = at.Add(time.Hour)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	var pages, profiles []string
	for _, e := range entries {
		switch {
		case slices.Contains(other, e.Name()):
		case strings.HasSuffix(e.Name(), ".txt"):
			pages = append(pages, strings.TrimSuffix(e.Name(), ".txt"))
		default:
			profiles = append(profiles, strings.TrimSuffix(e.Name(), ".pb.gz"))
		}
	}
	want := []string{"oom-20260314-030500-11-001", "oom-20260314-040500-11-001",
		"oom-20260314-040518-22-019", "oom-20260314-040519-22-020", "oom-20260314-040520-22-021"}
	if !slices.Equal(pages, want) || !slices.Equal(profiles, want) {
		t.Errorf("pages %q, profiles %q, want %q", pages, profiles, want)
	}
	if len(entries) != 2*len(want)+len(other) {
		t.Errorf("%d files are there", len(entries))
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
