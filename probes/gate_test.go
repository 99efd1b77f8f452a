package probes

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// Of a busy program, what is seen between the moment at which the probes begin to
// tell and that at which they end is all that happened: an address is given and
// taken back in turn, however long probes take to go on and off.
func TestProbesTellAllAtOnce(t *testing.T) {
	p := start(t, testcuda.Hammer, testcuda.Options{Args: []string{"-threads", "4", "-seconds", "3600"}})
	// Each link of one probe takes the kernel a tenth of a second to close.
	few := func(r *Row) bool {
		return slices.Contains([]string{"cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync"}, r.Symbols[0])
	}
	for _, c := range []struct {
		attach ebpf.AttachType
		want   func(*Row) bool
	}{
		{attachSession, lasting},
		{ebpf.AttachTraceUprobeMulti, lasting},
		{ebpf.AttachNone, few},
	} {
		t.Run(fmt.Sprint("type ", c.attach), func(t *testing.T) {
			needAttach(t, c.attach)
			seen := 0
			for end := time.Now().Add(5 * time.Minute); seen < 1000 && time.Now().Before(end); {
				tr := openTrace(t, Options{attach: by(c.attach), Follow: true})
				if err := tr.targets.add(p.PID(), others); err != nil {
					t.Fatal(err)
				}
				done := make(chan error)
				go func() { done <- tr.Run(tr, nil) }()
				a, err := attachRows(openLibrary(t, testcuda.Get(t).LibCUDA), tr.kernel.progs, tr.libs.gates.get(), c.want)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(50 * time.Millisecond)
				if err := a.detach(); err != nil {
					t.Fatal(err)
				}
				if err := tr.Stop(); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				seen += len(tr.events)
				if n := outOfTurn(tr.events); n > 0 {
					t.Errorf("%d of %d events are of memory that was given already, or taken back already", n, len(tr.events))
				}
				tr.wantLoss(nil)
			}
			if seen < 1000 {
				t.Errorf("%d events: the program was not busy enough", seen)
			}
		})
	}
}

// Stop ends what is told at once, though probes take long to come off.
func TestStopIsAtOnce(t *testing.T) {
	p := odd(t)
	tr := openTrace(t, Options{attach: by(ebpf.AttachNone)})
	tr.target(p.pid())
	p.do("nested 23", "nested")
	if err := tr.Stop(); err != nil {
		t.Fatal(err)
	}
	p.do("nested 23", "nested")
	if err := tr.Run(tr, nil); err != nil {
		t.Fatal(err)
	}
	if n := len(tr.events); n != 23 {
		t.Errorf("%d calls, want the 23 before Stop:%s", n, format(tr.events))
	}
	tr.wantLoss(map[string]uint64{"calls_nested": 23})
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
}

// There are as many gates as libraries can have probes, and one that is given back
// serves another library.
func TestGates(t *testing.T) {
	tr := openTrace(t, Options{})
	seen := map[uint16]bool{}
	var all []*gate
	for g := tr.libs.gates.get(); g != nil; g = tr.libs.gates.get() {
		if seen[g.slot()] || g.slot() == 0 {
			t.Fatalf("gate %d was taken already", g.slot())
		}
		seen[g.slot()] = true
		all = append(all, g)
	}
	if want := maxAttachments + maxClosing + maxUnderWay; len(all) < want {
		t.Errorf("%d gates, want %d: one for each library that is probed, or whose probes come off", len(all), want)
	}
	all[7].release()
	if g := tr.libs.gates.get(); g == nil || g.slot() != all[7].slot() {
		t.Errorf("took %v, want the one that was given back", g)
	}
	p := start(t, testcuda.Workload, testcuda.Options{})
	if _, err := tr.Target(p.PID()); !errors.Is(err, errNotProbed) || tr.counter("libraries_not_probed") == 0 {
		t.Errorf("a library without a gate: %v", err)
	}
}

// outOfTurn counts the allocations at an address that is in use, and the frees of
// one that was freed before. What was allocated before the first event may be freed.
func outOfTurn(events []event.Event) (n int) {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b event.Event) int { return cmp.Compare(a.Time, b.Time) })
	last := map[uint64]event.Op{}
	for _, e := range events {
		if e.Op == event.OpAlloc || e.Op == event.OpFree {
			if last[e.Addr] == e.Op {
				n++
			}
			last[e.Addr] = e.Op
		}
	}
	return n
}
