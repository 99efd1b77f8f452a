package tenant

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// This process says of itself what the kernel does.
func TestOf(t *testing.T) {
	who, err := NewReader().Of(os.Getpid())
	if err != nil || !strings.HasPrefix(who.Command, os.Args[0]) || who.User == "" {
		t.Errorf("%+v, %v", who, err)
	}
	if _, err := NewReader().Of(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no process: %v", err)
	}
}

func TestWithin(t *testing.T) {
	tokens, hang := make(chan struct{}, 1), make(chan struct{})
	if v, ok := within(tokens, time.Minute, func() int { return 7 }); v != 7 || !ok {
		t.Errorf("%d, %v", v, ok)
	}
	for len(tokens) > 0 {
		runtime.Gosched()
	}
	if _, ok := within(tokens, time.Millisecond, func() int { <-hang; return 7 }); ok {
		t.Error("waited for what hangs")
	}
	if _, ok := within(tokens, time.Minute, func() int { t.Error("called"); return 7 }); ok {
		t.Error("called beside one that hangs, with one token")
	}
	close(hang)
}

// Two processes that come together have their users' names, though each is looked up by
// itself: the ranks of a job begin at one moment.
func TestUsersTogether(t *testing.T) {
	r := NewReader()
	for range maxLookups - 1 {
		r.lookups <- struct{}{} // another looks somebody up
	}
	if name := r.user(0); name != "root" {
		t.Errorf("root is called %q", name)
	}
}

// begin starts a process that waits, in a control group below a mount of the unified
// hierarchy, and returns its PID.
func begin(t *testing.T, group string, environ ...string) int {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.Env = append(environ, "READY=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if group != "" {
		root, err := os.MkdirTemp("", "cgroup") // t.TempDir would remove the groups of the machine, if they stayed mounted
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(root) })
		if err := syscall.Mount("none", root, "cgroup2", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(root, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
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
	return cmd.Process.Pid
}

// Who a process belongs to is in its control group and its environment.
func TestOfGroup(t *testing.T) {
	for group, want := range map[string]snapshot.Who{
		"/kubepods.slice/kubepods-pod" + uidUnit + ".slice/cri-containerd-" + id + ".scope": {PodUID: uid, ContainerID: id, Service: "llm", Job: "12"},
		"/system.slice/jupyter.service":                              {Service: "llm", Job: "12"},
		"/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0": {Service: "llm", Job: "4711"},
	} {
		want.User, want.Command = "root", "sleep 60"
		if got, err := NewReader().Of(begin(t, group, "OTEL_SERVICE_NAME=llm", "SLURM_JOB_ID=12", "OTHER=x")); got != want || err != nil {
			t.Errorf("%s: %+v, %v\nwant %+v", group, got, err, want)
		}
	}
	if got, err := NewReader().Of(begin(t, "/system.slice/jupyter.service")); got.Service != "jupyter.service" || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// A rank is what a launcher says, if that can be true. Nothing else of an environment is kept.
func TestRank(t *testing.T) {
	type ranks struct{ rank, local, size string }
	for _, x := range []struct {
		environ string
		want    ranks
	}{
		{"RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 SLURM_PROCID=1 SLURM_NTASKS=2", ranks{"5", "1", "8"}},
		{"RANK=5 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NTASKS=2", ranks{"1", "0", "2"}},
		{"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4", ranks{"3", "", "4"}},
		{"PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=00", ranks{"0", "0", "2"}},
		{"RANK=8 WORLD_SIZE=8", ranks{}},
		{"RANK=-1 WORLD_SIZE=8", ranks{}},
		{"RANK=1 WORLD_SIZE=99999999999999999999", ranks{}},
		{"RANK=1\x1b[2J WORLD_SIZE=8", ranks{}},
		{"RANK=1 WORLD_SIZE=8 LOCAL_RANK=" + strings.Repeat("9", 1<<16), ranks{"1", "", "8"}},
		{"WORLD_SIZE=8", ranks{}},
	} {
		environ := append(strings.Fields(x.environ), "AWS_SECRET_ACCESS_KEY=hunter2", "MASTER_RANK=hunter2")
		who, err := NewReader().Of(begin(t, "", environ...))
		if got := (ranks{who.Rank, who.LocalRank, who.WorldSize}); got != x.want || err != nil {
			t.Errorf("%s: %+v, %v", x.environ, got, err)
		}
		for _, text := range who.Fields() {
			if strings.Contains(*text, "hunter2") {
				t.Errorf("a secret is kept: %+v", who)
			}
		}
	}
}

// What a process says of itself is bounded.
func TestHostileEnvironment(t *testing.T) {
	got, err := NewReader().Of(begin(t, "", "OTEL_SERVICE_NAME=<b>\n"+strings.Repeat("é", 50_000)+"\xff", "SLURM_JOB_ID=1/../2"))
	want := "<b>\n" + strings.Repeat("é", (MaxName-4)/2)
	if got.Service != want || got.Job != "" || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := NewReader().Of(begin(t, "", "OTEL_SERVICE_NAME=\xff\xfe")); got.Service != "" || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}
