package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/gpu"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// needPrivilege ends a test that wants to trace where it cannot: it fails in
// CI, where a skip would hide a gap.
func needPrivilege(t *testing.T) {
	t.Helper()
	missing, err := probes.MissingCapabilities()
	if err == nil && len(missing) == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("missing capabilities: %v, %v", missing, err)
	}
	t.Skipf("missing capabilities: %v, %v", missing, err)
}

func workload(t *testing.T, libs testcuda.Libs) *testcuda.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	p, err := testcuda.Start(ctx, testcuda.Get(t), testcuda.Workload, testcuda.Options{Libs: libs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if _, err := p.Run("echo up"); err != nil { // its libraries are mapped
		t.Fatal(err)
	}
	return p
}

// The real checks, of this machine and of a process on it.
func TestRun(t *testing.T) {
	needPrivilege(t)
	kit := testcuda.Get(t)
	p := workload(t, testcuda.LibsDefault)
	r := Run(p.PID())
	wellFormed(t, r)
	for _, c := range r {
		if c.Status == Fail {
			t.Errorf("%+v", c)
		}
	}
	for _, w := range []want{
		{"attach cookies", OK, "available", ""},
		{"BTF", OK, "available", ""},
		{"capabilities", OK, "", ""},
		{"trial start", OK, "programs load and attach", ""},
		{"stacks", OK, "frames of a test call in this process were unwound", ""},
		{"cost", OK, "two traps", ""},
		{"libcuda", OK, kit.LibCUDA + " (build id ", ""},
		{"libcudart", OK, kit.LibCUDART, ""},
		{"process", OK, fmt.Sprintf("%d (workload)", p.PID()), ""},
		{"Python", OK, "none", ""},
	} {
		w.verify(t, r)
	}
	_, err := gpu.Open()
	if w := (want{"NVML", Warn, "", ""}); err != nil {
		w.verify(t, r)
	}
}

// All processes are looked at, and one library that lacks functions is told
// from one that has them.
func TestAllLibraries(t *testing.T) {
	needPrivilege(t)
	kit := testcuda.Get(t)
	old, current := workload(t, testcuda.LibsOld), workload(t, testcuda.LibsDefault)
	checks := checkLibraries(readLibraries(0, true))
	wellFormed(t, checks)
	find := func(path string) string {
		for _, c := range checks {
			if strings.HasPrefix(c.Detail, path+" (") && c.Status == OK {
				return c.Detail
			}
		}
		t.Fatalf("%s is not in %+v", path, checks)
		return ""
	}
	if text := find(kit.LibCUDAOld); !strings.Contains(text, fmt.Sprintf("%d (workload)", old.PID())) || !strings.Contains(text, "cuMemCreate") {
		t.Errorf("old libcuda: %s", text)
	}
	if text := find(kit.LibCUDA); !strings.Contains(text, fmt.Sprintf("%d (workload)", current.PID())) || strings.Contains(text, "cuMemCreate") {
		t.Errorf("libcuda: %s", text)
	}
}

// unprivileged makes this test binary print doctor's report of a process.
const unprivileged = "GPUMEMTRACE_TEST_DOCTOR_PID"

func TestMain(m *testing.M) {
	if pid := os.Getenv(unprivileged); pid != "" {
		var target int
		fmt.Sscan(pid, &target)
		if err := Run(target).WriteJSON(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Without any privilege nothing crashes, and each thing missing is named.
func TestUnprivileged(t *testing.T) {
	needPrivilege(t)
	p := workload(t, testcuda.LibsDefault)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", unprivileged, p.PID()))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	wellFormed(t, r)
	for _, w := range []want{
		{"CAP_BPF", Fail, "missing", "CAP_BPF"},
		{"CAP_PERFMON", Fail, "missing", "CAP_PERFMON"},
		{"CAP_SYS_PTRACE", Fail, "missing", "CAP_SYS_PTRACE"},
		{"trial start", Fail, "missing privilege", "root"},
		{"mappings", Fail, "permission denied", "CAP_SYS_PTRACE"},
		{"process", OK, "workload", ""},
		{"Python", Warn, "permission denied", "CAP_SYS_PTRACE"},
	} {
		w.verify(t, r)
	}
}

// spawn starts a program that prints something and then waits for its stdin.
func spawn(t *testing.T, flags uintptr, argv ...string) int {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestReadTarget(t *testing.T) {
	needPrivilege(t)
	t.Run("child PID namespace", func(t *testing.T) {
		pid := spawn(t, syscall.CLONE_NEWPID, "sh", "-c", "echo; read x")
		tg := readTarget(pid, environment{}, gpus{err: gpu.ErrNoLibrary})
		if tg.err != nil || !slices.Equal(tg.numbers, []int{pid, 1}) {
			t.Errorf("%+v", tg)
		}
	})
	t.Run("Python", func(t *testing.T) {
		out, err := exec.Command("python3", "-c", `import sys; print("%d.%d" % sys.version_info[:2])`).Output()
		if err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
		pid := spawn(t, 0, "python3", "-c", "print(flush=True); input()")
		if tg := readTarget(pid, environment{}, gpus{err: gpu.ErrNoLibrary}); tg.err != nil || tg.python != strings.TrimSpace(string(out)) {
			t.Errorf("%+v, want Python %s", tg, out)
		}
	})
	t.Run("gone", func(t *testing.T) {
		if tg := readTarget(1<<30, environment{}, gpus{err: gpu.ErrNoLibrary}); tg.err == nil {
			t.Errorf("%+v", tg)
		}
	})
	t.Run("itself", func(t *testing.T) {
		if tg := readTarget(os.Getpid(), environment{}, gpus{err: gpu.ErrNoLibrary}); tg.err == nil {
			t.Errorf("%+v", tg)
		}
	})
}
