package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A report has a stretch of a recording, which diff has not: what came and went in it.
func TestReportFrom(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/profiler.gmt")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"--from 13.5s --to 14.5s", exitDone, "From 13.5s to 14.5s"},
		{"--from 13.5s --at 14.5s --by owner", exitDone, "From 13.5s to 14.5s"},
		{"--from 0s", exitDone, "From 0s to 22.219800266s"},
		{"--from 15s --to 14s", exitUsage, "--from 15s is after --to 14s"},
		{"--from 15s --at 2026-11-22T06:36:15Z", exitUsage, "--from 15s is after --to 2026-11-22T06:36:15Z"},
		{"--from 2026-11-22T06:36:25Z --at 14s", exitUsage, "--from 2026-11-22T06:36:25Z is after --to 14s"},
		{"--from end --at peak", exitUsage, "--from end is after --to peak"},
		{"--from 1h", exitFailed, "it ends at"},
		{"--from 13s --to 1h", exitFailed, "it ends at"},
		{"--from soon", exitUsage, "--from"},
		{"--from 14s --steps", exitDone, "python3 (429) on GPU 0: 2 steps"},
		{"--from 14s --to 15s --steps", exitDone, "Steps that began between 14s and 15s"},
		{"--from 14s --steps --csv", exitDone, "python3,429,0,4,"},
		{"--from 13s --by owner,freed-by", exitUsage, "leave out --from"},
	} {
		v := command(t, append([]string{"report", recording}, strings.Fields(c.args)...)...).start().ends(c.code)
		if got := v.stdout.String() + v.stderr.String(); !strings.Contains(got, c.says) {
			t.Errorf("%s: %s", c.args, got)
		}
	}
	for _, args := range []string{"", recording + " "} { // the second file may be left out
		v := command(t, strings.Fields("diff "+recording+" "+args+"--before 13.5s --after 14.5s")...).start().ends(exitDone)
		if got := v.stdout.String(); !strings.Contains(got, "414 MiB more memory on GPUs: 3.18 GiB, and 2.78 GiB before") {
			t.Errorf("diff of two moments: %s", got)
		}
	}
	v := command(t, "diff", recording, "--after", "14s").start().ends(exitDone) // without the other moment, after the first step
	if got := v.stdout.String(); !strings.Contains(got, "to 14s (--after).") || !strings.Contains(got, "profiler.gmt at 13.589197s") {
		t.Errorf("diff to a moment: %s", got)
	}
	for args, says := range map[string]string{
		"--before 15s --after 14s":                  "--before 15s is after --after 14s",
		"--before -1s --after peak":                 "--before -1s is after --after peak",
		"--before 15s --after 2026-11-22T06:36:15Z": "--before 15s is after --after 2026-11-22T06:36:15Z",
	} {
		v := command(t, strings.Fields("diff "+recording+" "+args)...).start().ends(exitUsage)
		v.says(says)
		if v.stdout.String() != "" {
			t.Errorf("%s: %s", args, v.stdout.String())
		}
	}
	out := command(t, "diff", recording).start().ends(exitDone).stdout.String()
	for _, want := range []string{"What grew from 13.589s (the end of training step 1, when what is made once is there) to 14.982s (the end of training step 5).", "\n  +12.0 MiB     0 B  12.0 MiB       +3  programs/torch_profiled.py:109 main\n", " --from 13.589197s --to 14.982146s\n", " --before 13.589197s --after 14.982146s --by line,category\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	profile := savedProfile(t)
	v = command(t, "report", profile, "--from", "1s").start().ends(exitUsage)
	v.says("one moment only")
}

