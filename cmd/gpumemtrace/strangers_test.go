package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/tenants"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// A stranger's process that makes more small allocations than the agent has memory for
// loses its own stacks, and is named. Processes that come later, also the stranger's, have
// theirs, and no total is wrong.
func TestAgentShedsStranger(t *testing.T) {
	const stranger, neighbour, atOnce, most = 65534, 65533, 60_000, 1_200_000
	needTracing(t)
	tenants.ByUser(t)
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
	v, _ := agentRuns(t, nil, "--listen", "localhost:0", "--insecure", "--memory-limit", "120MiB")
	address := "http://" + regexp.MustCompile(`listening at (\S+)`).FindStringSubmatch(v.stderr.String())[1]
	profile := func(p *testcuda.Process) (*snapshot.Snapshot, error) {
		t.Helper()
		r, err := http.Get(fmt.Sprintf("%s/debug/pprof/gpumem?pid=%d", address, p.PID()))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return nil, errors.New(r.Status)
		}
		return pprof.Read(r.Body)
	}
	// inuse waits for a profile with so many allocations, and returns how many of them
	// have the stack of the script's last command.
	inuse := func(p *testcuda.Process, want int64) (stacked int64) {
		t.Helper()
		told := ""
		defer func() {
			if t.Failed() {
				t.Log(told)
				if r, err := http.Get(address + "/metrics"); err == nil {
					b, _ := io.ReadAll(r.Body)
					r.Body.Close()
					t.Logf("%s", bytes.Join(regexp.MustCompile(`gpumemtrace_loss_total\{.*\} [1-9].*`).FindAll(b, -1), []byte("\n")))
				}
			}
		}()
		v.until(fmt.Sprintf("process %d has %d allocations", p.PID(), want), func() bool {
			snap, err := profile(p)
			if err != nil {
				return false // none that is so young
			}
			var all int64
			stacked = 0
			for _, x := range snap.Samples {
				if x.API != "cuMemAlloc_v2" {
					continue
				}
				all += x.InuseObjects
				if slices.ContainsFunc(x.Stack, func(l *snapshot.Location) bool {
					return slices.ContainsFunc(l.Lines, func(l snapshot.Line) bool { return l.Function == "via_left" })
				}) {
					stacked += x.InuseObjects
				}
			}
			if all != want {
				told = fmt.Sprintf("%d allocations, %d samples, lost %+v", all, len(snap.Samples), snap.Loss)
			}
			return all == want
		})
		return stacked
	}

	first := runs(neighbour)
	v.until("the library has probes", func() bool {
		script(t, first, "cuMemAlloc_v2 1")
		_, err := profile(first)
		return err == nil
	})
	p := runs(stranger)
	named := fmt.Sprintf("process %d (workload) of user %d", p.PID(), stranger)
	made := int64(0)
	for !strings.Contains(v.stderr.String(), named) && made < most {
		script(t, p, fmt.Sprintf("repeat %d cuMemAlloc_v2 1", atOnce))
		made += atOnce
		inuse(p, made) // no more than there is room for are on their way
	}
	v.until("the stranger is named", func() bool { return strings.Contains(v.stderr.String(), named) })
	script(t, p, "via lrl cuMemAlloc_v2 4096")
	if n := inuse(p, made+1); n != 0 {
		t.Errorf("%d stacks of the stranger's were taken", n)
	}
	for _, user := range []uint32{stranger, neighbour} {
		later := runs(user)
		script(t, later, "via lrl repeat 50 cuMemAlloc_v2 4096")
		if n := inuse(later, 50); n != 50 {
			t.Errorf("%d of 50 stacks of a later process of user %d were taken", n, user)
		}
	}
	if n := strings.Count(v.stderr.String(), "The agent is at a limit"); n != 1 {
		t.Errorf("%d are shed of:\n%s", n, v.stderr.String())
	}
}
