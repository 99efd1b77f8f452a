package main

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// The recording that the agent's history names has the stacks of a moment of the past, while the
// agent goes on.
func TestAgentPast(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's recorded")
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v, _ := agentRuns(t, nil, "--record", dir, "--interval", "1s", "--listen", "localhost:0", "--insecure")
	address := "http://" + strings.Fields(v.stderr.String()[strings.Index(v.stderr.String(), "listening at ")+len("listening at "):])[0]
	var past struct {
		Recording string
		Points    []struct {
			Milliseconds int64 `json:"ms"`
			Bytes        []int64
		}
	}
	held := func(bytes int64) (at time.Time) {
		t.Helper()
		r, err := http.Get(address + "/api/v1/history")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if err := json.NewDecoder(r.Body).Decode(&past); err != nil {
			t.Fatal(err)
		}
		for _, p := range past.Points {
			var sum int64
			for _, b := range p.Bytes {
				sum += b
			}
			if sum == bytes {
				at = time.UnixMilli(p.Milliseconds)
			}
		}
		return at
	}
	script(t, p, "repeat 3 cuMemAlloc_v2 64m")
	v.until("the history has it", func() bool { return !held(192 << 20).IsZero() })
	at := held(192 << 20).UTC().Format(time.RFC3339Nano)
	script(t, p, "free all")
	var out []byte
	var err error
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) { // the latest half second is not in the file yet
		c := exec.Command(binary, "report", past.Recording, "--by", "line", "--at", at)
		if out, err = c.CombinedOutput(); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("%s at %s: %v\n%s", past.Recording, at, err, out)
	}
	for _, want := range []string{"192", "(" + strconv.Itoa(p.PID()) + ")", "invoke args.c:12"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%s at %s:\n%s\nlacks %q", past.Recording, at, out, want)
		}
	}
}
