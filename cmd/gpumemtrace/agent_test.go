package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// A serviceManager is what systemd is to the agent.
type serviceManager struct {
	path  string
	heard buffer
}

func manages(t *testing.T) *serviceManager {
	t.Helper()
	m := &serviceManager{path: filepath.Join(t.TempDir(), "notify")}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			fmt.Fprintf(&m.heard, "%s\n", b[:n])
		}
	}()
	return m
}

func (m *serviceManager) heardOf(text string) func() bool {
	return func() bool { return strings.Contains(m.heard.String(), text) }
}

// agentRuns starts an agent, and returns when its probes are on.
func agentRuns(t *testing.T, environment []string, args ...string) (*invocation, *serviceManager) {
	t.Helper()
	needTracing(t)
	m := manages(t)
	v := command(t, append([]string{"agent", "--stacks", "fp", "--socket", "off"}, args...)...)
	v.cmd.Env = append(append(os.Environ(), "NOTIFY_SOCKET="+m.path, "WATCHDOG_USEC=1000000"), environment...)
	v.start()
	v.until("it is ready", m.heardOf("READY=1"))
	return v, m
}

// breakpoints counts the bytes of the functions in a process's libcuda that are not
// those of the file.
func breakpoints(t *testing.T, pid int) (n int) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	found := false
	for line := range strings.Lines(string(maps)) {
		var from, to, offset uint64
		var flags, device, path string
		var inode uint64
		fmt.Sscanf(line, "%x-%x %s %x %s %d %s", &from, &to, &flags, &offset, &device, &inode, &path)
		if !strings.Contains(path, "libcuda.so") || flags[2] != 'x' {
			continue
		}
		found = true
		is, want := make([]byte, to-from), make([]byte, to-from)
		if _, err := memory.ReadAt(is, int64(from)); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		k, err := f.ReadAt(want, int64(offset))
		f.Close()
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		for i := range k {
			if is[i] != want[i] {
				n++
			}
		}
	}
	if !found {
		t.Fatal("it maps no libcuda")
	}
	return n
}

// recordingsIn returns the recordings in a directory, oldest first.
func recordingsIn(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "gpumemtrace-*.gmt"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// inuseIn returns what a process has in use at the end of a recording.
func inuseIn(t *testing.T, path string, pid int) int64 {
	t.Helper()
	v := command(t, "convert", path, "--at", "end", "-o", "-", "--format", "json").start().ends(exitDone)
	var x struct {
		Processes []struct {
			PID   int   `json:"pid"`
			Inuse int64 `json:"inuse_bytes"`
		} `json:"processes"`
	}
	if err := json.Unmarshal([]byte(v.stdout.String()), &x); err != nil {
		t.Fatal(err)
	}
	for _, p := range x.Processes {
		if p.PID == pid {
			return p.Inuse
		}
	}
	return -1
}

// The agent sees processes come and go. Killed, it has lost no more than the last
// second; started again it has the recording of before beside its own, from whose first
// moment on all that is held is known; and at its end no probe is left.
func TestAgent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "recordings")
	early := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v, m := agentRuns(t, nil, "--record", dir, "--interval", "1s")
	v.until("the manager hears that it lives", m.heardOf("WATCHDOG=1"))
	if breakpoints(t, early.PID()) == 0 {
		t.Error("there are no probes")
	}
	script(t, early, "repeat 3 cuMemAlloc_v2 1m")
	late := workload(t, testcuda.Workload, testcuda.Options{}, "repeat 5 cuMemAlloc_v2 2m")
	v.until("the status has both", m.heardOf("STATUS=2 processes have 13.0 MiB in use"))
	late.Close()
	v.until("the status has one", m.heardOf("STATUS=1 processes have 3.00 MiB in use"))
	script(t, early, "cuMemAlloc_v2 4m")
	// A crash loses what came in the last half second, or longer where the machine is busy.
	v.until("it is recorded", func() bool { return inuseIn(t, recordingsIn(t, dir)[0], early.PID()) == 7<<20 })
	v.signal(syscall.SIGKILL)
	<-v.exited
	if n := breakpoints(t, early.PID()); n != 0 {
		t.Errorf("killed, it leaves %d probes", n)
	}
	killed := recordingsIn(t, dir)
	if len(killed) != 1 || inuseIn(t, killed[0], early.PID()) != 7<<20 {
		t.Fatalf("%q has %d bytes, want %d", killed, inuseIn(t, killed[0], early.PID()), 7<<20)
	}
	before, err := os.ReadFile(killed[0])
	if err != nil {
		t.Fatal(err)
	}

	v, m = agentRuns(t, nil, "--record", dir, "--interval", "1s")
	script(t, early, "repeat 2 cuMemAlloc_v2 1m")
	v.until("the status has it", m.heardOf("STATUS=1 processes have 2.00 MiB in use"))
	v.signal(syscall.SIGTERM)
	v.ends(exitDone)
	if !m.heardOf("STOPPING=1")() {
		t.Errorf("the manager heard %q", m.heard.String())
	}
	if n := breakpoints(t, early.PID()); n != 0 {
		t.Errorf("it leaves %d probes", n)
	}
	both := recordingsIn(t, dir)
	if len(both) != 2 || both[0] != killed[0] {
		t.Fatalf("recordings %q, was %q", both, killed)
	}
	if after, err := os.ReadFile(both[0]); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the recording of the killed agent is another: %v", err)
	}
	if n := inuseIn(t, both[1], early.PID()); n != 2<<20 {
		t.Errorf("the second recording has %d bytes", n)
	}
	for _, path := range both {
		command(t, "report", path).start().ends(exitDone)
		command(t, "top", path, "--once").start().ends(exitDone)
	}
}

