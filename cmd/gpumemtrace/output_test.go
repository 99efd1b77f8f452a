package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// Traces that begin in one second and name no output write a file each, numbered files
// too, and replace none.
func TestDefaultNames(t *testing.T) {
	t.Chdir(t.TempDir())
	var all []*output
	for range 3 {
		o, err := newOutput(&outputFlags{force: true}, formats())
		if err != nil {
			t.Fatal(err)
		}
		o.base, o.path = "gpumemtrace-now", "gpumemtrace-now.pb.gz"
		all = append(all, o)
	}
	for _, o := range all[1:] {
		if err := o.writeNumbered(snapshottest.Training()); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range all {
		if err := o.write(snapshottest.Training()); err != nil {
			t.Fatal(err)
		}
		if !exists(t, o.path) {
			t.Errorf("it says %s", o.path)
		}
	}
	want := []string{"gpumemtrace-now-2.000001.pb.gz", "gpumemtrace-now-2.pb.gz", "gpumemtrace-now-3.pb.gz", "gpumemtrace-now.000001.pb.gz", "gpumemtrace-now.pb.gz"}
	if got := names(t, "."); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What is made of a recording has its name, in the directory where one is.
func TestConvertNames(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/ipc.gmt")
	if err != nil {
		t.Fatal(err)
	}
	v := command(t, "convert", recording).start().ends(exitDone)
	if got := names(t, v.cmd.Dir); !slices.Equal(got, []string{"ipc.html"}) || !strings.Contains(v.stderr.String(), "Wrote ipc.html") || !strings.Contains(v.stderr.String(), "ipc.pb.gz\n") {
		t.Errorf("%q: %s", got, v.stderr.String())
	}
	again := command(t, "convert", recording)
	again.cmd.Dir = v.cmd.Dir
	again.start().ends(exitFailed).says("ipc.html", "--force")
}
