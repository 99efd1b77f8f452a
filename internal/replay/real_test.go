package replay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/export"
	"github.com/gpumemtrace/gpumemtrace/internal/record"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshottest"
	"github.com/gpumemtrace/gpumemtrace/internal/state"
)

// recordings are those of real programs on NVIDIA H200s (make test-gpu makes
// them; accelerate is of "accelerate test", Hugging Face's): what lies between the sources and the outputs is tested on real data
// without a GPU.
func recordings(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.gmt")
	if err != nil || len(paths) < 6 {
		t.Fatalf("%d recordings, %v", len(paths), err)
	}
	return paths
}

// At each reading the lines of a process's account add up to the driver's
// figure, which is what its samples hold, and none is negative. What no traced
// call asked for is the driver's own: the golden files have each figure, so that
// an event that is counted wrongly shows as memory that the driver took or gave
// back.
func TestReadings(t *testing.T) {
	for _, path := range recordings(t) {
		name := strings.TrimSuffix(filepath.Base(path), ".gmt")
		t.Run(name, func(t *testing.T) {
			r, err := record.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			s := state.New()
			var reading *record.Reading
			var b bytes.Buffer
			for {
				rec, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				s.Apply(rec)
				switch rec := rec.(type) {
				case *event.Event:
					reading = nil // it is of an earlier state
				case *record.Reading:
					reading = rec
				case *record.Moment:
					if reading != nil && rec.Drained {
						writeReading(t, &b, s, reading)
						reading = nil
					}
				}
			}
			if notes := r.Notes(); len(notes) > 0 {
				t.Errorf("the recording is not whole: %q", notes)
			}
			snapshottest.Golden(t, name+".readings", b.Bytes())
		})
	}
}

// writeReading compares the profile with a reading, and writes what the account
// of each process is made of.
func writeReading(t *testing.T, b *bytes.Buffer, s *state.State, r *record.Reading) {
	t.Helper()
	snap := s.View(state.Want{Driver: true}).Snapshot()
	type holder struct {
		pid int
		gpu string
	}
	shown := map[holder]int64{}
	for _, x := range snap.Samples {
		switch x.Kind {
		case "device", "array", "async", "vmm", "driver":
			shown[holder{x.PID, x.GPU}] += x.InuseBytes
		}
	}
	for _, u := range r.Uses {
		at := holder{int(u.Process.PID), r.Devices[u.Device].Label}
		if !u.Known {
			continue
		}
		fmt.Fprintf(b, "%7.3f s  pid %d  GPU %s  driver %d", snap.Meta.Duration.Seconds(), at.pid, at.gpu, u.Bytes)
		if shown[at] != u.Bytes {
			t.Errorf("after %v: %+v holds %d, the driver says %d", snap.Meta.Duration, at, shown[at], u.Bytes)
		}
		for _, a := range snap.Accounts {
			if a.PID != at.pid || a.GPU != at.gpu {
				continue
			}
			var sum int64
			for _, l := range a.Lines {
				fmt.Fprintf(b, "  %s %d", l.Name, l.Bytes)
				sum += l.Bytes
				if l.Bytes < 0 {
					t.Errorf("after %v: %s of %+v is %d", snap.Meta.Duration, l.Name, at, l.Bytes)
				}
			}
			if sum != u.Bytes {
				t.Errorf("after %v: the lines of %+v add up to %d, the driver says %d", snap.Meta.Duration, at, sum, u.Bytes)
			}
		}
		fmt.Fprintln(b)
	}
}

// What the recordings show at their ends, as pages and as stacks.
func TestRealOutputs(t *testing.T) {
	for _, path := range recordings(t) {
		name := strings.TrimSuffix(filepath.Base(path), ".gmt")
		t.Run(name, func(t *testing.T) {
			s, err := Play(path, Options{At: End})
			if err != nil {
				t.Fatal(err)
			}
			snap := s.View(state.Want{Driver: true}).Snapshot()
			for format, golden := range map[string]string{"table": ".txt", "folded": ".folded"} {
				f, err := export.Builtin().ByName(format)
				if err != nil {
					t.Fatal(err)
				}
				var b bytes.Buffer
				if err := f.Write(&b, snap, export.Options{}); err != nil {
					t.Fatal(err)
				}
				snapshottest.Golden(t, name+golden, b.Bytes())
			}
		})
	}
}

// The recording of a program that ran out of memory has the report that was
// made of it.
func TestRealOutOfMemory(t *testing.T) {
	var all []*snapshot.OutOfMemory
	_, err := Play("testdata/out_of_memory.gmt", Options{At: End, OutOfMemory: func(in *state.Incident) {
		all = append(all, in.OutOfMemory(state.Want{Driver: true}))
	}})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, o := range all {
		if err := export.OutOfMemory(&b, o); err != nil {
			t.Fatal(err)
		}
		if len(o.GPUs) == 0 || o.Snapshot == nil || len(o.Stack) < 5 {
			t.Errorf("%+v", o)
		}
	}
	snapshottest.Golden(t, "out_of_memory.oom.txt", b.Bytes())
}