// At any moment convert shows what report shows: the same target, and the same categories of
// tensors, which the whole recording tells.
func TestConvertShowsWhatReportShows(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/allocator/bert.gmt")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"1s", "peak-1s", "peak"} {
		held := func(figure string, args ...string) map[string]int64 {
			t.Helper()
			v := command(t, append(args, recording, "--at", at)...).start().ends(exitDone)
			all, err := csv.NewReader(strings.NewReader(v.stdout.String())).ReadAll()
			if err != nil {
				t.Fatal(err)
			}
			category, kind, bytes := slices.Index(all[0], "category"), slices.Index(all[0], "kind"), slices.Index(all[0], figure)
			sums := map[string]int64{}
			for _, row := range all[1:] {
				n, err := strconv.ParseInt(row[bytes], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				if row[kind] == "tensor" && n != 0 {
					sums[row[category]] += n
				}
			}
			return sums
		}
		report, converted := held("inuse_bytes", "report", "--by", "category,kind", "--csv"), held("size_bytes", "convert", "--format", "csv", "-q")
		if !maps.Equal(report, converted) || at != "1s" && len(report) == 0 {
			t.Errorf("at %s report shows %v, convert %v", at, report, converted)
		}
		for _, args := range [][]string{{"report"}, {"convert", "--format", "table"}} {
			v := command(t, append(args, recording, "--at", at)...).start().ends(exitDone)
			if !strings.HasPrefix(v.stdout.String(), "GPU memory of pid 662 (python3)\n") {
				t.Errorf("%s at %s: %.80s", args[0], at, v.stdout.String())
			}
		}
	}
}

// By default convert shows the peak, as report does, and says so; and the total that go tool pprof
// shows then is NVIDIA's figure.
func TestConvertShowsThePeak(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/profiler.gmt")
	if err != nil {
		t.Fatal(err)
	}
	v := command(t, "convert", recording, "x.pb.gz").start().ends(exitDone)
	if says := "\nAt the peak, 14.212s after the trace began: 3.18 GiB on GPUs.\n"; !strings.Contains(v.stderr.String(), says) {
		t.Errorf("it says %s", v.stderr.String())
	}
	dir := v.cmd.Dir
	v = command(t, "convert", recording, "--format", "json", "--at", "end", "-q").start().ends(exitDone) // NVIDIA was asked then, and the total is that of the peak
	var s struct {
		Accounts []struct {
			Total  int64 `json:"total_bytes"`
			Driver int64 `json:"driver_bytes"`
		}
	}
	if err := json.Unmarshal([]byte(v.stdout.String()), &s); err != nil || len(s.Accounts) != 1 {
		t.Fatal(err, s)
	}
	out, err := exec.Command("go", "tool", "pprof", "-top", "-unit=B", filepath.Join(dir, "x.pb.gz")).CombinedOutput()
	want := fmt.Sprintf("Total samples = %dB ", s.Accounts[0].Driver)
	if err != nil || !strings.Contains(string(out), want) || !strings.Contains(string(out), "Type: peak_space") || s.Accounts[0].Total != s.Accounts[0].Driver {
		t.Errorf("%v, want %q, %+v:\n%s", err, want, s.Accounts, out)
	}
	for at, says := range map[string]string{"end": "At the end, 22.22s after the trace began: 3.18 GiB on GPUs.", "13s": "13s after the trace began: 798 MiB on GPUs."} {
		v = command(t, "convert", recording, "--at", at, "--format", "table").start().ends(exitDone)
		if line := strings.Split(v.stdout.String(), "\n")[1]; line != says {
			t.Errorf("--at %s: %s", at, line)
		}
	}
	v = command(t, "top", recording, "--once").start().ends(exitDone)
	if says := "GPU memory of pid 429 (python3), at the peak, 14.212s after the trace began\n"; !strings.HasPrefix(v.stdout.String(), says) {
		t.Errorf("top: %.200s", v.stdout.String())
	}
}

