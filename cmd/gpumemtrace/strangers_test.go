package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testcuda"
)

// A stranger's process that makes more small allocations than the agent has memory for
// loses its own stacks, and is named. Processes that come later, also the stranger's, have
// theirs, and no total is wrong.
func TestAgentShedsStranger(t *testing.T) {
	const stranger, neighbour, small = 65534, 65533, 700_000
	needTracing(t)
	dir := t.TempDir()
	for _, d := range []string{dir, dir + "/.."} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	kit, err := testcuda.Get(t).Copy(dir)
	if err != nil {
		t.Fatal(err)
	}
	runs := func(user uint32) *testcuda.Process {
		t.Helper()
		p, err := testcuda.Start(t.Context(), kit, testcuda.Workload, testcuda.Options{User: user})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		script(t, p, "init")
		return p
	}
	v, _ := agentRuns(t, nil, "--listen", "localhost:0", "--memory-limit", "100MiB")
	address := "http://" + regexp.MustCompile(`listening at (\S+)`).FindStringSubmatch(v.stderr.String())[1]
	profile := func(p *testcuda.Process) string {
		t.Helper()
		r, err := http.Get(fmt.Sprintf("%s/debug/pprof/gpumem?debug=1&pid=%d", address, p.PID()))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", r.Status, b, err)
		}
		return string(b)
	}

	p := runs(stranger)
	script(t, p, fmt.Sprintf("repeat %d cuMemAlloc_v2 1", small))
	named := fmt.Sprintf("process %d (workload) of user %d", p.PID(), stranger)
	v.until("the stranger is named", func() bool { return strings.Contains(v.stderr.String(), named) })
	script(t, p, "via lrl cuMemAlloc_v2 4096")
	if text := profile(p); strings.Contains(text, "via_left") || !strings.Contains(text, named) {
		t.Errorf("a stack of the stranger's was taken, or it is not named:\n%.2000s", text)
	}
	for _, user := range []uint32{stranger, neighbour} {
		later := runs(user)
		script(t, later, "via lrl repeat 50 cuMemAlloc_v2 4096")
		if text := profile(later); !strings.Contains(text, "via_left") || !strings.Contains(text, "via_right") {
			t.Errorf("no stack of a later process of user %d was taken:\n%.2000s", user, text)
		}
	}
	if n := strings.Count(v.stderr.String(), "The agent is at a limit"); n != 1 {
		t.Errorf("%d are shed of:\n%s", n, v.stderr.String())
	}
}
