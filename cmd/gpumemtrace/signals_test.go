package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// A connection that drops costs no profile, however often it is told of: the
// terminal sends SIGHUP, and the shell once more; a service manager sends it
// right after SIGTERM, or SIGTERM after it.
func TestHangup(t *testing.T) {
	for _, sent := range [][]syscall.Signal{
		{syscall.SIGHUP}, {syscall.SIGHUP, syscall.SIGHUP, syscall.SIGHUP},
		{syscall.SIGTERM, syscall.SIGHUP}, {syscall.SIGHUP, syscall.SIGTERM}, {syscall.SIGINT, syscall.SIGHUP},
	} {
		p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
		v := tracing(t, "-p", pid(p), "-o", "x.pb.gz")
		script(t, p, leave23)
		for _, sig := range sent {
			v.signal(sig)
		}
		v.ends(exitDone)
		want23(t, read(t, filepath.Join(v.cmd.Dir, "x.pb.gz")))
	}
}

// Under nohup a trace outlives the terminal.
func TestNohup(t *testing.T) {
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	needTracing(t)
	ready := filepath.Join(t.TempDir(), "ready")
	v := command(t)
	v.cmd = exec.Command("nohup", binary, "--stacks", "fp", "--ready-file", ready, "-p", pid(p), "-o", "x.pb.gz")
	v.cmd.Dir, v.cmd.Stdout, v.cmd.Stderr = t.TempDir(), &v.stdout, &v.stderr
	v.start().until("it is ready", func() bool { return exists(t, ready) })
	v.signal(syscall.SIGHUP)
	v.signal(syscall.SIGUSR1)
	v.until("it goes on", func() bool { return exists(t, filepath.Join(v.cmd.Dir, "x.000001.pb.gz")) })
	script(t, p, leave23)
	v.signal(syscall.SIGINT)
	v.ends(exitDone)
	want23(t, read(t, filepath.Join(v.cmd.Dir, "x.pb.gz")))
}

// SIGTERM and SIGHUP end the command too: whoever sent them means both. A
// command that ignores SIGHUP runs on, and its exit code is still ours.
func TestEndCommand(t *testing.T) {
	kit := testcuda.Get(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		v := tracing(t, "-o", "x.pb.gz", "--", kit.Path(testcuda.WorkloadLate), leave23+";ready;sleep 60000")
		v.until("the command allocated", func() bool { return strings.Contains(v.stdout.String(), "ready") })
		v.signal(sig)
		v.ends(128 + int(sig))
		if !exists(t, filepath.Join(v.cmd.Dir, "x.pb.gz")) {
			t.Errorf("%v: no profile", sig)
		}
	}
	v := tracing(t, "-o", "x.pb.gz", "--", "sh", "-c", `trap "" HUP; echo ready; read line; exit 7`)
	v.until("the command runs", func() bool { return strings.Contains(v.stdout.String(), "ready") })
	v.signal(syscall.SIGHUP)
	v.ends(7)
}

// Nobody may read what the trace has to say any more, as when a connection
// without a terminal drops: the trace goes on.
func TestNobodyReads(t *testing.T) {
	needTracing(t)
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ready := filepath.Join(t.TempDir(), "ready")
	v := command(t, "--stacks", "fp", "--ready-file", ready, "-p", pid(p), "-o", "x.pb.gz")
	v.cmd.Stderr = w
	v.start()
	w.Close()
	v.until("it is ready", func() bool { return exists(t, ready) })
	r.Close()
	script(t, p, leave23)
	v.signal(syscall.SIGINT)
	v.ends(exitDone)
	want23(t, read(t, filepath.Join(v.cmd.Dir, "x.pb.gz")))
}
