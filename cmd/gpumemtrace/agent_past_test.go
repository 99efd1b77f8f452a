package main

import (
	"html"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// The command that the agent's page prints for a moment of the past shows the stacks of that
// moment, as it stands there, while the agent goes on.
func TestAgentPastCommand(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's recorded")
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v, _ := agentRuns(t, nil, "--record", dir, "--interval", "1s", "--listen", "localhost:0", "--insecure")
	address := "http://" + strings.Fields(v.stderr.String()[strings.Index(v.stderr.String(), "listening at ")+len("listening at "):])[0]
	page := func() string {
		t.Helper()
		r, err := http.Get(address + "/now?at=peak")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	script(t, p, "repeat 3 cuMemAlloc_v2 64m")
	v.until("the history has it", func() bool { return strings.Contains(page(), "traced processes held 192 MiB") })
	script(t, p, "free all")
	found := regexp.MustCompile(`<pre class="command">(.*)</pre>`).FindStringSubmatch(page())
	if found == nil {
		t.Fatalf("there is no command: %s", page())
	}
	printed := html.UnescapeString(found[1])
	// The shell finds this program under its name, and sudo does as root does.
	bin := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(bin, "gpumemtrace")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "sudo"), []byte("#!/bin/sh\nexec \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var out []byte
	var err error
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) { // the latest half second is not in the file yet
		c := exec.Command("sh", "-c", printed)
		c.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		if out, err = c.CombinedOutput(); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", printed, err, out)
	}
	for _, want := range []string{"192", "(" + strconv.Itoa(p.PID()) + ")", "cuMemAlloc_v2"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%s:\n%s\nlacks %q", printed, out, want)
		}
	}
}
