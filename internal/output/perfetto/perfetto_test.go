package perfetto

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// written returns the trace of a recording, decoded, what the recording shows at its end,
// and what was lost.
func written(t *testing.T, path string, o Options) (*decoded, *snapshot.Snapshot, []loss.Counter) {
	t.Helper()
	var b bytes.Buffer
	s, lost, err := Write(&b, path, o)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, b.Bytes()), s.View(state.Want{Live: true, Driver: true}).Snapshot(), lost
}

func whole(slices bool) Options { return Options{Play: replay.Options{At: replay.End}, Slices: slices} }

// The recordings of real programs, as traces: all tracks, and what counters come to. At
// the peak of a process of one GPU the counter has the peak, to the byte.
func TestReal(t *testing.T) {
	paths, err := filepath.Glob("../../../test/recordings/*.gmt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d recordings, %v", len(paths), err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".gmt")
		t.Run(name, func(t *testing.T) {
			d, snap, lost := written(t, path, whole(false))
			var b bytes.Buffer
			fmt.Fprintln(&b, strings.Join(d.clocks, "\n"))
			d.write(&b, d.begin)
			snapshottest.Golden(t, name+".txt", b.Bytes())
			for _, c := range lost {
				if c.Value != 0 {
					t.Errorf("%s = %d", c.Name, c.Value)
				}
			}
			for _, p := range snap.Processes {
				var gpus []*track
				for _, x := range d.tracks {
					if x.parent != 0 && d.byID[x.parent].pid == uint64(p.PID) && strings.HasSuffix(x.name, " allocations") {
						gpus = append(gpus, x)
					}
				}
				if len(gpus) == 1 && gpus[0].high() != p.Peak {
					t.Errorf("pid %d: %d at most, its peak is %d", p.PID, gpus[0].high(), p.Peak)
				}
				if p.Peak > 0 && len(gpus) == 0 {
					t.Errorf("pid %d has no counter of its allocations", p.PID)
				}
			}
		})
	}
}

// At any moment the counters have what the recording shows of it: all memory is the
// account's total, and tensors, by what they are for, and what is cached, its samples.
func TestMoments(t *testing.T) {
	for _, name := range []string{"profiler", "pools", "nccl", "fsdp"} {
		path := "../../../test/recordings/" + name + ".gmt"
		end, err := replay.Play(path, replay.Options{At: replay.End})
		if err != nil {
			t.Fatal(err)
		}
		whole := end.Time().Sub(end.Start())
		compared := map[string]int{}
		for part := 1; part <= 20; part++ {
			o := Options{Play: replay.Options{At: whole * time.Duration(part) / 20}}
			d, snap, _ := written(t, path, o)
			want := map[string]int64{}
			alive := map[int]bool{}
			for _, p := range snap.Processes {
				alive[p.PID] = !p.Exited
			}
			in := func(pid int, gpu, what string) string { return fmt.Sprintf("%d GPU %s %s", pid, gpu, what) }
			for i := range snap.Samples {
				switch x := &snap.Samples[i]; x.Kind {
				case "tensor":
					want[in(x.PID, x.GPU, "tensors")] += x.InuseBytes
					want[in(x.PID, x.GPU, "tensors: "+x.Category)] += x.InuseBytes
				case "cached":
					want[in(x.PID, x.GPU, state.LineCached)] += x.InuseBytes
				case "context", "code":
					want[in(x.PID, x.GPU, "["+x.Kind+"]")] += x.InuseBytes
				}
			}
			for _, a := range snap.Accounts {
				want[in(a.PID, a.GPU, "all memory")] = a.Total
			}
			for _, x := range d.tracks {
				if !x.counter || len(x.points) == 0 || x.parent == 0 {
					continue
				}
				pid := int(d.byID[x.parent].pid)
				key := fmt.Sprintf("%d %s", pid, x.name)
				if got, counted := want[key]; counted && alive[pid] {
					if got != x.last() {
						t.Errorf("%s at %v: %s is %d, the recording shows %d", name, o.Play.At, key, x.last(), got)
					}
					compared[x.name[len("GPU 0 "):]]++
					delete(want, key)
				}
			}
			for key, bytes := range want {
				var pid int
				fmt.Sscan(key, &pid)
				if bytes != 0 && alive[pid] {
					t.Errorf("%s at %v: %s is %d, and no counter has it", name, o.Play.At, key, bytes)
				}
			}
		}
		if compared["all memory"] < 5 || compared["[context]"] < 5 || name == "profiler" && (compared["tensors: activation"] < 5 || compared[state.LineCached] < 5) {
			t.Errorf("%s: compared %v", name, compared)
		}
	}
}

// The same recording gives the same bytes.
func TestDeterministic(t *testing.T) {
	for _, name := range []string{"profiler", "fsdp", "driver_api"} {
		var first []byte
		for range 3 {
			var b bytes.Buffer
			if _, _, err := Write(&b, "../../../test/recordings/"+name+".gmt", whole(true)); err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = b.Bytes()
			} else if !bytes.Equal(first, b.Bytes()) {
				t.Errorf("%s: %d bytes, then %d others", name, len(first), b.Len())
			}
		}
	}
}
