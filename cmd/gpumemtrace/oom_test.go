package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/browsertest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// fragments leaves 34 MiB and 14 MiB free in two segments, so that a tensor of 44 MiB fails on a
// GPU of 110 MiB, which expandable segments would serve.
const fragments = "tensor 60m; tensor 40m; untensor; untensor; tensor 26m; tensor 26m; expect 2 tensor 44m"

const wouldHaveHelped = "With expandable_segments:True the request of 44.0 MiB that failed would have been served, at the same peak of 100 MiB."

// fragmented is a program that runs what comes before the trace, and loads what an import of
// PyTorch does.
func fragmented(t *testing.T, before string) *testcuda.Process {
	t.Helper()
	return workload(t, testcuda.Workload, testcuda.Options{Env: []string{fmt.Sprint("TESTCUDA_TOTAL=", 110<<20)}}, "init", "tensor; untensor; empty_cache"+before)
}

// oomPage returns the words of the only page in a directory, "" for none.
func oomPage(t *testing.T, dir string) string {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(pages) > 1 {
		t.Fatalf("%q, %v", pages, err)
	}
	if len(pages) == 0 {
		return ""
	}
	return strings.Join(strings.Fields(string(read(t, pages[0]))), " ")
}

// A page that is written while a trace goes on says what would have helped as soon as the
// recording shows it, and until then the command that does: of a trace that goes on, of one that
// ends first, and of an agent.
func TestOutOfMemoryExplainedLive(t *testing.T) {
	const command = " --oom says whether one would have served the request."
	for _, name := range []string{"trace", "ended", "agent"} {
		t.Run(name, func(t *testing.T) {
			p := fragmented(t, "")
			dir := filepath.Join(t.TempDir(), "oom")
			var v *invocation
			if name == "agent" {
				records := filepath.Join(t.TempDir(), "records")
				v, _ = agentRuns(t, nil, "--tensors", "--record", records, "--oom-dir", dir)
			} else {
				v = tracing(t, "-p", pid(p), "--tensors", "--record", "run.gmt", "-o", "x.pb.gz", "--oom-dir", dir)
			}
			script(t, p, fragments)
			v.until("there is a page", func() bool { return oomPage(t, dir) != "" })
			page := oomPage(t, dir)
			if !strings.Contains(page, command) && !strings.Contains(page, wouldHaveHelped) {
				t.Errorf("the first page: %s", page)
			}
			if name != "ended" {
				v.until("it says what would have helped", func() bool { return strings.Contains(oomPage(t, dir), wouldHaveHelped) })
			}
			v.signal(syscall.SIGTERM)
			v.ends(exitDone)
			page = oomPage(t, dir)
			if !strings.Contains(page, wouldHaveHelped) || strings.Contains(page, command) {
				t.Errorf("at the end: %s", page)
			}
			if !strings.Contains(v.stderr.String(), wouldHaveHelped) {
				t.Errorf("it says %s", v.stderr.String())
			}
			if name == "agent" {
				return
			}
			again := t.TempDir()
			converted(t, filepath.Join(v.cmd.Dir, "run.gmt"), "y.pb.gz", "--oom-dir", again)
			if got := oomPage(t, again); got != page {
				t.Errorf("convert writes\n%s\nand the trace\n%s", got, page)
			}
		})
	}
}

// A recording that lacks tensors predicts nothing. Its page says so and keeps the rule; without a
// recording it names no command.
func TestOutOfMemoryNotExplained(t *testing.T) {
	for _, args := range []string{"--tensors --record run.gmt", "--tensors", "--record run.gmt"} {
		t.Run(args, func(t *testing.T) {
			p := fragmented(t, "; tensor 4k; tensor 8k")
			v := tracing(t, append(strings.Fields(args), "-p", pid(p), "-o", "x.pb.gz", "--oom-dir", "oom")...)
			dir := filepath.Join(v.cmd.Dir, "oom")
			script(t, p, fragments)
			v.until("there is a page", func() bool { return oomPage(t, dir) != "" })
			v.signal(syscall.SIGTERM)
			v.ends(exitDone)
			page := oomPage(t, dir)
			says := strings.Contains(page, "Other settings of PyTorch's allocator: no prediction: there were tensors before the recording began.")
			if says != (args == "--tensors --record run.gmt") || strings.Contains(page, " --oom says") || strings.Contains(page, "Replayed with other settings") {
				t.Errorf("%s", page)
			}
			if _, err := os.Stat(filepath.Join(v.cmd.Dir, "run.gmt")); err == nil && says {
				r := command(t, "report", filepath.Join(v.cmd.Dir, "run.gmt"), "--oom").start().ends(exitDone)
				if !strings.Contains(r.stdout.String(), "no prediction: there were tensors") {
					t.Errorf("report --oom: %s", r.stdout.String())
				}
			}
		})
	}
}

// The page of a recording begins with what report --oom says of its failures.
func TestPageOfFailures(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/allocator/fragmented.gmt")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"convert"}, {"whatif"}} {
		v := command(t, append(args, recording, "-o", "page.html")...).start().ends(exitDone)
		b := browsertest.Open(t, "file://"+filepath.Join(v.cmd.Dir, "page.html"), 1300, 900)
		b.Until("document.documentElement.dataset.ready")
		b.Wants(args[0], b.Text("refused"), "python3 (467) asked for 500 MiB at programs/torch_fragmented.py:17 empty", "What would help: another setting of PyTorch's allocator. With expandable_segments:True the request of 500 MiB that failed would have been served")
		b.Quiet()
	}
}

// The page of a recording in which nothing failed begins with what is wrong in it.
func TestPageOfFindings(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/allocator/pools.gmt")
	if err != nil {
		t.Fatal(err)
	}
	v := command(t, "convert", recording, "-o", "page.html").start().ends(exitDone)
	b := browsertest.Open(t, "file://"+filepath.Join(v.cmd.Dir, "page.html"), 1300, 900)
	b.Until("document.documentElement.dataset.ready")
	b.Wants("the page", b.Text("refused"), "What is wrong", "2 private pools of CUDA graphs take 304 MiB in all:", "Capture the largest first")
	b.Quiet()
}

// A page about a request that PyTorch repeated says that, which is why more was free just after. The
// failure has a moment of its own.
func TestOutOfMemoryTwice(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/out_of_memory.gmt")
	if err != nil {
		t.Fatal(err)
	}
	v := command(t, "report", recording, "--oom").start().ends(exitDone)
	page := strings.Join(strings.Fields(v.stdout.String()), " ")
	for _, says := range []string{
		"nothing of the GPU's 140 GiB was free. PyTorch gave 136 GiB back",
		"just after: 136 GiB used, 4.05 GiB free",
		"and asked again, and was refused again 384ms after the first time. It gave up 165ms after that.",
		"--before oom-1s --after oom",
	} {
		if !strings.Contains(page, says) {
			t.Errorf("%q is missing from %s", says, page)
		}
	}
	for at, says := range map[string]string{"oom": "\n6.634s after", "oom-1s": "\n5.634s after"} {
		if v := command(t, "report", recording, "--at", at).start().ends(exitDone); !strings.Contains(v.stdout.String(), says) {
			t.Errorf("--at %s: %.200s", at, v.stdout.String())
		}
	}
	other := filepath.Join(filepath.Dir(recording), "profiler.gmt")
	for _, args := range [][]string{{"report", other, "--at", "oom"}, {"top", other, "--once", "--at", "oom"}, {"convert", other, "x.html", "--at", "oom-1s"}} {
		command(t, args...).start().ends(exitFailed).says("no request failed because memory ran out")
	}
}
