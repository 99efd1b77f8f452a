//go:build soak

package soak

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/proc/footprint"
	"github.com/gpumemtrace/gpumemtrace/internal/testcuda"
)

// One unprivileged user runs a thousand processes that do the worst that these tests know:
// they allocate and free without a pause, keep many small allocations, each with stacks of
// its own, and start programs again and again. Beside them all calls of a neighbour count,
// each with its stack and its names, and the agent keeps to its limits.
func TestStrangers(t *testing.T) {
	const (
		stranger, neighbour = 65534, 65533
		holders             = 900 // keep what they allocated
		storms              = 40  // allocate and free
		starters            = 60  // start a program after the other
		memoryLimit         = 400 // MiB
		cpuLimit            = 60  // % of a core
		rounds              = 40  // of the neighbour's calls
		calls               = 100 // of a round
	)
	if os.Getuid() != 0 {
		t.Fatal("it takes root to be several users")
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
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()

	// A shell of the stranger's has the processes; they end with its group.
	var script strings.Builder
	paths := func(n, i int) string {
		return strings.NewReplacer("0", "l", "1", "r").Replace(fmt.Sprintf("%0*b", n, i))
	}
	workload := kit.Path(testcuda.Workload)
	for i := range holders {
		fmt.Fprintf(&script, "%s 'init; via %s repeat 20 cuMemAlloc_v2 1; via %s repeat 180 cuMemAlloc_v2 1; sleep 600000' >/dev/null &\n", workload, paths(10, i), paths(11, i))
	}
	for i := range storms {
		fmt.Fprintf(&script, "%s 'init; repeat 1000000000 { via %s cuMemAlloc_v2 1; cuMemFree_v2 }' >/dev/null &\n", workload, paths(8, i))
	}
	for i := range starters {
		fmt.Fprintf(&script, "while :; do %s 'init; via %s repeat 50 cuMemAlloc_v2 1' >/dev/null; done &\n", workload, paths(9, i))
	}
	script.WriteString("echo up; wait\n")
	crowd := exec.CommandContext(ctx, "nice", "-n", "10", "sh")
	crowd.Stdin = strings.NewReader(script.String())
	crowd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	if err := crowd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { syscall.Kill(-crowd.Process.Pid, syscall.SIGKILL); crowd.Wait() }()

	p, err := testcuda.Start(ctx, kit, testcuda.Workload, testcuda.Options{User: neighbour})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Run("init"); err != nil {
		t.Fatal(err)
	}
	before, began := running(t, a.cmd.Process.Pid), time.Now()
	for i := range rounds {
		// Each round has a stack of its own, which comes up once.
		if _, err := p.Run(fmt.Sprintf("via %s repeat %d cuMemAlloc_v2 4096", paths(6, i), calls)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
	took := 100 * float64(running(t, a.cmd.Process.Pid)-before) / float64(time.Since(began))
	f, err := footprint.Of(a.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	n, err := exec.Command("pgrep", "-c", "-u", strconv.Itoa(stranger)).Output()
	t.Logf("%s processes of the stranger; the agent has %d MiB, and took %.0f %% of a core; %v", strings.TrimSpace(string(n)), f.Resident, took, err)
	if f.Resident > memoryLimit {
		t.Errorf("%d MiB are resident, want %d at most", f.Resident, memoryLimit)
	}
	if took > cpuLimit {
		t.Errorf("it took %.0f %% of a core, want %d at most", took, cpuLimit)
	}

	var inuse int64
	for end := time.Now().Add(20 * time.Second); inuse != rounds*calls*4096; time.Sleep(time.Second) {
		if inuse, err = a.inuse(p.PID()); err != nil {
			t.Error(err)
		}
		if time.Now().After(end) {
			t.Errorf("the neighbour has %d bytes, want %d", inuse, rounds*calls*4096)
			break
		}
	}
	text, err := a.get(fmt.Sprintf("/debug/pprof/gpumem?debug=1&pid=%d", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.path("profile"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	stacks := 0
	for _, stack := range strings.Split(string(text), "\n\n") {
		if strings.Contains(stack, "via_") && strings.Contains(stack, "main") {
			stacks++
		}
	}
	lost, err := a.losses()
	t.Logf("%d paragraphs of stacks; lost: %v, %v", stacks, some(lost), err)
	for _, m := range regexp.MustCompile(`The agent is at a limit[^\n]*`).FindAllString(a.log.String(), -1) {
		t.Log(m)
		if !strings.Contains(m, fmt.Sprintf("user %d", stranger)) {
			t.Errorf("somebody else is shed of: %s", m)
		}
	}
	t.Logf("%.3000s", text)
}
