package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// binary is the program under test, built once: what users run.
var binary string

func TestMain(m *testing.M) {
	if signal.Ignored(syscall.SIGHUP) { // under nohup, which what it starts would inherit
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "gpumemtrace-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil { // another user runs it too
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		binary = filepath.Join(dir, "gpumemtrace")
		// Without what a debugger needs, it is linked in half the time.
		if out, err := exec.Command("go", "build", "-ldflags=-w", "-o", binary, ".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the program under test: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// needTracing ends a test that cannot trace here: it fails in CI, where a skip
// would hide a gap.
func needTracing(t *testing.T) {
	t.Helper()
	missing, err := probes.MissingCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case len(missing) == 0:
	case os.Getenv("CI") == "true":
		t.Fatalf("cannot trace: %q is missing", missing)
	default:
		t.Skipf("cannot trace: %q is missing", missing)
	}
}

// An invocation is one run of the program.
type invocation struct {
	*testing.T
	cmd            *exec.Cmd
	stdout, stderr buffer
	exited         chan struct{}
}

// A buffer may be read while a process writes to it.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// command prepares an invocation in a directory of its own.
func command(t *testing.T, args ...string) *invocation {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	v := &invocation{T: t, cmd: exec.CommandContext(ctx, binary, args...), exited: make(chan struct{})}
	v.cmd.Dir = t.TempDir()
	v.cmd.Stdout, v.cmd.Stderr = &v.stdout, &v.stderr
	v.cmd.WaitDelay = time.Second // a command that it started may keep them open
	return v
}

func (v *invocation) start() *invocation {
	v.Helper()
	if err := v.cmd.Start(); err != nil {
		v.Fatal(err)
	}
	go func() {
		v.cmd.Wait()
		close(v.exited)
	}()
	v.Cleanup(func() {
		v.cmd.Process.Kill()
		<-v.exited
	})
	return v
}

// tracing starts a trace and returns when its probes are on. Stacks come by
// frame pointers unless the arguments say more: that starts at once.
func tracing(t *testing.T, args ...string) *invocation {
	t.Helper()
	needTracing(t)
	ready := filepath.Join(t.TempDir(), "ready")
	v := command(t, append([]string{"--stacks", "fp", "--ready-file", ready}, args...)...).start()
	v.until("it is ready", func() bool {
		_, err := os.Stat(ready)
		return err == nil
	})
	return v
}

// until waits for something that happens while the program runs.
func (v *invocation) until(what string, f func() bool) {
	v.Helper()
	for end := time.Now().Add(5 * time.Minute); !f(); time.Sleep(5 * time.Millisecond) {
		select {
		case <-v.exited:
			if f() {
				return
			}
			v.Fatalf("exit code %d before %s; stderr:\n%s", v.code(), what, v.stderr.String())
		default:
		}
		if time.Now().After(end) {
			v.Fatalf("waited five minutes until %s; stderr:\n%s", what, v.stderr.String())
		}
	}
}

func (v *invocation) signal(s syscall.Signal) {
	v.Helper()
	if err := v.cmd.Process.Signal(s); err != nil {
		v.Fatal(err)
	}
}

// code is the exit code as a shell tells it. The program has ended.
func (v *invocation) code() int {
	status := v.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// ends waits for the end and checks the exit code. No error may look like a
// crash of the program.
func (v *invocation) ends(code int) *invocation {
	v.Helper()
	select {
	case <-v.exited:
	case <-time.After(5 * time.Minute):
		v.Fatalf("it runs on; stderr:\n%s", v.stderr.String())
	}
	if v.code() != code {
		v.Errorf("exit code %d, want %d; stderr:\n%s", v.code(), code, v.stderr.String())
	}
	for _, sign := range []string{"goroutine ", "panic:", "runtime error", ".go:"} {
		if strings.Contains(v.stderr.String(), sign) {
			v.Errorf("%q in stderr:\n%s", sign, v.stderr.String())
		}
	}
	return v
}

// says checks that the last line of stderr, which is what the program has to
// say about its failure, holds every text.
func (v *invocation) says(texts ...string) {
	v.Helper()
	lines := strings.Split(strings.TrimSpace(v.stderr.String()), "\n")
	last := lines[len(lines)-1]
	if v.code() == exitUsage && len(lines) > 1 && strings.HasPrefix(last, "Try ") {
		last = lines[len(lines)-2]
	}
	if !strings.HasPrefix(last, "gpumemtrace: ") || len(last) > 400 {
		v.Errorf("stderr ends with %q, want one sentence", last)
	}
	for _, text := range texts {
		if !strings.Contains(last, text) {
			v.Errorf("stderr says %q, want %q in it", last, text)
		}
	}
}

// workload starts a scripted stand-in program, which has its context.
func workload(t *testing.T, program testcuda.Program, opts testcuda.Options, commands ...string) *testcuda.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	p, err := testcuda.Start(ctx, testcuda.Get(t), program, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if len(opts.Args) == 0 {
		script(t, p, append([]string{"echo up"}, commands...)...)
	}
	return p
}

func script(t *testing.T, p *testcuda.Process, commands ...string) {
	t.Helper()
	if _, err := p.Run(commands...); err != nil {
		t.Fatal(err)
	}
}

// pid is a target's -p argument.
func pid(p *testcuda.Process) string { return fmt.Sprint(p.PID()) }

// exists reports whether a file is there.
func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// mount puts a small file system at a new directory.
func mount(t *testing.T, options string) string {
	t.Helper()
	needTracing(t)
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, options); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("mount a tmpfs: %v", err)
		}
		t.Skipf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