// A recording becomes a page, whose name may follow the recording's. (What is on it:
// package timeline.)
func TestConvertToTimeline(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/profiler.gmt")
	if err != nil {
		t.Fatal(err)
	}
	var first []byte
	for _, args := range []string{"x.html", "-o x.html", "--format timeline -o x.html"} {
		v := command(t, append([]string{"convert", recording}, strings.Fields(args)...)...).start().ends(exitDone)
		if !strings.Contains(v.stderr.String(), "in a browser: x.html") {
			t.Error(v.stderr.String())
		}
		b := read(t, filepath.Join(v.cmd.Dir, "x.html"))
		if first == nil {
			first = b
		}
		if !bytes.HasPrefix(b, []byte("<!doctype html>")) || !bytes.Equal(b, first) {
			t.Errorf("%s: %d bytes, at first %d", args, len(b), len(first))
		}
	}
	for args, says := range map[string]string{
		"convert " + recording + " x.html -o y.html": "once",
		"convert " + recording + " x.html y.html":    "at most one output",
		"-p 1 -o x.html": "--record",
	} {
		v := command(t, strings.Fields(args)...).start().ends(exitUsage)
		if v.says(says); len(names(t, v.cmd.Dir)) != 0 {
			t.Errorf("%s left %q", args, names(t, v.cmd.Dir))
		}
	}
}

// A profile becomes a page too, of its one moment.
func TestConvertProfile(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/profiler.gmt")
	if err != nil {
		t.Fatal(err)
	}
	v := command(t, "convert", recording, "-o", "x.pb.gz", "-q").start().ends(exitDone)
	profile := filepath.Join(v.cmd.Dir, "x.pb.gz")
	v = command(t, "convert", profile, "x.html").start().ends(exitDone)
	if !strings.Contains(v.stderr.String(), "in a browser: x.html") {
		t.Error(v.stderr.String())
	}
	if b := read(t, filepath.Join(v.cmd.Dir, "x.html")); !bytes.HasPrefix(b, []byte("<!doctype html>")) {
		t.Errorf("it begins with %q", b[:20])
	}
	command(t, "convert", profile, "x.html", "--at", "1s").start().ends(exitUsage).says("one moment only")
	v = command(t, "convert", profile, "x.txt").start().ends(exitFailed)
	v.says("not a recording")
	foreign := filepath.Join(v.cmd.Dir, "foreign.pb.gz")
	if err := os.WriteFile(foreign, []byte("\x1f\x8bxx"), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "convert", foreign, "x.html").start().ends(exitFailed).says("foreign.pb.gz: not a profile that gpumemtrace wrote")
}

// A recording whose disk was full from the beginning has its header alone. Whatever
// reads it says that it was cut short, and not that it is damaged.
func TestRecordingOfNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.gmt")
	whole := read(t, "../../test/recordings/nccl.gmt")
	if err := os.WriteFile(path, whole[:32], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"report", path}, {"convert", path}, {"convert", path, "x.html"},
		{"diff", path, "--before", "1s"}, {"top", path, "--once"},
	} {
		v := command(t, args...).start().ends(exitFailed)
		v.says(path, "the recording was cut short", "disk was full")
		if strings.Contains(v.stderr.String(), "damaged") {
			t.Errorf("%q says %q", args, v.stderr.String())
		}
		if got := names(t, v.cmd.Dir); len(got) != 0 {
			t.Errorf("%q left %q", args, got)
		}
	}
}

// Two recordings are compared at their peaks, by any column but those of single allocations.
func TestDiffOfRuns(t *testing.T) {
	recordings, err := filepath.Abs("../../test/recordings")
	if err != nil {
		t.Fatal(err)
	}
	a, b := recordings+"/allocator/peft_8.gmt", recordings+"/allocator/peft_16.gmt"
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{a + " " + b, exitDone, "7.27 GiB more memory on GPUs: 15.6 GiB, and 8.37 GiB before"},
		{a + " " + b + " --before end", exitDone, "peft_8.gmt at end: 8.37 GiB"},
		{a + " " + b + " --by category", exitDone, "activation"},
		{a + " " + b + " --by size", exitUsage, "diff cannot group by size: use gpumemtrace report --by"},
		{a + " " + b + " --by colour", exitUsage, "cannot group by"},
		{a + " " + b + " " + a, exitUsage, "--ranks takes several"},
		{"--ranks " + a + " " + b, exitDone, "2 ranks hold 8.37 GiB to 15.6 GiB on GPUs at their peaks: peft_8 the least, peft_16 the most."},
		{"--ranks " + recordings + "/fsdp.gmt --by category", exitDone, "2 ranks hold"},
		{"--ranks " + a, exitFailed, "one process that holds memory on a GPU"},
		{"--ranks", exitUsage, "--ranks needs a recording or profile of each rank"},
		{"--ranks --at -2s " + recordings + "/fsdp.gmt", exitDone, "on GPUs at -2s: "},
		{"--ranks --before end --after end " + a + " " + b, exitUsage, "--ranks needs a recording or profile of each rank"},
	} {
		v := command(t, append([]string{"diff"}, strings.Fields(c.args)...)...).start().ends(c.code)
		if got := v.stdout.String() + v.stderr.String(); !strings.Contains(got, c.says) {
			t.Errorf("%s: want %q in %s", c.args, c.says, got)
		}
	}
}