// SIGHUP reads the configuration again: what can change does, what cannot says so, and a
// bad file changes nothing.
func TestAgentReload(t *testing.T) {
	dir := t.TempDir()
	config, records := filepath.Join(dir, "agent.yaml"), filepath.Join(dir, "recordings")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("record-max: 16MiB\ninterval: 1s\n")
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v, m := agentRuns(t, []string{"GPUMEMTRACE_RECORD=" + records}, "--config", config)
	script(t, p, "repeat 3 cuMemAlloc_v2 1m")
	v.until("the status has it", m.heardOf("STATUS=1 processes have 3.00 MiB in use")) // what is read later is in the second recording
	reload := func(text, says string) {
		t.Helper()
		write(text)
		n := len(v.stderr.String())
		v.signal(syscall.SIGHUP)
		v.until("it says "+says, func() bool { return strings.Contains(v.stderr.String()[n:], says) })
	}
	reload("interval: 1s\nlistne: x\n", `the configuration stays as it is: read the configuration: `+config+`: line 2: there is no setting "listne"`)
	reload("interval: 1s\nrecord-max: 1MiB\n", "16MiB at least")
	if got := recordingsIn(t, records); len(got) != 1 {
		t.Errorf("recordings %q", got)
	}
	v.until("what was allocated is in the recording", func() bool { return inuseIn(t, recordingsIn(t, records)[0], p.PID()) == 3<<20 })
	reload("interval: 1s\ntensors: true\nrecord-max: 32MiB\n", `tensors cannot change while the agent runs: it stays ""`)
	v.until("it says what changed", func() bool { return strings.Contains(v.stderr.String(), "record-max changed") })
	reloaded := regexp.MustCompile(`RELOADING=1\nMONOTONIC_USEC=\d+\n(WATCHDOG=1\n)*READY=1\n`)
	v.until("the manager heard of three reloads", func() bool { return len(reloaded.FindAllString(m.heard.String(), -1)) == 3 })
	v.until("there are two recordings", func() bool { return len(recordingsIn(t, records)) == 2 })
	v.signal(syscall.SIGTERM)
	v.ends(exitDone)
	// The second recording begins amid the trace, with all that is held.
	both := recordingsIn(t, records)
	if len(both) != 2 {
		t.Fatalf("recordings %q", both)
	}
	for _, path := range both {
		if n := inuseIn(t, path, p.PID()); n != 3<<20 {
			t.Errorf("%s has %d bytes", path, n)
		}
	}
}

// A disk that is full is a gap, not an end: the recording goes on when there is room.
func TestAgentFullDisk(t *testing.T) {
	dir := mount(t, "size=1m,mode=700")
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v, m := agentRuns(t, nil, "--record", dir, "--interval", "1s", "--oom-dir", filepath.Join(dir, "oom"))
	v.until("it says that the disk is full", func() bool { return strings.Contains(v.stderr.String(), "no space left on device") })
	script(t, p, "repeat 3 cuMemAlloc_v2 1m")
	v.until("it goes on", m.heardOf("STATUS=1 processes have 3.00 MiB in use"))
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	v.until("it records", func() bool { return len(recordingsIn(t, dir)) > 0 })
	v.signal(syscall.SIGTERM)
	v.ends(exitDone)
	all := recordingsIn(t, dir)
	if n := inuseIn(t, all[len(all)-1], p.PID()); n != 3<<20 {
		t.Errorf("%q have %d bytes", all, n)
	}
}

