package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// --by groups a profile, several of it together; without it the page has none of that.
func TestReportBy(t *testing.T) {
	path := savedProfile(t)
	for _, c := range []struct {
		args []string
		says string // a line of the page
	}{
		{[]string{"--by", "cause"}, "   184 MiB   22.8%        9  ~20.5 MiB   224 MiB  allocations      cuMemAlloc_v2\n"},
		{[]string{"--by", "owner,kind"}, "   120 MiB   14.9%        6   20.0 MiB   160 MiB  pytorch  device\n"},
		{[]string{"--by", "owner", "--by", "kind", "-n", "-1"}, "   120 MiB   14.9%        6   20.0 MiB   160 MiB  pytorch  device\n"},
		{[]string{"--by", "function"}, "   184 MiB   22.8%      184 MiB   22.8%        9  ~20.5 MiB   224 MiB  cuMemAlloc_v2\n"},
		{[]string{"--by", "owner", "--csv"}, "process,pid,gpu,class,cause,kind,api,runtime,owner,"},
		{[]string{"--by", "owner", "--turnover"}, "ALLOCATED  OF ALL  CALLS"},
		{nil, "The lines that hold most: "},
	} {
		v := command(t, append([]string{"report", path}, c.args...)...).start().ends(exitDone)
		if !strings.Contains(v.stdout.String(), c.says) {
			t.Errorf("%q: it printed\n%s, want %q", c.args, v.stdout.String(), c.says)
		}
	}
}

// Rows need something to be by.
func TestReportCSVByNothing(t *testing.T) {
	for flag, says := range map[string]string{"--csv": "--csv writes the rows of --by", "--turnover": "--turnover needs --by"} {
		v := command(t, "report", savedProfile(t), flag).start().ends(exitUsage)
		if !strings.Contains(v.stderr.String(), says) {
			t.Errorf("it said\n%s", v.stderr.String())
		}
	}
}

// What a profile does not have is not made up of it.
func TestReportOfProfileLacks(t *testing.T) {
	for args, says := range map[string]string{
		"--by owner,size":    "--by owner,size needs a recording",
		"--steps":            "--steps needs a recording",
		"--steps --by owner": "give only one of --steps, --windows, --segments, --oom, --leaks and --by",
		"--segments":         "has no segments of a caching allocator",
	} {
		v := command(t, append([]string{"report", savedProfile(t)}, strings.Fields(args)...)...).start().ends(exitUsage)
		if !strings.Contains(v.stderr.String(), says) {
			t.Errorf("%s: it said\n%s", args, v.stderr.String())
		}
	}
}

// A recording is asked for what only it has.
func TestReportOfRecording(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/torch_native.gmt")
	if err != nil {
		t.Fatal(err)
	}
	for args, says := range map[string]string{
		"--by size":      "64.0 MiB to 128 MiB\n",
		"--steps":        "No steps are known, because this recording has no tensors",
		"--steps --csv":  "process,pid,gpu,step,begin",
		"--by gpu --csv": ",total_net_bytes,total_net_objects\n",
	} {
		v := command(t, append([]string{"report", recording}, strings.Fields(args)...)...).start().ends(exitDone)
		if !strings.Contains(v.stdout.String(), says) {
			t.Errorf("%s: it printed\n%s", args, v.stdout.String())
		}
	}
}

// With --free-stacks a recording says where tensors were freed; without, it is said
// why it does not.
func TestReportFreedBy(t *testing.T) {
	for _, frees := range []bool{true, false} {
		p := workload(t, testcuda.Workload, testcuda.Options{}, "init", "tensor; untensor; empty_cache")
		args := []string{"-p", pid(p), "--tensors", "--record", "x.gmt", "-o", "x.pb.gz"}
		if frees {
			args = append(args, "--free-stacks")
		}
		v := tracing(t, args...)
		script(t, p, "repeat 3 via lr tensor 1m; via l untensor; via l untensor")
		v.signal(syscall.SIGINT)
		v.ends(exitDone)
		report := []string{"report", filepath.Join(v.cmd.Dir, "x.gmt"), "--by", "freed-by"}
		if !frees {
			command(t, report...).start().ends(exitUsage).says("--free-stacks")
			continue
		}
		page := command(t, report...).start().ends(exitDone).stdout.String()
		for _, row := range []string{"3.00 MiB allocated, 2.00 MiB freed", "2.00 MiB   66.7%      2  2.00 MiB      2       0 B  ", "1.00 MiB   33.3%      1       0 B      0  1.00 MiB  [in use]\n"} {
			if !strings.Contains(page, row) {
				t.Errorf("no %q in\n%s", row, page)
			}
		}
	}
}

// Shapes are of the last reading of the heap before the moment, or of the first one after it.
func TestReportByShape(t *testing.T) {
	for args, want := range map[string]string{
		"":          "As the heap of python3 (470) was read, 20.543s after",
		" --at end": "        8  8.00 MiB   22.1%  (1024, 256)  float32  Tensor",
		" --at 1s":  "        4  1.00 MiB    2.8%  (256, 256)   float32  Parameter",
	} {
		v := command(t, strings.Fields("report "+mustAbs(t, recordings+"holders.gmt")+" --by shape"+args)...).start().ends(exitDone)
		if out := v.stdout.String(); !strings.Contains(out, strings.TrimSpace(want)) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	command(t, "report", mustAbs(t, recordings+"profiler.gmt"), "--by", "shape").start().ends(exitUsage).says("Trace with --holders 30s --record RUN")
}
