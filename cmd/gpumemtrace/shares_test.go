package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/tenants"
)

// programsOf returns a folder that every user may look into, with programs and a library
// of the sources of package probes.
func programsOf(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sources, library := "../../probes/testdata/", filepath.Join(dir, "libcuda.so.1")
	for _, args := range [][]string{
		{"-o", library, sources + "odd.c", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1"},
		{"-o", filepath.Join(dir, "odd"), sources + "oddmain.c", library, "-Wl,-rpath,$ORIGIN"},
		{"-o", filepath.Join(dir, "mapmany"), sources + "mapmany.c"},
	} {
		if text, err := exec.Command("gcc", append([]string{"-O1"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, text)
		}
	}
	return dir
}

// A dialogue is with a program that answers each line with one.
type dialogue struct {
	*testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// asUser starts a program as a user without privileges.
func asUser(t *testing.T, user uint32, program string, args ...string) *dialogue {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &dialogue{t, cmd, in, bufio.NewScanner(out)}
}

func (d *dialogue) expect(want string) {
	d.Helper()
	if !d.out.Scan() || d.out.Text() != want {
		d.Fatalf("it says %q, want %q", d.out.Text(), want)
	}
}

func (d *dialogue) do(command, answer string) {
	d.Helper()
	fmt.Fprintln(d.in, command)
	d.expect(answer)
}

// One user's 1,100 libraries take no neighbour's place in what an agent shows, and the
// agent says whose processes it does not see.
func TestAgentSharesSlots(t *testing.T) {
	needTracing(t)
	tenants.ByUser(t)
	const stranger, neighbour = 65534, 65533
	dir := programsOf(t)
	text, err := os.ReadFile(filepath.Join(dir, "libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	v, _ := agentRuns(t, nil, "--listen", "localhost:0", "--insecure", "--per-process-metrics", "100")
	_, after, _ := strings.Cut(v.stderr.String(), "listening at ")
	address := "http://" + strings.Fields(after)[0]
	get := func(path string) string {
		t.Helper()
		r, err := http.Get(address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", path, r.Status, err)
		}
		return string(b)
	}
	many := asUser(t, stranger, filepath.Join(dir, "mapmany"), "19", "58")
	for i := range 1100 {
		path := filepath.Join(dir, strconv.Itoa(i), "libcuda.so.1")
		if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, fmt.Appendf(text, "%d", i), 0o755); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(many.in, path)
	}
	many.do("", "up")
	notSeen := regexp.MustCompile(`^ready\nnot seen: (\d+) process(es)? of user 65534: no free slot for a library\n$`)
	v.until("it says whom it does not see", func() bool { return notSeen.MatchString(get("/readyz")) })

	odd := asUser(t, neighbour, filepath.Join(dir, "odd"))
	odd.expect("up")
	allocations := regexp.MustCompile(fmt.Sprintf(`gpumemtrace_process_live_allocations\{[^}]*pid="%d"[^}]*\} (\d+)`, odd.cmd.Process.Pid))
	live := func() (n int) {
		for _, m := range allocations.FindAllStringSubmatch(get("/metrics"), -1) {
			one, _ := strconv.Atoi(m[1])
			n += one
		}
		return n
	}
	v.until("the neighbour's calls are seen", func() bool {
		odd.do("same 1", "same")
		return live() > 0
	})
	var before int
	v.until("all of them are", func() bool {
		was := before
		before = live()
		return was == before
	})
	odd.do("same 500", "same")
	v.until("the next are all seen", func() bool { return live() == before+500 })
	if text := get("/readyz"); !notSeen.MatchString(text) {
		t.Errorf("%q", text)
	}
	metrics := get("/metrics")
	for _, want := range []string{`gpumemtrace_processes_not_seen{reason="no free slot for a library",user="65534"} `, `gpumemtrace_loss_total{class="libraries_evicted",layer="calls"} `} {
		if _, value, ok := strings.Cut(metrics, want); !ok || strings.HasPrefix(value, "0\n") {
			t.Errorf("no %s", want)
		}
	}
	v.signal(syscall.SIGTERM)
	v.ends(exitDone)
}
