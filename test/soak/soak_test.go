//go:build soak

// Package soak runs an agent for minutes among all that may go wrong on a machine.
package soak

import (
	"bytes"
	"context"
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
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/footprint"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// length is how long it goes on: SOAK_TIME, ten minutes without, a minute with -short.
func length(t *testing.T) time.Duration {
	if testing.Short() {
		return time.Minute
	}
	if text := os.Getenv("SOAK_TIME"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	return 10 * time.Minute
}

// stuckNVML is an NVML that answers until it hangs, for good.
const stuckNVML = `
#include <stdint.h>
#include <string.h>
#include <unistd.h>
typedef struct { uint64_t total, free, used; } memory;
typedef struct { uint32_t pid; uint64_t used; } process;
static int asked;
int nvmlInit(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int r) { return "Stand-in Error"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "580.1", n); return 0; }
int nvmlDeviceGetCount(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex(unsigned i, void **d) { *d = (void *)1; return 0; }
int nvmlDeviceGetHandleByUUID(const char *u, void **d) { *d = (void *)1; return 0; }
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) { strncpy(s, "GPU-stuck", n); return 0; }
int nvmlDeviceGetMemoryInfo(void *d, memory *m) {
	if (++asked > 20)
		for (;;) pause();
	*m = (memory){80ull << 30, 40ull << 30, 40ull << 30};
	return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *n, process *p) { *n = 0; return 0; }
`

// A soak is one run.
type soak struct {
	*testing.T
	dir    string
	binary string
	end    context.Context // of those who disturb
	waits  sync.WaitGroup
	done   map[string]*atomic.Int64 // what was done, by what
}

func (s *soak) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// compile makes a program of C, or with a name that ends in .so.1 a library.
func (s *soak) compile(out, source string) {
	s.Helper()
	args := []string{"-O1", "-g", "-fno-omit-frame-pointer", "-o", out, source}
	if strings.HasSuffix(out, ".so.1") {
		args = append(args, "-shared", "-fPIC")
	}
	if text, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		s.Fatalf("gcc: %v\n%s", err, text)
	}
}

// builds builds the program.
func (s *soak) builds() {
	s.Helper()
	s.binary = s.path("gpumemtrace")
	if out, err := exec.Command("go", "build", "-o", s.binary, "../../cmd/gpumemtrace").CombinedOutput(); err != nil {
		s.Fatalf("build: %v\n%s", err, out)
	}
}

// again does f again and again, beside all else, and counts how often.
func (s *soak) again(what string, pause time.Duration, f func() error) {
	n := new(atomic.Int64)
	s.done[what] = n
	s.waits.Go(func() {
		for s.end.Err() == nil {
			if err := f(); err != nil {
				if s.end.Err() == nil {
					s.Errorf("%s: %v", what, err)
				}
				return
			}
			n.Add(1)
			select {
			case <-s.end.Done():
			case <-time.After(pause):
			}
		}
	})
}

// An agent is one that was started.
type agent struct {
	cmd     *exec.Cmd
	log     *log
	address string
}

// A log is what an agent says; only its beginning is kept.
type log struct {
	mu   sync.Mutex
	text []byte
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.text) < 1<<20 {
		l.text = append(l.text, b...)
	}
	return len(b), nil
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// starts starts an agent, and returns when it is ready.
func (s *soak) starts(environment []string, args ...string) (*agent, error) {
	a := &agent{log: &log{}}
	a.cmd = exec.Command(s.binary, append([]string{"agent", "--socket", "off", "--listen", "localhost:0", "--insecure", "--interval", "1s"}, args...)...)
	a.cmd.Env = append(os.Environ(), environment...)
	a.cmd.Stderr = a.log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	listens := regexp.MustCompile(`listening at (\S+)`)
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if m := listens.FindStringSubmatch(a.log.String()); m != nil {
			a.address = "http://" + m[1]
			if text, err := a.get("/readyz"); err == nil && string(text) == "ready\n" {
				return a, nil
			}
		}
		if time.Now().After(end) {
			a.cmd.Process.Kill()
			a.cmd.Wait()
			return nil, fmt.Errorf("the agent does not start: %s", a.log)
		}
	}
}

