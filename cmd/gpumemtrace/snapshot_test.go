package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
	"github.com/gpumemtrace/gpumemtrace/internal/whatif"
)

// snapshotFolder has snapshots of PyTorch's own, of real runs.
const snapshotFolder = corpusFolder + "/snapshots"

// unzipped writes a snapshot to a new folder, and returns its path.
func unzipped(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".pickle")
	if err := os.WriteFile(path, recordtest.Snapshot(t, snapshotFolder, name), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func predictions(t *testing.T, file string) (out []whatif.Prediction) {
	t.Helper()
	text, err := exec.Command(binary, "whatif", file, "--json").Output()
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var all struct {
		Predictions []whatif.Prediction `json:"predictions"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all.Predictions
}

// TestSnapshotWhatif checks that each tensor of a real snapshot comes to lie where PyTorch placed it, and that
// a file whose figures are made up gives no prediction. Most histories begin in the middle. Those of private
// pools do not say what was of pools that have ended: of "private_pools" it is found so well that the peak under
// expandable segments is that of the recording of the same run.
func TestSnapshotWhatif(t *testing.T) {
	for _, c := range []struct {
		name           string
		tensors        int
		peak           uint64
		streams, pools int
		expandable     uint64
	}{
		{"forward", 2058, 19667091456, 1, 0, 19528679424},
		{"forward_mixed", 2703, 24245174272, 1, 0, 24079499264},
		{"private_pools", 227, 656408576, 3, 3, 723517440},
		{"private_pools_late", 224, 935329792, 5, 2, 918552576},
		{"compiled", 341, 121634816, 1, 0, 130023424},
	} {
		p := predictions(t, unzipped(t, c.name))
		if len(p) != 1 || p[0].Tensors != c.tensors || p[0].Same != c.tensors || p[0].Reason != "" || p[0].Rows[0].Peak != c.peak ||
			p[0].Streams != c.streams || p[0].Pools != c.pools || p[0].Rows[1].Setting != "expandable_segments:True" || p[0].Rows[1].Peak != c.expandable {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
	if p := predictions(t, unzipped(t, "small")); len(p) != 1 || p[0].Reason == "" {
		t.Errorf("%+v", p)
	}
}

// TestSnapshotGrowth checks that what grew is shown of each snapshot, also where it grew within the last microsecond.
func TestSnapshotGrowth(t *testing.T) {
	for _, name := range []string{"forward", "forward_mixed", "private_pools", "private_pools_late", "compiled", "small"} {
		if out, err := exec.Command(binary, "diff", unzipped(t, name)).CombinedOutput(); err != nil || !bytes.HasPrefix(out, []byte("What grew from ")) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// TestSnapshotCompiled checks what regions of torch.compile hold at the end, as the blocks of the file say.
func TestSnapshotCompiled(t *testing.T) {
	out, err := exec.Command(binary, "report", unzipped(t, "compiled"), "--by", "kind,compiled", "--at", "end", "--json").Output()
	var rows []struct {
		Kind, Compiled string
		Bytes          int64 `json:"inuse_bytes"`
	}
	if err == nil {
		err = json.Unmarshal(out, &rows)
	}
	got := map[string]int64{}
	for _, x := range rows {
		if x.Kind == "tensor" && x.Bytes != 0 {
			got[x.Compiled] += x.Bytes
		}
	}
	if want := map[string]int64{"Torch-Compiled Region: 0/0": 40 << 20, "Torch-Compiled Region: 1/0": 2 << 20}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: %v, want %v", err, got, want)
	}
}

// TestSnapshotThereAndBack checks that a recording that was converted to a pickle gives the same
// predictions as the recording.
func TestSnapshotThereAndBack(t *testing.T) {
	for _, name := range []string{"profiler", "allocator/streams", "allocator/bert_expandable", "allocator/fragmented"} {
		recording, made := filepath.Join(corpusFolder, name+".gmt"), filepath.Join(t.TempDir(), "made.pickle")
		if out, err := exec.Command(binary, "convert", recording, made, "--trace-max", "5000000").CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		want, got := predictions(t, recording), predictions(t, made)
		for i := range want {
			want[i].GPU = "" // which the pickle does not have as NVML names it
		}
		for i := range got {
			got[i].GPU = ""
		}
		a, _ := json.Marshal(want)
		b, _ := json.Marshal(got)
		if len(want) == 0 || !bytes.Equal(a, b) {
			t.Errorf("%s: converted and read again:\n%s\nwant\n%s", name, b, a)
		}
	}
}

// TestSnapshotFit checks that two recordings that were converted to pickles give the same fit, but for what the
// process holds beside PyTorch's memory, which a pickle does not have.
func TestSnapshotFit(t *testing.T) {
	fit := func(args ...string) map[string]any {
		out, err := exec.Command(binary, append([]string{"fit", "--to", "32,64", "--json"}, args...)...).Output()
		var all map[string]any
		if err != nil || json.Unmarshal(out, &all) != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
		delete(all, "gpu") // as NVML names it
		delete(all, "text")
		return all
	}
	var recordings, made []string
	for _, n := range []string{"8", "16"} {
		recordings = append(recordings, filepath.Join(corpusFolder, "allocator/peft_"+n+".gmt"))
		made = append(made, filepath.Join(t.TempDir(), "made_"+n+".pickle"))
		if out, err := exec.Command(binary, "convert", recordings[len(made)-1], made[len(made)-1], "--trace-max", "5000000").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	want := fit(recordings...)
	beside, _ := want["beside_bytes"].(float64)
	if got := fit(append(made, "--beside", fmt.Sprintf("%d", int64(beside)))...); beside == 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("converted and read again:\n%v\nwant\n%v", got, want)
	}
}

// TestSnapshotLacks checks that what a snapshot does not have is refused, and says why.
func TestSnapshotLacks(t *testing.T) {
	file := unzipped(t, "small")
	for args, want := range map[string]string{
		"report FILE --by line,user":                        "does not say whose process",
		"report FILE --by cause":                            "for which calls the driver",
		"report FILE --by holder":                           "which objects hold memory",
		"report OTHER --by annotation":                      "need a snapshot of PyTorch",
		"report FILE --by pattern":                          "needs a --pattern",
		"report FILE --by line --pattern a=b":               "needs --by pattern",
		"report FILE --by pattern --pattern a=(":            "missing closing )",
		"report FILE --by pattern --pattern a":              "NAME=EXPRESSION",
		"report FILE --windows":                             "no windows",
		"diff FILE FILE --by user":                          "does not say whose process",
		"fit 1=FILE 2=FILE --to 3":                          "before the recording began",
		"fit 1=FILE 2=FILE --to 3 --memory 1GiB":            "--memory needs --beside",
		"fit 1=FILE 2=FILE --to 3 --memory 1GiB --beside x": "--beside",
	} {
		out, err := exec.Command(binary, strings.Fields(strings.NewReplacer("FILE", file, "OTHER", filepath.Join(corpusFolder, "ipc.gmt")).Replace(args))...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, want %q:\n%s", args, err, want, out)
		}
	}
	// A pickle and JSON of another sort.
	for name, data := range map[string]string{"x.pickle": "\x80\x04]."} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(binary, "report", path).CombinedOutput(); err == nil || !strings.Contains(string(out), "a pickle") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
