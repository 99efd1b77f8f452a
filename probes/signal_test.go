package probes

import (
	"fmt"
	"maps"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A call from a signal handler on a stack above that of a call that is pending does
// not end the process, whether it is traced or not. One that was killed answers no more.
func TestCallOnSignalStack(t *testing.T) {
	if err := haveSession(); err != nil {
		t.Skip("this kernel has no uprobe sessions")
	}
	target := odd(t)
	bystander := spawn(t, as(nobody, target.cmd.Path), "up")
	tr := openTrace(t, Options{Follow: true})
	tr.target(target.pid())
	for _, p := range []*program{bystander, target} {
		for range calls {
			p.do("below 1", "below")
			p.do("above 1", "above")
		}
	}
	got := map[call]int{}
	for _, e := range tr.drain() {
		if e.Op == event.OpAlloc && int(e.Proc.PID) != target.pid() {
			t.Errorf("an event of process %d", e.Proc.PID)
		}
		got[call{apiName(e.API), int32(e.Size)}]++
	}
	want := map[call]int{{"cuMemPoolTrimTo", 0}: 2 * calls, {"cuMemAlloc_v2", 700}: calls, {"cuMemAllocManaged", 800}: 2 * calls}
	if !maps.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	tr.wantLoss(map[string]uint64{"calls_on_signal_stack": calls})
}

// Where the kernel cannot leave the return alone such a call is counted, whatever
// becomes of the process.
func TestCallOnSignalStackIsCounted(t *testing.T) {
	p := odd(t)
	tr := openTrace(t, Options{attach: by(ebpf.AttachNone)})
	tr.target(p.pid())
	if _, err := fmt.Fprintln(p.in, "above 1"); err != nil {
		t.Fatal(err)
	}
	lives := p.out.Scan()
	t.Logf("lives: %t", lives)
	tr.drain()
	if n := tr.counter("calls_on_signal_stack"); n != 1 {
		t.Errorf("%d calls counted, want 1", n)
	}
}