// get asks the agent.
func (a *agent) get(path string) ([]byte, error) {
	client := http.Client{Timeout: 20 * time.Second}
	r, err := client.Get(a.address + path)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK && r.StatusCode != http.StatusServiceUnavailable {
		err = fmt.Errorf("%s: %s: %.200s", path, r.Status, b)
	}
	return b, err
}

// losses returns what the agent says that it lost.
func (a *agent) losses() (map[string]uint64, error) {
	text, err := a.get("/metrics")
	if err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	for _, m := range regexp.MustCompile(`(?m)^gpumemtrace_loss_total\{class="([a-z0-9_]+)",layer="([a-z]+)"\} (\S+)$`).FindAllSubmatch(text, -1) {
		f, _ := strconv.ParseFloat(string(m[3]), 64)
		out[string(m[1])] = uint64(f)
		out[string(m[2])+"_"+string(m[1])] = uint64(f)
	}
	return out, nil
}

// live returns how many MiB of the agent's heap are live, with what it does at the moment.
func (a *agent) live(t *testing.T) int {
	t.Helper()
	text, err := a.get("/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no heap in %.200s", text)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n >> 20
}

// inuse returns what a process has in use, as the agent says, -1 if it says nothing.
func (a *agent) inuse(pid int) (int64, error) {
	text, err := a.get("/api/v1/top?stacks=0")
	if err != nil {
		return 0, err
	}
	var x struct {
		Processes []struct {
			PID   int   `json:"pid"`
			Inuse int64 `json:"inuse_bytes"`
		} `json:"processes"`
	}
	if err := json.Unmarshal(text, &x); err != nil {
		return 0, err
	}
	for _, p := range x.Processes {
		if p.PID == pid {
			return p.Inuse, nil
		}
	}
	return -1, nil
}

// targets are stores that do what none should: one that is slow, one that lies, one that
// is not there.
func (s *soak) targets() (args []string) {
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-time.After(20 * time.Second):
		}
	}))
	var n atomic.Int64
	lying := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch n.Add(1) % 4 {
		case 0: // all is well, which is a lie
			w.Write(bytes.Repeat([]byte("lies"), 1<<20))
		case 1:
			w.WriteHeader(http.StatusInternalServerError)
		case 2:
			w.Header().Set("Retry-After", "99999999")
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			panic(http.ErrAbortHandler)
		}
	}))
	dead, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		s.Fatal(err)
	}
	dead.Close()
	s.Cleanup(func() { slow.CloseClientConnections(); slow.Close(); lying.Close() })
	return []string{"--push-otlp", slow.URL, "--push-otlp", lying.URL, "--push-otlp", "grpc://" + dead.Addr().String(),
		"--push-interval", "2s", "--push-queue-max", "4MiB"}
}

// killed starts a target and kills it in the midst of what it does.
func (s *soak) killed(kit *testcuda.Kit) error {
	ctx, cancel := context.WithTimeout(s.end, 10*time.Minute)
	defer cancel()
	p, err := testcuda.Start(ctx, kit, testcuda.Workload, testcuda.Options{})
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.Send("init; repeat 1000 cuMemAlloc_v2 4096+i; repeat 100 cuMemAllocAsync 1m; fail cuMemAlloc_v2 1 2; expect 2 cuMemAlloc_v2 77m; sleep 60000"); err != nil {
		return err
	}
	select {
	case <-s.end.Done():
	case <-time.After(500 * time.Millisecond):
	}
	return p.Signal(syscall.SIGKILL)
}

// storm allocates and frees as fast as one thread can: 40,000 events, which have room in
// the ring buffer even if nobody reads them meanwhile.
func (s *soak) storm(kit *testcuda.Kit) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	p, err := testcuda.Start(ctx, kit, testcuda.Workload, testcuda.Options{})
	if err != nil {
		return err
	}
	defer p.Close()
	_, err = p.Run("init; repeat 20000 cuMemAlloc_v2 4096; free all")
	return err
}

