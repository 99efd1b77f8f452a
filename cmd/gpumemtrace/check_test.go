package main

import (
	"encoding/xml"
	"path/filepath"
	"strings"
	"testing"
)

// Each condition has a line, and the exit code says whether all hold.
func TestCheck(t *testing.T) {
	dir, err := filepath.Abs("../../test/recordings")
	if err != nil {
		t.Fatal(err)
	}
	streams, pools, holders := filepath.Join(dir, "allocator/streams.gmt"), filepath.Join(dir, "allocator/pools.gmt"), filepath.Join(dir, "holders.gmt")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{streams, "--max-peak", "2GiB"}, exitDone, "passed  max-peak: the peak is 1.97 GiB, and may be 2.00 GiB\n"},
		{[]string{streams, "--max-peak", "1.9GiB"}, exitFailed, "failed  max-peak: the peak is 1.97 GiB, and may be 1.90 GiB\n"},
		{[]string{streams, "--max-growth-per-step", "1MiB"}, exitFailed, "failed  max-growth-per-step: cannot be checked: the recording has fewer than three training steps"},
		{[]string{holders, "--max-growth-per-step", "1KiB"}, exitDone, "passed  max-growth-per-step: python3 (470) grows by 512 B a training step, and may by 1.00 KiB\n"},
		{[]string{holders, "--no-finding", "all"}, exitDone, "passed  hook: not found: a hook that keeps tensors\n"},
		{[]string{streams, "--no-finding", "hook"}, exitFailed, "failed  hook: cannot be looked for: trace with --holders 30s\n"},
		{[]string{streams, "--no-finding", "setting"}, exitFailed, "failed  setting: PyTorch reserves more than its tensors need in python3 (pid 11758). With expandable_segments:True"},
		{[]string{streams, "--no-finding", "all"}, exitFailed, "skipped hook: cannot be looked for: trace with --holders 30s\n"},
		{[]string{pools, "--no-finding", "graph-pools"}, exitFailed, "failed  graph-pools: 2 private pools of CUDA graphs take 304 MiB in all: "},
		{[]string{pools, "--no-finding", "graph-pools", "--format", "github"}, exitFailed, "::error title=gpumemtrace graph-pools::" + pools + ": 2 private pools of CUDA graphs"},
		{[]string{pools, "--no-finding", "graph-pools", "--format", "json"}, exitFailed, `"check":"graph-pools","result":"failed","costs_bytes":`},
		{[]string{streams, "--against", streams, "--within", "0"}, exitDone, "passed  against: the peak is 1.97 GiB, and that of " + streams + " is 1.97 GiB: +0.0 % (at most +0 %)\n"},
		{[]string{streams, "--against", holders, "--within", "123%"}, exitDone, "passed  against: "},
		{[]string{streams, "--against", holders}, exitFailed, "What grew: gpumemtrace diff " + holders + " " + streams + "\n"},
	} {
		if v := command(t, append([]string{"check"}, c.args...)...).start().ends(c.code); !strings.Contains(v.stdout.String(), c.says) {
			t.Errorf("%q says %s, want %q", c.args, v.stdout.String(), c.says)
		}
	}
	for _, args := range [][]string{{}, {"--max-peak", "much"}, {"--within", "-1"}, {"--against", streams, "--within", "nan"}, {"--no-finding", "leak"}, {"--format", "yaml", "--max-peak", "1GiB"}} {
		command(t, append([]string{"check", streams}, args...)...).start().ends(exitUsage)
	}
}

func TestCheckAsJUnit(t *testing.T) {
	run, err := filepath.Abs("../../test/recordings/allocator/pools.gmt")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Cases    []struct {
			Failure *struct{} `xml:"failure"`
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testcase"`
	}
	out := command(t, "check", run, "--no-finding", "all", "--max-peak", "2GiB", "--format", "junit").start().ends(exitFailed).stdout.String()
	if err := xml.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	failures, skipped := 0, 0
	for _, c := range got.Cases {
		if c.Failure != nil {
			failures++
		}
		if c.Skipped != nil {
			skipped++
		}
	}
	if got.Tests != len(got.Cases) || got.Failures != 1 || failures != 1 || skipped != 14 {
		t.Errorf("%d tests, %d failures; %d cases, of which %d failed and %d were skipped:\n%s", got.Tests, got.Failures, len(got.Cases), failures, skipped, out)
	}
}
