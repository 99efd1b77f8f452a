package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// bystanders are targets whose code a trace probes.
type bystanders struct {
	all  []*testcuda.Process
	pids []int
}

func startBystanders(t *testing.T, n int) (b bystanders) {
	t.Helper()
	for range n {
		p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
		b.all, b.pids = append(b.all, p), append(b.pids, p.PID())
	}
	return b
}

// targets are arguments that trace ten of them.
func (b bystanders) targets(args ...string) []string {
	for _, p := range b.all[:10] {
		args = append(args, "-p", pid(p))
	}
	return args
}

// leftovers are breakpoints that stay: in twenty looks, none of them goes. Those of links that the
// kernel still takes off, which it may do after the tracer has ended, go one after the other.
func (b bystanders) leftovers() []probes.Leftover {
	left, _ := probes.Leftovers(b.pids)
	for same := 0; same < 20 && len(left) > 0; same++ { // each look takes 300 ms
		found, _ := probes.Leftovers(b.pids)
		n := len(left)
		if left = slices.DeleteFunc(left, func(l probes.Leftover) bool { return !slices.Contains(found, l) }); len(left) < n {
			same = 0
		}
	}
	return left
}

// run has each of them call what is probed.
func (b bystanders) run(t *testing.T) {
	t.Helper()
	for _, p := range b.all {
		script(t, p, "repeat 23 cuMemAlloc_v2 4096", "echo on")
	}
}

// manyBystanders are so many that putting a probe into all of them, and taking it out,
// takes the kernel milliseconds: what comes in between is likely to be met.
const manyBystanders = 60

// A second Ctrl-C, whenever it comes, leaves no breakpoint in any program; nor does a
// second SIGTERM of a service manager's.
func TestInsistLeavesNothing(t *testing.T) {
	needTracing(t)
	b := startBystanders(t, manyBystanders)
	twice := func(v *invocation, first, second syscall.Signal, after time.Duration) {
		t.Helper()
		v.signal(first)
		time.Sleep(after)                // any moment will do
		_ = v.cmd.Process.Signal(second) // it may have ended
		<-v.exited
		if code := v.code(); code != exitDone && code != 128+int(second) {
			t.Errorf("exit code %d; stderr:\n%s", code, v.stderr.String())
		}
		if left := b.leftovers(); len(left) > 0 {
			t.Errorf("%v, %v after the first: %d breakpoints are left, such as %v in process %d", second, after, len(left), left[0].Function, left[0].PID)
			if _, err := probes.Mend(left); err != nil {
				t.Error(err)
			}
		}
	}
	const step = 5 * time.Millisecond
	for after := time.Duration(0); after < 80*time.Millisecond; after += step {
		second := []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT}[after/step%2]
		twice(tracing(t, b.targets("-o", "x.pb.gz")...), syscall.SIGINT, second, after)
		v, _ := agentRuns(t, nil)
		twice(v, syscall.SIGTERM, syscall.SIGTERM, after)
	}
	b.run(t)
}

// Neither does one that comes while the probes go on.
func TestInsistAtStart(t *testing.T) {
	needTracing(t)
	b := startBystanders(t, manyBystanders)
	for after := time.Duration(0); after < 600*time.Millisecond; after += 25 * time.Millisecond {
		v := command(t, b.targets("--stacks", "fp", "-o", "x.pb.gz")...).start()
		time.Sleep(after) // any moment will do
		_ = v.cmd.Process.Signal(syscall.SIGINT)
		_ = v.cmd.Process.Signal(syscall.SIGTERM)
		<-v.exited
		if left := b.leftovers(); len(left) > 0 {
			t.Fatalf("%v after its start: %d breakpoints are left, such as %v in process %d", after, len(left), left[0].Function, left[0].PID)
		}
	}
}

// A tracer that is killed while its probes go on or off may leave breakpoints. doctor
// finds them, the next trace of anything removes them, and the programs run on.
func TestNextTraceMends(t *testing.T) {
	needTracing(t)
	b := startBystanders(t, manyBystanders)
	var left []probes.Leftover
	for end, try := time.Now().Add(5*time.Minute), 0; time.Now().Before(end); try++ {
		v := command(t, b.targets("--stacks", "fp", "-o", "x.pb.gz")...).start()
		v.until("it traces", func() bool { return strings.Contains(v.stderr.String(), "tracing") })
		v.signal(syscall.SIGINT)
		time.Sleep(time.Duration(try*7%100) * time.Millisecond)
		_ = v.cmd.Process.Kill() // it may have ended
		<-v.exited
		if left = b.leftovers(); len(left) > 0 {
			t.Logf("%d are left after %d tries", len(left), try+1)
			break
		}
	}
	if len(left) == 0 {
		t.Fatal("no breakpoint was left behind: the test shows nothing")
	}
	b.run(t) // with it

	least := slices.MinFunc(left, func(a, b probes.Leftover) int { return a.PID - b.PID }) // doctor's list begins with it
	if check := leftBehind(t); check.Status != "warn" || !strings.Contains(check.Detail, fmt.Sprintf("%d (workload): ", least.PID)) ||
		!strings.Contains(check.Detail, least.Function) {
		t.Errorf("doctor says %+v of %+v", check, left)
	}
	other := workload(t, testcuda.Workload, testcuda.Options{Libs: testcuda.LibsOld}, "init")
	v := tracing(t, "-p", pid(other), "--no-follow", "-o", "x.pb.gz")
	v.until("it mends", func() bool { return strings.Contains(v.stderr.String(), "left behind") })
	v.signal(syscall.SIGINT)
	v.ends(exitDone)
	if left := b.leftovers(); len(left) > 0 {
		t.Errorf("%d are left: %+v; stderr:\n%s", len(left), left, v.stderr.String())
	}
	if check := leftBehind(t); check.Status != "ok" {
		t.Errorf("doctor says %+v", check)
	}
	b.run(t)
}

type doctorCheck struct{ Group, Check, Status, Detail, Fix string }

// leftBehind is what doctor says of breakpoints.
func leftBehind(t *testing.T) doctorCheck {
	t.Helper()
	v := command(t, "doctor", "--json").start()
	<-v.exited
	var checks []doctorCheck
	if err := json.Unmarshal([]byte(v.stdout.String()), &checks); err != nil {
		t.Fatalf("%v in %s", err, v.stdout.String())
	}
	for _, c := range checks {
		if c.Group == "Breakpoints" {
			return c
		}
	}
	t.Fatalf("no such check in %s", v.stdout.String())
	return doctorCheck{}
}
