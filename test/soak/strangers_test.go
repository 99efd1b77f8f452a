//go:build soak

package soak

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/footprint"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/tenants"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

const neighbour = 65533

// One unprivileged user runs a thousand processes that do the worst that these tests know:
// they allocate and free without a pause, keep many small allocations, each with stacks of
// its own, and start programs again and again. Beside them all calls of a neighbour count,
// each with its stack and its names, and the agent keeps to its limits. So it is with a container
// of the neighbour's own user, whose processes are in control groups that it made.
func TestStrangers(t *testing.T) {
	t.Run("user", func(t *testing.T) { testStrangers(t, 65534, "") })
	t.Run("container", func(t *testing.T) { testStrangers(t, neighbour, tenants.Container(t, neighbour)) })
}

// testStrangers runs the crowd as a user, in a control group unless that is "".
func testStrangers(t *testing.T, stranger uint32, group string) {
	const (
		holders     = 900 // keep what they allocated
		storms      = 2   // allocate and free
		starters    = 98  // start a program after the other
		memoryLimit = 400 // MiB
		cpuLimit    = 20  // % of a core, of tracing
		cpuMost     = 80  // in all: hearing of mappings and of the lives of processes is beside that
		rounds      = 40  // of the neighbour's calls
		calls       = 100 // of a round
	)
	if os.Getuid() != 0 {
		t.Fatal("it takes root to be several users")
	}
	tenants.ByUser(t)
	name, enter := fmt.Sprintf("user %d", stranger), func(int) string { return "" }
	if group != "" {
		// Its groups are named as other tenants' are.
		name = "control group /docker/" + filepath.Base(group)
		own := []string{"own", fmt.Sprintf("docker/%064x", 1), "user.slice/user-7.slice"}
		enter = func(i int) string {
			dir := filepath.Join(group, own[i%len(own)])
			return fmt.Sprintf("mkdir -p %[1]s; echo 0 >%[1]s/cgroup.procs; ", dir)
		}
	}
	s := &soak{T: t, dir: t.TempDir()}
	for _, d := range []string{s.dir, filepath.Dir(s.dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.builds()
	kit, err := testcuda.Get(t).Copy(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.starts(nil, "--memory-limit", fmt.Sprint(memoryLimit, "MiB"), "--cpu-limit", fmt.Sprint(cpuLimit, "%"), "--no-cache")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { a.cmd.Process.Kill(); a.cmd.Wait() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()

	p, err := testcuda.Start(ctx, kit, testcuda.Workload, testcuda.Options{User: neighbour})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Run("init"); err != nil {
		t.Fatal(err)
	}
	// The library has probes when the crowd comes.
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if _, err := p.Run("cuMemAlloc_v2 4096"); err != nil {
			t.Fatal(err)
		}
		if n, err := a.inuse(p.PID()); err == nil && n > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nothing of the neighbour is seen")
		}
	}
	if _, err := p.Run("free all"); err != nil {
		t.Fatal(err)
	}

	// A shell of the stranger's has the processes; they end with its group.
	var script strings.Builder
	paths := func(n, i int) string {
		return strings.NewReplacer("0", "l", "1", "r").Replace(fmt.Sprintf("%0*b", n, i))
	}
	workload := kit.Path(testcuda.Workload)
	for i := range holders {
		fmt.Fprintf(&script, "{ %sexec %s 'init; via %s repeat 20 cuMemAlloc_v2 1; via %s repeat 180 cuMemAlloc_v2 1; sleep 600000' >/dev/null; } &\n", enter(i), workload, paths(10, i), paths(11, i))
	}
	for i := range storms {
		fmt.Fprintf(&script, "{ %sexec %s 'init; repeat 1000000000 { via %s cuMemAlloc_v2 1; cuMemFree_v2 }' >/dev/null; } &\n", enter(i), workload, paths(8, i))
	}
	for i := range starters {
		fmt.Fprintf(&script, "{ %swhile :; do %s 'init; via %s repeat 50 cuMemAlloc_v2 1' >/dev/null; done; } &\n", enter(i), workload, paths(9, i))
	}
	script.WriteString("echo up; wait\n")
	crowd := exec.CommandContext(ctx, "nice", "-n", "10", "sh")
	crowd.Stdin = strings.NewReader(script.String())
	crowd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	if group != "" {
		dir, err := os.Open(group)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		crowd.SysProcAttr.UseCgroupFD, crowd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	if err := crowd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { syscall.Kill(-crowd.Process.Pid, syscall.SIGKILL); crowd.Wait() }()

	var before time.Duration
	var began time.Time
	for i := range rounds {
		// Each round has a stack of its own, which comes up once.
		if _, err := p.Run(fmt.Sprintf("via %s repeat %d cuMemAlloc_v2 4096", paths(6, i), calls)); err != nil {
			t.Fatal(err)
		}
		took := taken(t, a.cmd.Process.Pid, func() { time.Sleep(time.Second) })
		if i%5 == 0 {
			t.Logf("round %d: %s", i, took)
		}
		if i == rounds*3/4 { // what is to be shed is
			before, began = running(t, a.cmd.Process.Pid), time.Now()
		}
	}
	took := 100 * float64(running(t, a.cmd.Process.Pid)-before) / float64(time.Since(began))
	f, err := footprint.Of(a.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	n, err := exec.Command("pgrep", "-c", "-u", fmt.Sprint(stranger)).Output()
	t.Logf("%s processes of the stranger; the agent has %d MiB, and took %.0f %% of a core; %v", strings.TrimSpace(string(n)), f.Resident, took, err)
	if f.Resident > memoryLimit {
		t.Errorf("%d MiB are resident, want %d at most", f.Resident, memoryLimit)
	}
	if took > cpuMost {
		t.Errorf("it took %.0f %% of a core, want %d at most", took, cpuMost)
	}

	var inuse int64
	for end := time.Now().Add(5 * time.Minute); inuse != rounds*calls*4096; time.Sleep(time.Second) {
		if inuse, err = a.inuse(p.PID()); err != nil {
			t.Error(err)
		}
		if time.Now().After(end) {
			t.Errorf("the neighbour has %d bytes, want %d", inuse, rounds*calls*4096)
			break
		}
	}
	text, err := a.get(fmt.Sprintf("/debug/pprof/gpumem?pid=%d", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	snap, err := pprof.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	whole := map[string]int64{}
	for _, x := range snap.Samples {
		var stack strings.Builder
		for _, l := range x.Stack {
			for _, line := range l.Lines {
				if letter := map[string]string{"via_left": "l", "via_right": "r", "main": "m"}[line.Function]; letter != "" {
					stack.WriteString(letter)
				}
			}
		}
		whole[stack.String()] += x.InuseObjects
	}
	for i := range rounds {
		path := []byte(paths(6, i))
		slices.Reverse(path)
		if n := whole[string(path)+"m"]; n != calls {
			t.Errorf("%d of the %d allocations of round %d have their stack", n, calls, i)
		}
	}
	lost, err := a.losses()
	t.Logf("stacks: %v; lost: %v, %v", whole, some(lost), err)
	for _, m := range regexp.MustCompile(`The agent is at a limit[^\n]*`).FindAllString(a.log.String(), -1) {
		t.Log(m)
		if !strings.Contains(m, name) {
			t.Errorf("somebody else is shed of: %s", m)
		}
	}
	if lost["stacks_shed"] == 0 {
		t.Error("nothing was shed of the stranger")
	}
}