// runsShort runs so many short processes, each with one allocation.
func (s *soak) runsShort(processes, libraries int) error {
	cmd := exec.CommandContext(s.end, s.path("churn"), "short", s.path("lib"), strconv.Itoa(libraries), strconv.Itoa(processes))
	cmd.Stdin = strings.NewReader(strings.Repeat("\n", 10))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// second starts another agent, and kills it.
func (s *soak) second() error {
	a, err := s.starts(nil, "--stacks", "fp", "--record", s.path("second"), "--record-max", "16MiB", "--record-old", "1")
	if err != nil {
		return err
	}
	time.Sleep(time.Second)
	a.cmd.Process.Kill()
	a.cmd.Wait()
	return nil
}

// fill fills the disk of the recording, and makes room again.
func (s *soak) fill() error {
	filler := s.path("disk", "filler")
	_ = os.WriteFile(filler, make([]byte, 64<<20), 0o600) // as much as there is room for
	select {
	case <-s.end.Done():
	case <-time.After(3 * time.Second):
	}
	return os.Remove(filler)
}

// An agent runs for months among short processes, storms, targets and agents that are
// killed, a disk that is full again and again, stores that are slow, dead and lie, and an
// NVML that hangs. It does not grow, counts what it loses, and its totals are exact at the
// end.
func TestSoak(t *testing.T) {
	const libraries, memoryLimit = 20, 512 // MiB
	s := &soak{T: t, dir: t.TempDir(), done: map[string]*atomic.Int64{}}
	lasts := length(t)
	s.builds()
	sources := "../../internal/source/session/testdata/"
	s.compile(s.path("churn"), sources+"churn.c")
	s.compile(s.path("libcuda.so.1"), sources+"churnlib.c")
	library, err := os.ReadFile(s.path("libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range libraries {
		own := s.path("lib", strconv.Itoa(i))
		if err := errors.Join(os.MkdirAll(own, 0o755), os.WriteFile(filepath.Join(own, "libcuda.so.1"), library, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	nvml := s.path("nvml")
	if err := errors.Join(os.Mkdir(nvml, 0o755), os.WriteFile(filepath.Join(nvml, "nvml.c"), []byte(stuckNVML), 0o644), os.Mkdir(s.path("disk"), 0o700)); err != nil {
		t.Fatal(err)
	}
	s.compile(filepath.Join(nvml, "libnvidia-ml.so.1"), filepath.Join(nvml, "nvml.c"))
	if err := syscall.Mount("none", s.path("disk"), "tmpfs", 0, "size=24m"); err != nil {
		t.Fatalf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(s.path("disk"), syscall.MNT_DETACH) })
	kit := testcuda.Get(t)

	args := append(s.targets(), "--record", s.path("disk", "recordings"), "--record-max", "16MiB", "--record-old", "1",
		"--oom-dir", s.path("oom"), "--oom-max", "5", "--memory-limit", strconv.Itoa(memoryLimit)+"MiB", "--per-process-metrics", "100", "--pprof",
		"--alert", "process.live > 1MiB", "--alert", "leak")
	a, err := s.starts([]string{"LD_LIBRARY_PATH=" + nvml}, args...)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.cmd.Wait() }()
	t.Cleanup(func() { a.cmd.Process.Kill() })
	steady := exec.Command(s.path("churn"), "long", s.path("lib", "0", "libcuda.so.1"), "20000")
	in, _ := steady.StdinPipe()
	out, _ := steady.StdoutPipe()
	if err := steady.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { steady.Process.Kill(); steady.Wait() })
	hear := lines(out)
	hear(t)
	time.Sleep(2 * time.Second) // its library has probes
	fmt.Fprintln(in, "go")
	hear(t)
	hear(t) // every stack has come by twice

	var cancel context.CancelFunc
	s.end, cancel = context.WithTimeout(context.Background(), lasts)
	defer cancel()
	began := time.Now()
	s.again("short processes", 0, func() error { return s.runsShort(100, libraries) })
	s.again("storms", 4*time.Second, func() error { return s.storm(kit) })
	s.again("killed targets", time.Second, func() error { return s.killed(kit) })
	s.again("killed agents", 5*time.Second, s.second)
	s.again("full disks", 5*time.Second, s.fill)
	s.again("reloads", 7*time.Second, func() error { return a.cmd.Process.Signal(syscall.SIGHUP) })
	for _, path := range []string{"/metrics", "/debug/pprof/gpumem", "/api/v1/top", "/healthz"} {
		s.again("GET "+path, 2*time.Second, func() error { _, err := a.get(path); return err })
	}
	var first, now footprint.Footprint
	most := 0 // MiB resident
	var lives []int
	for part := range 10 {
		// What comes and goes is at its most; but of memory, which many have for a
		// moment, what is left when it is least.
		live := memoryLimit
		now = footprint.Footprint{}
		looks := 0
		for end := began.Add(lasts * time.Duration(part+1) / 10); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
			f, err := footprint.Of(a.cmd.Process.Pid)
			if err != nil {
				t.Fatalf("the agent is gone: %v\n%s", err, a.log)
			}
			now = now.Most(f)
			if looks++; looks%7 == 0 { // each is a collection
				live = min(live, a.live(t))
			}
		}
		most = max(most, now.Resident)
		t.Logf("%3.0f s: %+v, %d MiB live", time.Since(began).Seconds(), now, live)
		lives = append(lives, live)
		if part < 3 {
			first = first.Most(now)
		}
	}
	if path := os.Getenv("SOAK_HEAP"); path != "" { // for whoever looks for what grows
		if text, err := a.get("/debug/pprof/heap"); err != nil || os.WriteFile(path, text, 0o600) != nil {
			t.Errorf("no heap profile: %v", err)
		}
	}
	cancel()
	s.waits.Wait()
	for _, what := range now.Grown(first, memoryLimit) {
		t.Error(what)
	}
	// A KiB kept of each process that comes would be more.
	if last, first := slices.Min(lives[7:]), slices.Max(lives[:3]); last > first+48 {
		t.Errorf("%d MiB are live, %d at first", last, first)
	}
	if most > memoryLimit {
		t.Errorf("%d MiB were resident, of %d that it may have", most, memoryLimit)
	}
	for what, n := range s.done {
		t.Logf("%d %s", n.Load(), what)
		if n.Load() == 0 {
			t.Errorf("no %s", what)
		}
	}

	fmt.Fprintln(in, "go")
	held, err := strconv.ParseInt(hear(t), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	got := int64(-1)
	for end := time.Now().Add(5 * time.Minute); got != held && time.Now().Before(end); time.Sleep(time.Second) {
		if got, err = a.inuse(steady.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	lost, err := a.losses()
	if err != nil {
		t.Fatal(err)
	}
	// A machine that is too slow for the storms loses events, and says so.
	if got != held && lost["events_ring_full"] == 0 {
		t.Errorf("the process that lived all the time holds %d bytes, traced %d, and no event is counted as lost", held, got)
	}
	for name, n := range lost {
		if n != 0 {
			t.Logf("%s = %d", name, n)
		}
	}
	for _, name := range []string{"calls_invalid", "stacks_dropped", "libraries_not_probed", "processes_not_traced", "stacks_unseen", "driver_full"} {
		if n, ok := lost[name]; n != 0 || !ok {
			t.Errorf("%s = %d, told %v", name, n, ok)
		}
	}
	// What these lost is counted.
	for _, name := range []string{"records_not_recorded", "agent_late", "driver_readings_late"} {
		if lost[name] == 0 {
			t.Errorf("%s = 0", name)
		}
	}
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ends with %v\n%s", err, a.log)
		}
	case <-time.After(5 * time.Minute):
		t.Errorf("it does not end\n%s", a.log)
	}
	if all, _ := filepath.Glob(s.path("oom", "oom-*")); len(all) != 2*5 {
		t.Errorf("%d files of out-of-memory reports, want those of 5", len(all))
	}
	recordings, _ := filepath.Glob(s.path("disk", "recordings", "*.gmt"))
	if len(recordings) == 0 || len(recordings) > 2 {
		t.Errorf("recordings %q", recordings)
	}
	for _, path := range recordings {
		if out, err := exec.Command(s.binary, "report", path).CombinedOutput(); err != nil {
			t.Errorf("report %s: %v: %.500s", path, err, out)
		}
	}
}

// lines returns what returns the next line of a program's output.
func lines(out io.Reader) func(*testing.T) string {
	all := make(chan string)
	go func() {
		defer close(all)
		var line []byte
		b := make([]byte, 1)
		for {
			if _, err := out.Read(b); err != nil {
				return
			}
			if b[0] != '\n' {
				line = append(line, b[0])
				continue
			}
			all <- string(line)
			line = nil
		}
	}()
	return func(t *testing.T) string {
		t.Helper()
		select {
		case text, ok := <-all:
			if !ok {
				t.Fatal("the program ended")
			}
			return text
		case <-time.After(5 * time.Minute):
			t.Fatal("the program says nothing")
		}
		return ""
	}
}
