package probes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/bpf"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/tenants"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// startAs starts a program of kit as a user.
func startAs(t *testing.T, kit *testcuda.Kit, user uint32) *testcuda.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	p, err := testcuda.Start(ctx, kit, testcuda.Workload, testcuda.Options{User: user})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	run(t, p, "init")
	return p
}

// openKit returns the stand-in where every user can read it.
func openKit(t *testing.T) *testcuda.Kit {
	t.Helper()
	kit, err := testcuda.Get(t).Copy(open2all(t))
	if err != nil {
		t.Fatal(err)
	}
	return kit
}

// came returns how many allocations of a process came, and how many of them have a stack.
func came(events []event.Event, pid int) (all, stacked int) {
	for _, e := range events {
		if int(e.Proc.PID) == pid && e.Op == event.OpAlloc {
			if all++; e.Stack != 0 {
				stacked++
			}
		}
	}
	return all, stacked
}

// What is shed is stacks alone, of one process or of one user's: every call is an event,
// and what has no stack for it is counted. Stacks come again when there is room again.
func TestShed(t *testing.T) {
	needTracing(t)
	tenants.ByUser(t)
	kit := openKit(t)
	one, two, other := startAs(t, kit, nobody), startAs(t, kit, nobody), startAs(t, kit, somebody)
	tr := openTrace(t, Options{Follow: true})
	for _, p := range []*testcuda.Process{one, two, other} {
		tr.target(p.PID())
	}
	var shed uint64
	for _, step := range []struct {
		of      Consumer
		shed    Shed
		without []*testcuda.Process
	}{
		{Consumer{}, ShedNothing, nil},
		{Consumer{nobody, one.PID()}, ShedTensors, nil},
		{Consumer{nobody, one.PID()}, ShedAll, []*testcuda.Process{one}},
		{Consumer{User: nobody}, ShedAll, []*testcuda.Process{one, two}},
		{Consumer{nobody, one.PID()}, ShedNothing, []*testcuda.Process{one, two}},
		{Consumer{User: nobody}, ShedNothing, nil},
	} {
		if step.of != (Consumer{}) {
			if err := tr.Shed(step.of, step.shed); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range []*testcuda.Process{one, two, other} {
			run(t, p, "repeat 23 cuMemAlloc_v2 4096")
		}
		events := tr.drain()
		for _, p := range []*testcuda.Process{one, two, other} {
			want := 23
			for _, q := range step.without {
				if p == q {
					want = 0
					shed += 23
				}
			}
			if all, stacked := came(events, p.PID()); all != 23 || stacked != want {
				t.Errorf("%+v: process %d has %d events, %d with stacks, want 23 and %d", step.of, p.PID(), all, stacked, want)
			}
		}
		if got := tr.counter("stacks_shed"); got != shed {
			t.Errorf("%+v: stacks_shed = %d, want %d", step.of, got, shed)
		}
	}
	if err := tr.Shed(Consumer{User: nobody}, numShed); err == nil {
		t.Error("a step that there is not was taken")
	}
	for _, c := range []Consumer{{User: 4711}, {User: nobody, PID: os.Getpid()}} {
		if err := tr.Shed(c, ShedAll); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A child begins with its user's shed, not with its parent's.
func TestShedChild(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	tr := traced(t, p, Options{})
	if err := tr.Shed(Consumer{0, p.PID()}, ShedAll); err != nil {
		t.Fatal(err)
	}
	run(t, p, "fork cuMemAlloc_v2 4096")
	if err := tr.Shed(Consumer{User: 0}, ShedAll); err != nil {
		t.Fatal(err)
	}
	run(t, p, "fork cuMemAlloc_v2 8192")
	for _, e := range tr.drain() {
		if e.Op == event.OpAlloc && (e.Stack != 0) != (e.Size == 4096) {
			t.Errorf("%d bytes have the stack %#x", e.Size, e.Stack)
		}
	}
}

// Tensors are shed first. Each is told all the same.
func TestShedTensors(t *testing.T) {
	tr, end := heldTorch(t, Options{Tensors: true}, "void reportMemoryUsageToProfiler(void *, int64_t, unsigned long, unsigned long, Device)",
		"auto report = [](unsigned long at, long n) { c10::reportMemoryUsageToProfiler((void *)at, n, 4096, 4096, {1, 3}); };"+
			"report(0x1000, 1024); report(0x2000, 2048); report(0x1000, -1024);")
	if err := tr.Shed(Consumer{User: 0}, ShedTensors); err != nil {
		t.Fatal(err)
	}
	end()
	made, freed := 0, 0
	for _, e := range tr.drain() {
		switch e.Op {
		case event.OpTensorAlloc:
			made += int(e.Size)
		case event.OpTensorFree:
			freed++
		}
		if e.Stack != 0 {
			t.Errorf("%+v has a stack", e)
		}
	}
	if made != 3072 || freed != 1 {
		t.Errorf("%d bytes made, %d freed", made, freed)
	}
	tr.wantLoss(map[string]uint64{"stacks_shed": 2})
}

// While nobody reads, users who send without a pause each have an equal part of the ring
// buffer, and the one who sends little loses nothing.
func TestRingShares(t *testing.T) {
	const calls = 300
	needTracing(t)
	tenants.ByUser(t)
	kit := openKit(t)
	strangers := []*testcuda.Process{startAs(t, kit, nobody), startAs(t, kit, nobody), startAs(t, kit, somebody)}
	neighbour := startAs(t, kit, 65532)
	tr := openTrace(t, Options{Follow: true, change: ringOf(1 << 20)})
	for _, p := range append(strangers, neighbour) {
		tr.target(p.PID())
	}
	const flood = 10000
	for _, p := range strangers {
		run(t, p, fmt.Sprintf("repeat %d cuMemAlloc_v2 1", flood), "free all")
	}
	run(t, neighbour, fmt.Sprintf("repeat %d cuMemAlloc_v2 1", calls))
	costs := map[Consumer]Cost{}
	for _, c := range tr.Costs() {
		costs[c.Consumer] = c
	}
	events := tr.drain()
	if all, stacked := came(events, neighbour.PID()); all != calls || stacked != calls {
		t.Errorf("of the neighbour %d events came, %d with stacks, want %d", all, stacked, calls)
	}
	lost := uint64(0)
	for _, p := range strangers {
		n := uint64(count(events, func(e *event.Event) bool { return int(e.Proc.PID) == p.PID() }))
		t.Logf("of process %d %d events came", p.PID(), n)
		if n+tr.lostOf(costs, p.PID()) != 2*flood {
			t.Errorf("of process %d %d events came, and %d are counted as lost, of %d", p.PID(), n, tr.lostOf(costs, p.PID()), 2*flood)
		}
		lost += tr.lostOf(costs, p.PID())
	}
	if got := tr.counter("events_ring_full"); got != lost || tr.lostOf(costs, neighbour.PID()) != 0 {
		t.Errorf("events_ring_full = %d, of strangers %d", got, lost)
	}
	if got := costs[Consumer{User: nobody}].Lost + costs[Consumer{User: somebody}].Lost; got != lost {
		t.Errorf("users lost %d, their processes %d", got, lost)
	}
	notes := strings.Join(tr.Notes(), "\n")
	for _, p := range strangers {
		if !strings.Contains(notes, fmt.Sprintf("%d (%d)", p.PID(), tr.lostOf(costs, p.PID()))) {
			t.Errorf("process %d is not named in %q", p.PID(), notes)
		}
	}
	if strings.Contains(notes, fmt.Sprint(neighbour.PID())) {
		t.Errorf("the neighbour is named in %q", notes)
	}
	// Room again: nothing more is lost.
	run(t, strangers[0], "row cuMemAlloc_v2 11")
	if n := len(tr.drain()); n != 22 || tr.counter("events_ring_full") != lost {
		t.Errorf("after the flood: %d events, %d lost, want 22 and %d", n, tr.counter("events_ring_full"), lost)
	}
}

func (tr *trace) lostOf(costs map[Consumer]Cost, pid int) uint64 {
	for c, x := range costs {
		if c.PID == pid {
			return x.Lost
		}
	}
	tr.Errorf("process %d has no costs", pid)
	return 0
}

// Places of users come back when their processes have ended.
func TestUsersEnd(t *testing.T) {
	needTracing(t)
	tenants.ByUser(t)
	kit := openKit(t)
	tr := openTrace(t, Options{Follow: true})
	for _, user := range []uint32{nobody, somebody} {
		p := startAs(t, kit, user)
		tr.target(p.PID())
		run(t, p, "cuMemAlloc_v2 1")
		if place, _ := tr.UserOf(p.PID()); place == noPlace {
			t.Errorf("user %d has no place", user)
		}
		p.Close()
	}
	tr.drain()
	told := func() map[uint32]uint64 {
		users := map[uint32]uint64{}
		for _, c := range tr.Costs() {
			if c.PID != 0 {
				t.Errorf("%+v has ended", c)
			}
			if c.User != NoUser {
				users[c.User] = c.Bytes
			}
		}
		return users
	}
	if got := told(); len(got) != 2 || got[nobody] == 0 || got[somebody] == 0 {
		t.Errorf("users %v", got)
	}
	if got := told(); len(got) != 0 {
		t.Errorf("users %v without a process", got)
	}
}

// The kernel side and this one take a process for the same user's, also in namespaces
// that the user made.
func TestKernelUser(t *testing.T) {
	needTracing(t)
	tenants.ByUser(t)
	kit := openKit(t)
	tr := openTrace(t, Options{Follow: true})
	for name, command := range map[string][]string{
		"plain":     {kit.Path(testcuda.Workload)},
		"namespace": {"unshare", "--user", "--map-root-user", kit.Path(testcuda.Workload)},
		"nested":    {"unshare", "--user", "--map-root-user", "unshare", "--user", kit.Path(testcuda.Workload)},
	} {
		cmd := as(nobody, command[0], command[1:]...)
		cmd.Dir = "/"
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		ask := func(commands string) bool {
			_, err := fmt.Fprintln(in, commands+"; echo done")
			return err == nil && lines.Scan()
		}
		pid := cmd.Process.Pid
		if ask("init") { // else nobody may make a namespace here
			tr.target(pid)
			place, _ := tr.UserOf(pid)
			// The table as it is when the kernel side sees a process first.
			if err := tr.kernel.coll.Maps["targets"].Put(uint32(pid), bpf.Target{}); err != nil {
				t.Fatal(err)
			}
			ask("cuMemAlloc_v2 1")
			if got, _ := tr.UserOf(pid); got != place || place == noPlace {
				t.Errorf("%s: user %d for the kernel side, %d here", name, got, place)
			}
			var who uint32
			if err := tr.targets.owners.Lookup(uint32(place), &who); err != nil || who != nobody {
				t.Errorf("%s: user %d, %v", name, who, err)
			}
		} else {
			t.Logf("%s: cannot be started here", name)
		}
		in.Close()
		cmd.Wait()
	}
}
