package replay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// recordings are those of real programs on NVIDIA H200s (make test-gpu makes them):
// what lies between the sources and the outputs is tested on real data without a GPU.
func recordings(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../../../test/recordings/*.gmt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d recordings, %v", len(paths), err)
	}
	named := map[string]string{}
	for _, path := range paths {
		named[strings.TrimSuffix(filepath.Base(path), ".gmt")] = path
	}
	return named
}

// At each reading the lines of a process's account add up to its total, which is what
// its samples hold, and none is negative. Of a process that is traced from its start
// the driver says the same, to the byte. The golden files have each figure, so that an
// event that is counted wrongly shows as memory for something else.
func TestReadings(t *testing.T) {
	compared := 0
	for name, path := range recordings(t) {
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
						compared += writeReading(t, &b, s, reading)
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
	if compared == 0 {
		t.Error("no reading could be compared with what was seen")
	}
}

// writeReading compares the profile with a reading, and writes what the account of
// each process is made of. It returns how many figures were compared.
func writeReading(t *testing.T, b *bytes.Buffer, s *state.State, r *record.Reading) (compared int) {
	t.Helper()
	snap := s.View(state.Want{Driver: true}).Snapshot()
	type holder struct {
		pid int
		gpu string
	}
	shown := map[holder]int64{}
	for i := range snap.Samples {
		if x := &snap.Samples[i]; snapshot.OnGPU(x.Kind) {
			shown[holder{x.PID, x.GPU}] += x.InuseBytes
		}
	}
	for _, a := range snap.Accounts {
		at := holder{a.PID, a.GPU}
		fmt.Fprintf(b, "%7.3f s  pid %d  GPU %s  total %d", snap.Meta.Duration.Seconds(), at.pid, at.gpu, a.Total)
		var sum int64
		for _, l := range a.Lines {
			fmt.Fprintf(b, "  %s %d", l.Name, l.Bytes)
			sum += l.Bytes
			if l.Bytes < 0 {
				t.Errorf("after %v: %s of %+v is %d", snap.Meta.Duration, l.Name, at, l.Bytes)
			}
		}
		fmt.Fprintln(b)
		if sum != a.Total || shown[at] != a.Total {
			t.Errorf("after %v: %+v has %d, its lines %d, its samples %d", snap.Meta.Duration, at, a.Total, sum, shown[at])
		}
		if !a.Compared {
			continue
		}
		compared++
		if a.Difference != 0 {
			t.Errorf("after %v: of %+v the driver says %d, of which %d were not seen", snap.Meta.Duration, at, a.Driver, a.Difference)
		}
	}
	return compared
}

// What the recordings show at their ends, as pages and as stacks.
func TestRealOutputs(t *testing.T) {
	for name, path := range recordings(t) {
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

// ranOut are the recordings of programs that ran out of memory.
var ranOut = map[string]bool{"out_of_memory": true, "torch_native": true, "torch_expandable": true}

// The recording of a program that ran out of memory has the report that was made of it, and one
// also if the trace made none: then the driver was not asked about the GPUs.
func TestRealOutOfMemory(t *testing.T) {
	for name, path := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			var all []*snapshot.OutOfMemory
			_, err := Play(path, Options{At: End, OutOfMemory: func(in *state.Incident) {
				all = append(all, in.OutOfMemory(state.Want{Driver: true}))
			}})
			if err != nil {
				t.Fatal(err)
			}
			if len(all) == 0 {
				if ranOut[name] {
					t.Error("no report")
				}
				return
			}
			var b bytes.Buffer
			for _, o := range all {
				if err := export.OutOfMemory(&b, o); err != nil {
					t.Fatal(err)
				}
				if len(o.GPUs) == 0 && !strings.HasPrefix(name, "torch_") || o.Snapshot == nil || len(o.Stack) < 5 {
					t.Errorf("%+v", o)
				}
			}
			snapshottest.Golden(t, name+".oom.txt", b.Bytes())
		})
	}
}

// The steps of a training: test/gpu/programs/torch_profiled.py calls its optimizer six
// times, for the last three within PyTorch's own profiler, which makes no tensor.
func TestRealSteps(t *testing.T) {
	s, err := Play("../../../test/recordings/profiler.gmt", Options{At: End})
	if err != nil {
		t.Fatal(err)
	}
	steps := s.View(state.Want{Steps: true}).Snapshot().Steps
	if len(steps) != 1 || steps[0].Seen != 5 || steps[0].Unsure != 0 || len(steps[0].Last) != 5 {
		t.Fatalf("%+v, want 5 steps", steps)
	}
	for i, one := range steps[0].Last[1:] {
		if one.Net() != 0 || one.AllocObjects != one.FreedObjects {
			t.Errorf("step %d: %+v, want nothing to grow after the first", i+2, one)
		}
	}
	// The first has what the optimizer keeps: two moments for each of the parameters.
	// The program calls its step from two lines: a stack of the first is not one of the other.
	x := &steps[0]
	if len(x.Grew) < 2 || x.Last[0].Net() != x.Grown || x.Gained < x.Grown || x.Over != 5 {
		t.Fatalf("it grew by %d: %+v", x.Grown, x.Grew)
	}
	for _, g := range x.Grew[:2] {
		if g.Sample.Operator != "aten::zeros_like" {
			t.Errorf("%d bytes grew in %s", g.Bytes, g.Sample.Operator)
		}
	}
}