// A request that failed on a GPU for fragmentation alone: the report, and the page about it, say
// which setting would have served it. Under that setting the program was served there, and
// reserved 1,866,465,280 bytes.
func TestWhatWouldHaveHelped(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/allocator/fragmented.gmt")
	if err != nil {
		t.Fatal(err)
	}
	const answer = "With expandable_segments:True the request of 500 MiB that failed would have been served, and the peak would have been 1.74 GiB instead of 2.34 GiB."
	words := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	if v := command(t, "report", recording).start().ends(exitDone); !strings.Contains(words(v.stdout.String()), answer) {
		t.Errorf("report: %s", v.stdout.String())
	}
	v := command(t, "convert", recording, "--oom-dir", "reports", "-o", "x.pb.gz").start().ends(exitDone)
	pages, err := filepath.Glob(filepath.Join(v.cmd.Dir, "reports", "*.txt"))
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	page, err := os.ReadFile(pages[0])
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(words(string(page)), answer) {
		t.Errorf("the page: %s", page)
	}
	if v := command(t, "whatif", recording, "--json").start().ends(exitDone); !strings.Contains(v.stdout.String(), `"peak_reserved_bytes": 1866465280`) {
		t.Errorf("whatif: %s", v.stdout.String())
	}
	for _, args := range [][]string{{"whatif", recording}, {"diff", filepath.Join(filepath.Dir(recording), "bert.gmt"), recording}} {
		v := command(t, append(args, "-o", "page.html")...).start().ends(exitDone)
		title := map[bool]string{true: "<title>" + filepath.Base(recording) + ", compared with bert.gmt"}[args[0] == "diff"] // "" for none
		if page, err := os.ReadFile(filepath.Join(v.cmd.Dir, "page.html")); err != nil || !strings.Contains(string(page), "<!doctype html>") || !strings.Contains(string(page), title) || !strings.Contains(v.stderr.String(), "page.html") {
			t.Errorf("%s: %d bytes, %v: %s", args[0], len(page), err, v.stderr.String())
		}
		command(t, append(args, "-o", "page.csv")...).start().ends(exitUsage)
	}
	command(t, "diff", recording, recording, "-o", "page.html").start().ends(exitUsage)
	// Where nothing would have helped, nothing is said.
	other := filepath.Join(filepath.Dir(filepath.Dir(recording)), "profiler.gmt")
	if v := command(t, "report", other).start().ends(exitDone); strings.Contains(v.stdout.String(), "expandable_segments") {
		t.Errorf("report: %s", v.stdout.String())
	}
}

// A file for memory_viz of a recording without tensors says that it has none.
func TestViewerWithoutTensors(t *testing.T) {
	const says = "To see PyTorch's tensors in that, trace with --tensors."
	for name, without := range map[string]bool{"jax": true, "profiler": false} {
		recording, err := filepath.Abs("../../test/recordings/" + name + ".gmt")
		if err != nil {
			t.Fatal(err)
		}
		v := command(t, "convert", recording, "run.pickle").start().ends(exitDone)
		if got := strings.Contains(v.stderr.String(), says); got != without {
			t.Errorf("%s: said %v, want %v", name, got, without)
		}
	}
}