// What is wrong with the settings is found before anything is traced.
func TestAgentUsage(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		says string
		code int
	}{
		{[]string{"--memory-limit", "lots"}, "give a size", exitUsage},
		{[]string{"--interval", "1ms"}, "of at least 1s", exitUsage},
		{[]string{"--lissten", "x"}, "lissten", exitUsage},
		{[]string{"now"}, "now", exitUsage},
		{[]string{"--once"}, "give one, such as --alert", exitUsage},
		{[]string{"--config", "/nowhere.yaml"}, "no such file", exitFailed},
		{[]string{"--socket", "off", "--web-config", "x"}, "web-config is for listen", exitFailed},
		{[]string{"--socket", "off", "--listen", "localhost:0"}, "give --web-config, or say --insecure", exitFailed},
		{[]string{"--socket", "off", "--record", open}, "others may write to " + open + ": name another directory, or chmod go-w it", exitFailed},
	} {
		v := command(t, append([]string{"agent"}, c.args...)...).start().ends(c.code)
		if !strings.Contains(v.stderr.String(), c.says) {
			t.Errorf("%q says %q", c.args, v.stderr.String())
		}
	}
}

// --once ends with 3 where an alert is true, and with 0 where none is. The program holds 3 or
// 6 MiB at any moment, of which the agent has seen every byte after one round.
func TestAgentOnce(t *testing.T) {
	needTracing(t)
	p := workload(t, testcuda.Workload, testcuda.Options{}, "cuMemAlloc_v2 3m")
	if err := p.Send("repeat 1000000000 { cudaMalloc 3m; free cuMemAlloc_v2; cuMemAlloc_v2 3m; free cudaMalloc; sleep 1 }"); err != nil {
		t.Fatal(err)
	}
	for rule, code := range map[string]int{"process.live > 2MiB": exitAlert, "process.live > 1GiB": exitDone} {
		v := command(t, "agent", "--once", "--stacks", "fp", "--interval", "2s", "--alert", rule).start().ends(code)
		if told := strings.Contains(v.stdout.String(), ".00 MiB"); told != (code == exitAlert) {
			t.Errorf("%s: %q", rule, v.stdout.String())
		}
	}
}

// What the agent sees is served, watched and posted; each part is made afresh when its
// settings change, and one that cannot be goes on as it was.
func TestAgentParts(t *testing.T) {
	posted := make(chan string, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		posted <- string(b)
	}))
	defer hook.Close()
	config := filepath.Join(t.TempDir(), "agent.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte("interval: 1s\nsocket: off\nlisten: localhost:0\ninsecure: true\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	needTracing(t)
	m := manages(t)
	v := command(t, "agent", "--stacks", "fp", "--config", config)
	v.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+m.path)
	v.start()
	v.until("it is ready", m.heardOf("READY=1"))
	address := func() string {
		all := regexp.MustCompile(`listening at (\S+)`).FindAllStringSubmatch(v.stderr.String(), -1)
		return "http://" + all[len(all)-1][1]
	}
	get := func(path string) string {
		t.Helper()
		r, err := http.Get(address() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, %v", path, r.Status, err)
		}
		return string(b)
	}
	script(t, p, "repeat 3 cuMemAlloc_v2 1m")
	v.until("it is served", func() bool { return strings.Contains(get("/api/v1/top"), `"inuse_bytes":3145728`) })
	if !strings.Contains(get("/metrics"), "gpumemtrace_") || strings.Contains(get("/metrics"), fmt.Sprintf(`pid="%d"`, p.PID())) {
		t.Error("metrics of processes that nobody asked for")
	}
	reload := func(text, says string) {
		t.Helper()
		write(text)
		n := len(v.stderr.String())
		v.signal(syscall.SIGHUP)
		v.until("it says "+says, func() bool { return strings.Contains(v.stderr.String()[n:], says) })
	}
	const fail = "fail cuMemAlloc_v2 1 2; expect 2 cuMemAlloc_v2 1m"
	script(t, p, fail) // no rule watches yet
	failed := regexp.MustCompile(`out_of_memory_total\{.*\} 1\n`)
	v.until("the failure is known", func() bool { return failed.MatchString(get("/metrics")) })
	reload("per-process-metrics: 10\nalert:\n- process.live > 2MiB\n- oom\nalert-webhook: "+hook.URL+"\n", "changed")
	v.until("the alert is told", func() bool { return strings.Contains(v.stderr.String(), "alert: ") })
	select {
	case text := <-posted:
		if !strings.Contains(text, "process.live") {
			t.Errorf("posted %q", text)
		}
	case <-time.After(5 * time.Minute):
		t.Error("nothing was posted")
	}
	reload("per-process-metrics: 10\nalert-webhook: "+hook.URL+"\nalert:\n- process.live > 2MiB\n- process.live > 1MiB\n- oom\n", "changed")
	script(t, workload(t, testcuda.Workload, testcuda.Options{}, "init"), fail)
	v.until("a later failure is told", func() bool { return strings.Contains(v.stderr.String(), "ran out of memory") })
	if n := strings.Count(v.stderr.String(), "ran out of memory"); n != 1 {
		t.Errorf("%d failures are told, want the one after the rule", n)
	}
	v.until("the new rule is told", func() bool { return strings.Contains(v.stderr.String(), "(process.live > 1MiB)") })
	if n := strings.Count(v.stderr.String(), "(process.live > 2MiB)"); n != 1 {
		t.Errorf("the rule that stays is told %d times", n)
	}
	if !strings.Contains(get("/metrics"), fmt.Sprintf(`pid="%d"`, p.PID())) {
		t.Error("no metrics of processes")
	}
	for range 2 { // it is tried again, also if nothing changed since
		reload("per-process-metrics: 10\nweb-config: /nowhere\n", "http stays as it was")
	}
	if !strings.Contains(get("/metrics"), fmt.Sprintf(`pid="%d"`, p.PID())) {
		t.Error("the server is not as it was")
	}
	v.signal(syscall.SIGTERM)
	v.ends(exitDone)
}

