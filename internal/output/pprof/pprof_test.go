package pprof

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// pprofPath is the pprof of the Go toolchain, which builds it on first use.
var pprofPath = sync.OnceValues(func() (string, error) {
	if out, err := exec.Command("go", "tool", "pprof", "-h").CombinedOutput(); !bytes.Contains(out, []byte("usage")) {
		return string(out), err
	}
	out, err := exec.Command("go", "tool", "-n", "pprof").CombinedOutput()
	return strings.TrimSpace(string(out)), err
})

// pprof runs go tool pprof in a bare environment and returns what it prints
// on stdout and on stderr.
func pprof(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	path, err := pprofPath()
	if err != nil {
		t.Fatalf("find go tool pprof: %v: %s", err, path)
	}
	home := t.TempDir()
	cmd := exec.Command(path, args...)
	cmd.Env = []string{"HOME=" + home, "PPROF_TMPDIR=" + home, "PATH=" + os.Getenv("PATH"), "TZ=UTC"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("pprof %s: %v\n%s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), errs.String()
}

func save(t *testing.T, s *snapshot.Snapshot) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "profile.pb.gz")
	if err := os.WriteFile(path, write(t, s), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestGoToolPprof: golden files of what users see.
func TestGoToolPprof(t *testing.T) {
	for _, c := range []struct {
		golden string
		args   []string
	}{
		{"top", []string{"-top"}},
		{"top_lines", []string{"-top", "-lines"}},
		{"top_alloc_objects", []string{"-top", "-sample_index=alloc_objects"}},
		{"top_alloc_space", []string{"-top", "-sample_index=alloc_space"}},
		{"top_peak_space", []string{"-top", "-sample_index=peak_space"}},
		{"top_inuse_objects", []string{"-top", "-sample_index=inuse_objects"}},
		{"top_cum_cublas", []string{"-top", "-cum", "-tagfocus=owner=cublas"}},
		{"peek", []string{"-peek=empty_cuda"}},
		{"tags", []string{"-tags"}},
		{"traces", []string{"-traces"}},
		{"raw", []string{"-raw"}},
		{"comments", []string{"-comments"}},
	} {
		t.Run(c.golden, func(t *testing.T) {
			out, errs := pprof(t, append(c.args, save(t, snapshottest.Training()))...)
			if errs != "" {
				t.Errorf("pprof complains: %s", errs)
			}
			snapshottest.Golden(t, "pprof/"+c.golden+".txt", []byte(out))
		})
	}
}

// TestGoToolPprofKeepsNames: names that pprof's own demangling would spoil.
func TestGoToolPprofKeepsNames(t *testing.T) {
	names := []string{"<module>", "<listcomp>", "[cached, unused]", "[no stack]", "Foo.<lambda>", "libcublas.so.12+0xabcdef"}
	s := &snapshot.Snapshot{}
	for _, n := range names {
		for _, system := range []string{"", n} {
			s.Samples = append(s.Samples, snapshot.Sample{
				Stack:  []*snapshot.Location{{Lines: []snapshot.Line{{Function: n, System: system}}}},
				Values: snapshot.Values{InuseBytes: 1 << 20},
			})
		}
	}
	out, errs := pprof(t, "-top", save(t, s))
	if errs != "" {
		t.Errorf("pprof complains: %s", errs)
	}
	for _, n := range names {
		if c := strings.Count(out, " 2MB 16.67%  "+n+"\n"); c != 1 {
			t.Errorf("%q is there %d times:\n%s", n, c, out)
		}
	}
}

func TestGoToolPprofDiffBase(t *testing.T) {
	before, after := snapshottest.Training(), snapshottest.Training()
	after.Samples[0].InuseBytes += 40 << 20
	after.Samples[1].InuseBytes = 0
	base, now := save(t, before), save(t, after)

	out, errs := pprof(t, "-top", "-diff_base", base, now)
	if errs != "" {
		t.Errorf("pprof complains: %s", errs)
	}
	snapshottest.Golden(t, "pprof/diff_base.txt", []byte(out))

	out, _ = pprof(t, "-top", "-diff_base", base, base)
	if !strings.Contains(out, "Showing nodes accounting for 0, 0%") {
		t.Errorf("a profile compared with itself:\n%s", out)
	}
}

// TestGoToolPprofMerges: pprof adds up the profiles that it is given.
func TestGoToolPprofMerges(t *testing.T) {
	out, _ := pprof(t, "-top", save(t, snapshottest.TwoProcesses()), save(t, snapshottest.TwoProcesses()))
	if !strings.Contains(out, "16MB") {
		t.Errorf("two profiles of 8 MiB:\n%s", out)
	}
	out, _ = pprof(t, "-tags", save(t, snapshottest.TwoProcesses()))
	for _, want := range []string{"pid: Total 8MB", "5MB (62.50%): 11", "3MB (37.50%): 10"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing from\n%s", want, out)
		}
	}
}

func TestGoToolPprofEmpty(t *testing.T) {
	out, errs := pprof(t, "-top", save(t, &snapshot.Snapshot{}))
	if !strings.Contains(out, "inuse_space") || errs != "" {
		t.Errorf("an empty profile:\n%s%s", out, errs)
	}
}
