//go:build soak

package soak

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/footprint"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// An agent among 500 processes with a million live allocations takes less than 250 MB. Each
// allocation is in its metrics, or its event is counted as lost. The test prints what the
// agent takes while nothing happens, how long metrics and a profile take, and what 250
// programs a second that do not use CUDA cost it.
func TestCrowd(t *testing.T) {
	const (
		processes = 500
		each      = 2000 // live allocations
		bytes     = 512  // of an allocation
		most      = 250  // MB
		stacks    = 16   // of a process
		all       = processes * each
	)
	s := &soak{T: t, dir: t.TempDir()}
	s.builds()
	a, err := s.starts(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { a.cmd.Process.Kill(); a.cmd.Wait() }()
	pid := a.cmd.Process.Pid
	t.Logf("without any process: %s", idle(t, pid))

	kit := testcuda.Get(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	first, err := testcuda.Start(ctx, kit, testcuda.Workload, testcuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	time.Sleep(2 * time.Second) // the library has probes
	script := []string{"init"}
	for i := range stacks {
		path := strings.NewReplacer("0", "l", "1", "r").Replace(fmt.Sprintf("%04b", i))
		script = append(script, fmt.Sprintf("via %s repeat %d cuMemAlloc_v2 %d", path, each/stacks, bytes))
	}
	begin := time.Now()
	crowd := make([]*testcuda.Process, processes)
	for i := range crowd {
		p, err := testcuda.Start(ctx, kit, testcuda.Workload, testcuda.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.Send(strings.Join(append(script, "ready"), "; ")); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Expect("ready"); err != nil { // all at once lose events, which are counted
			t.Fatal(err)
		}
		crowd[i] = p
	}
	t.Logf("%d processes made %d allocations each in %.0f s", processes, each, time.Since(begin).Seconds())
	live, lost := 0, 0
	for end := time.Now().Add(5 * time.Minute); live+lost < all; time.Sleep(time.Second) {
		counters, err := a.losses()
		if err != nil {
			t.Fatal(err)
		}
		live, lost = a.liveAllocations(t), int(counters["events_ring_full"])
		if time.Now().After(end) {
			t.Fatalf("%d live allocations are in the metrics, want %d; lost: %v", live, all, some(counters))
		}
	}
	// On a busy machine the agent may not read in time what a process does at once.
	if live > all || lost > all/10_000 {
		t.Errorf("%d live allocations are in the metrics, %d events were lost, of %d", live, lost, all)
	}
	for _, path := range []string{"/metrics", "/debug/pprof/gpumem", "/api/v1/top"} {
		first, again, size := a.asked(t, path)
		t.Logf("%s: %d bytes in %v, then in %v", path, size, first, again)
	}
	t.Logf("with %d processes: %s", processes, idle(t, pid))
	f, err := footprint.Of(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", f)
	if f.Resident<<20 > most*1e6 {
		t.Errorf("%d MiB are resident, want less than %d MB", f.Resident, most)
	}
	for _, p := range crowd {
		p.Close()
	}
	time.Sleep(5 * time.Second) // it has seen them end
	t.Logf("beside 250 programs a second: %s", taken(t, pid, func() {
		for begin, n := time.Now(), 0; time.Since(begin) < 10*time.Second; n++ {
			if err := exec.Command("/bin/true").Run(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Until(begin.Add(time.Duration(n) * 4 * time.Millisecond)))
		}
	}))
}

// some returns the counters that are not zero.
func some(lost map[string]uint64) map[string]uint64 {
	maps.DeleteFunc(lost, func(_ string, n uint64) bool { return n == 0 })
	return lost
}

// liveAllocations returns the sum over all processes in the metrics.
func (a *agent) liveAllocations(t *testing.T) int {
	t.Helper()
	text, err := a.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "gpumemtrace_live_allocations{") && strings.Contains(line, `kind="device"`) {
			f, err := strconv.ParseFloat(line[strings.LastIndexByte(strings.TrimSpace(line), ' ')+1:len(line)-1], 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += f
		}
	}
	return int(sum)
}

// asked asks twice, the second time once all is known.
func (a *agent) asked(t *testing.T, path string) (first, again time.Duration, size int) {
	t.Helper()
	for _, took := range []*time.Duration{&first, &again} {
		begin := time.Now()
		text, err := a.get(path)
		if err != nil {
			t.Fatal(err)
		}
		*took, size = time.Since(begin).Round(100*time.Microsecond), len(text)
	}
	return first, again, size
}

// idle says what a process takes of a core in ten seconds.
func idle(t *testing.T, pid int) string {
	return taken(t, pid, func() { time.Sleep(10 * time.Second) })
}

// taken says what a process takes of a core while f runs.
func taken(t *testing.T, pid int, f func()) string {
	t.Helper()
	before, began := running(t, pid), time.Now()
	f()
	return fmt.Sprintf("%.2f %% of a core", 100*float64(running(t, pid)-before)/float64(time.Since(began)))
}

// running is how long the threads of a process have run: proc(5), schedstat.
func running(t *testing.T, pid int) (sum time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if fields := strings.Fields(string(text)); len(fields) > 0 {
			n, _ := strconv.ParseInt(fields[0], 10, 64)
			sum += time.Duration(n)
		}
	}
	return sum
}
