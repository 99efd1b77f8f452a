package export

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// recorded returns the end of a recording of a real program.
func recorded(t *testing.T, name string) *snapshot.Snapshot {
	t.Helper()
	played, err := replay.Play("../../../test/recordings/"+name+".gmt", replay.Options{At: replay.End})
	if err != nil {
		t.Fatal(err)
	}
	return played.View(state.Want{Driver: true}).Snapshot()
}

// The first row by line that names a source file is the program's own line that holds most. The accelerate command runs
// what is in a package alone.
func TestReportByLine(t *testing.T) {
	for recording, want := range map[string]string{
		"accelerate":                   "scripts/test_script.py:754 test_split_between_processes_tensor",
		"allocator/bert":               "train/prog.py:29 bert",
		"allocator/bert_expandable":    "train/prog.py:29 bert",
		"allocator/peft_8":             "train/prog.py:19 gpt2",
		"allocator/peft_16":            "train/prog.py:19 gpt2",
		"allocator/record_stream":      "train/prog.py:59 record",
		"allocator/streams_expandable": "train/prog.py:52 streams",
		"fsdp":                         "programs/fsdp.py:22 main",
		"jax":                          "programs/jax_train.py:21 main",
		"nccl":                         "programs/torch_processes.py:14 worker",
		"profiler":                     "programs/torch_profiled.py:17 gpt2",
		"torch_expandable":             "programs/torch_train.py:63 main",
		"torch_native":                 "programs/torch_train.py:63 main",
	} {
		by, samples := by(t, "line").samples(recorded(t, recording))
		sections := by.sections(samples, holdings.shown)
		groups := by.groups(sections[by.ordered(sections, &holdings)[0]].samples)
		for _, key := range rowsOf(groups, &holdings) {
			if got := groups[key].values[0]; !strings.HasPrefix(got, "[") {
				if got != want {
					t.Errorf("%s: the first row is %q, want %q", recording, got, want)
				}
				break
			}
		}
	}
}

// Every row of every grouping has a name.
func TestNoBlankRows(t *testing.T) {
	for _, recording := range []string{"profiler", "jax", "fsdp", "pools"} {
		s := recorded(t, recording)
		for _, name := range ByNames() {
			by, samples := by(t, name).samples(s)
			for _, g := range by.groups(samples) {
				if slices.Contains([]string{"", "-"}, g.values[by.index(name)]) {
					t.Errorf("%s by %s: a row is %q", recording, name, g.values)
				}
			}
		}
	}
}

// A report of a recording that was cut off names nobody whose names were lost with its end.
func TestReportOfCutRecording(t *testing.T) {
	data, err := os.ReadFile("../../../test/recordings/nccl.gmt")
	if err != nil {
		t.Fatal(err)
	}
	data = data[:len(data)*7/10]
	r, err := record.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	played, err := replay.PlayReader(r, replay.Options{At: replay.End})
	if err != nil {
		t.Fatal(err)
	}
	s := played.View(state.Want{Driver: true}).Snapshot()
	for o, want := range map[string]string{"": "\n  not named yet 2.82 GiB; CUDA context 1.01 GiB: 3.83 GiB\n", "owner": "By owner: [not named yet] (2.82 GiB)", "line": "  [not named yet]\n"} {
		var options Options
		if o != "" {
			options.By = by(t, o)
		}
		if got := report(t, s, options); !strings.Contains(got, want) || strings.Contains(got, "the program itself") || strings.Contains(got, "application") {
			t.Errorf("by %q:\n%s", o, got)
		}
	}
}

// A report without tensors says how to get them.
func TestReportWithoutTensors(t *testing.T) {
	for recording, want := range map[string]bool{"torch_native": true, "profiler": false, "jax": false} {
		for _, o := range []Options{{}, {By: by(t, "module")}} {
			if got := strings.Contains(report(t, recorded(t, recording), o), "trace with --tensors"); got != want {
				t.Errorf("%s: the hint is there: %t, want %t", recording, got, want)
			}
		}
	}
}