// slowNVML does not start before there is a file.
const slowNVML = `
#include <stdlib.h>
#include <unistd.h>
int nvmlInit(void) { while (access(getenv("NVML_STARTS"), F_OK)) usleep(1000); return 9; }
const char *nvmlErrorString(int r) { return "Stand-in Error"; }
`

// While the agent begins it says so to who asks whether it is ready, is no less alive, and
// shows nothing; then it it is ready.
func TestAgentReady(t *testing.T) {
	needTracing(t)
	dir := t.TempDir()
	source, starts := filepath.Join(dir, "nvml.c"), filepath.Join(dir, "starts")
	if err := os.WriteFile(source, []byte(slowNVML), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), source).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	m := manages(t)
	v := command(t, "agent", "--stacks", "fp", "--socket", "off", "--listen", "localhost:0", "--insecure")
	v.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+m.path, "LD_LIBRARY_PATH="+dir, "NVML_STARTS="+starts)
	v.start()
	var address string
	v.until("it listens", func() bool {
		_, after, ok := strings.Cut(v.stderr.String(), "listening at ")
		if !ok || !strings.Contains(after, "\n") {
			return false
		}
		address = "http://" + strings.Fields(after)[0]
		return true
	})
	get := func(path string) (int, string) {
		t.Helper()
		r, err := http.Get(address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(b)
	}
	if status, text := get("/readyz"); status != http.StatusServiceUnavailable || !strings.HasPrefix(text, "not ready: the agent is still attaching probes") {
		t.Errorf("%d, %q", status, text)
	}
	if status, text := get("/healthz"); status != http.StatusOK || text != "ok\n" {
		t.Errorf("%d, %q", status, text)
	}
	for _, path := range []string{"/metrics", "/api/v1/top"} {
		if status, text := get(path); status != http.StatusServiceUnavailable || !strings.Contains(text, "not begun") {
			t.Errorf("%s: %d, %q", path, status, text)
		}
	}
	if m.heardOf("READY=1")() {
		t.Error("the manager heard that it is ready")
	}
	if err := os.WriteFile(starts, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	v.until("it is ready", func() bool {
		status, text := get("/readyz")
		return status == http.StatusOK && text == "ready\n"
	})
	if status, text := get("/metrics"); status != http.StatusOK || !strings.Contains(text, "gpumemtrace_processes ") {
		t.Errorf("%d, %.200q", status, text)
	}
	v.until("the manager hears it", m.heardOf("READY=1"))
	v.signal(syscall.SIGTERM)
	v.ends(exitDone)
}
