package workload

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
)

const (
	id      = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	other   = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
	uid     = "2c48913c-b29f-11e7-9350-020968147796"
	uidUnit = "2c48913c_b29f_11e7_9350_020968147796"
)

// begin starts a process that waits, in a control group below a mount of the unified
// hierarchy, and returns it as events name it.
func begin(t *testing.T, group string, environ ...string) event.Process {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.Env = append(environ, "READY=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if group != "" {
		root := t.TempDir()
		if err := syscall.Mount("none", root, "cgroup2", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Unmount(root, 0) })
		parts := strings.Split(strings.Trim(group, "/"), "/")
		for i := range parts {
			dir := filepath.Join(root, filepath.Join(parts[:i+1]...))
			if err := os.Mkdir(dir, 0o755); err == nil {
				t.Cleanup(func() {
					for range 100 { // until the process has left it
						if os.Remove(dir) == nil {
							return
						}
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
		}
		dir, err := os.Open(filepath.Join(root, group))
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	// Its environment is there a moment after it has begun.
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Millisecond) {
		if set, err := proc.Environ(cmd.Process.Pid, "READY"); err == nil && len(set) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no environment after five minutes")
		}
	}
	ticks, err := proc.StartTicks(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return event.Process{PID: uint32(cmd.Process.Pid), Start: ticks * event.StartUnit}
}

// end ends a process and waits until it is gone.
func end(t *testing.T, p event.Process) {
	t.Helper()
	syscall.Kill(int(p.PID), syscall.SIGKILL)
	var status syscall.WaitStatus
	syscall.Wait4(int(p.PID), &status, 0, nil)
}

// wait asks until all is known.
func wait(t *testing.T, f *Finder, p event.Process) Workload {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if w, ok := f.Of(int(p.PID), p.Start); ok {
			return w
		}
	}
	t.Fatal("nothing known after five minutes")
	return Workload{}
}

func finder(t *testing.T, sockets ...string) *Finder {
	t.Helper()
	f := New(Options{Node: "gpu7", Sockets: append([]string{}, sockets...)})
	t.Cleanup(f.Close)
	return f
}

func lost(f *Finder, name string) uint64 {
	for _, c := range f.Loss() {
		if c.Name == name {
			return c.Value
		}
	}
	panic(name)
}

func TestProcessOfPod(t *testing.T) {
	var asked atomic.Int32
	socket := serveCRI(t, func(string, []byte) ([]byte, error) {
		asked.Add(1)
		return containerOf(id, podLabels(uid)), nil
	})
	f := finder(t, filepath.Join(t.TempDir(), "none"), socket)
	group := "/kubepods.slice/kubepods-pod" + uidUnit + ".slice/cri-containerd-" + id + ".scope"
	p := begin(t, group, "OTEL_SERVICE_NAME=llm", "SLURM_JOB_ID=12", "OTHER=x")
	want := Workload{"gpu7", snapshot.Who{User: "root", Command: "sleep 60", Namespace: "research", Pod: "train-0", PodUID: uid, Container: "worker", ContainerID: id, Service: "llm", Job: "12"}}
	if got := wait(t, f, p); got != want {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	for range 100 {
		f.Of(int(p.PID), p.Start)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the runtime was asked %d times for one container", n)
	}
	// It stays known, and is nobody else's.
	end(t, p)
	if got, ok := f.Of(int(p.PID), p.Start); !ok || got != want {
		t.Errorf("after its end %+v, %v", got, ok)
	}
	if got := wait(t, f, event.Process{PID: p.PID, Start: p.Start + event.StartUnit}); got != (Workload{Node: "gpu7"}) {
		t.Errorf("another process by its pid: %+v", got)
	}
	if n := lost(f, "workloads_ended"); n != 1 {
		t.Errorf("workloads_ended %d", n)
	}
}

func TestProcessWithoutContainer(t *testing.T) {
	f := finder(t)
	for group, want := range map[string]Workload{
		"/system.slice/jupyter.service":                              {"gpu7", snapshot.Who{Service: "jupyter.service", Job: "12", User: "root", Command: "sleep 60"}},
		"/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0": {"gpu7", snapshot.Who{Job: "4711", User: "root", Command: "sleep 60"}},
	} {
		if got := wait(t, f, begin(t, group, "SLURM_JOB_ID=12")); got != want {
			t.Errorf("%s: %+v\nwant %+v", group, got, want)
		}
	}
}

// What a process says of itself is bounded.
func TestHostileEnvironment(t *testing.T) {
	f := finder(t)
	got := wait(t, f, begin(t, "", "OTEL_SERVICE_NAME=<b>\n"+strings.Repeat("é", 50_000)+"\xff", "SLURM_JOB_ID=1/../2"))
	want := "<b>\n" + strings.Repeat("é", (tenant.MaxName-4)/2)
	if got.Service != want || got.Job != "" {
		t.Errorf("%+v", got)
	}
	if got := wait(t, f, begin(t, "", "OTEL_SERVICE_NAME=\xff\xfe")); got.Service != "" {
		t.Errorf("%+v", got)
	}
}

// The runtime knows the container as one of another pod, or not at all, or is silent.
func TestLyingRuntime(t *testing.T) {
	group := "/kubepods.slice/kubepods-pod" + uidUnit + ".slice/crio-" + id + ".scope"
	f := finder(t, serveCRI(t, func(string, []byte) ([]byte, error) { return containerOf(id, podLabels("another")), nil }))
	p := begin(t, group)
	if got, want := wait(t, f, p), (Workload{"gpu7", snapshot.Who{PodUID: uid, ContainerID: id, User: "root", Command: "sleep 60"}}); got != want {
		t.Errorf("%+v", got)
	}
	if n := lost(f, "workloads_unnamed"); n != 1 {
		t.Errorf("workloads_unnamed %d", n)
	}
}

// A runtime that is silent keeps nobody waiting, and is not waited for at the end.
func TestSlowRuntime(t *testing.T) {
	release := make(chan struct{})
	f := finder(t, serveCRI(t, func(string, []byte) ([]byte, error) { <-release; return nil, nil }))
	defer close(release)
	p := begin(t, "/kubepods.slice/kubepods-pod"+uidUnit+".slice/crio-"+id+".scope")
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Millisecond) {
		w, ok := f.Of(int(p.PID), p.Start)
		if ok || w.Pod != "" {
			t.Fatalf("%+v, %v", w, ok)
		}
		if w.PodUID == uid { // what the path says
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%+v after five minutes", w)
		}
	}
	f.Close()
}

// However many are asked for, so many are kept, and each that can be is found again.
func TestFinderIsBounded(t *testing.T) {
	f := finder(t)
	p := begin(t, "")
	for i := range uint64(3 * maxProcesses) {
		f.Of(1<<29+int(i), i)
	}
	f.mu.Lock()
	n := f.processes.Len()
	f.mu.Unlock()
	if n > maxProcesses {
		t.Errorf("%d processes kept", n)
	}
	if got := wait(t, f, p); got.User != "root" {
		t.Errorf("%+v", got)
	}
	before := runtime.NumGoroutine()
	f.Close()
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines, %d before", after, before)
	}
}

func TestFields(t *testing.T) {
	var got []string
	for name, value := range (Workload{"a", snapshot.Who{Namespace: "b", Pod: "c", PodUID: "d", Container: "e", ContainerID: "f", Service: "g", Job: "h", User: "i", Command: "j"}}).Fields() {
		got = append(got, name+"="+value)
	}
	if want := "node=a namespace=b pod=c pod_uid=d container=e container_id=f service=g job=h user=i"; strings.Join(got, " ") != want {
		t.Errorf("%q", got)
	}
}
