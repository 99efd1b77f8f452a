package state

import (
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A checkpoint takes all memory of a process off the GPU, in no function of CUDA's, and a restore
// brings it back: what is shown in between is nothing and why, and afterwards what was shown before.
func TestCheckpoint(t *testing.T) {
	s := watched()
	k := opened(s, prog, 6)
	k.takes(10, "cuDevicePrimaryCtxRetain", 500*mib, 0)
	k.backs(11, 0x420000000, 100*mib, 100*mib)
	s.Apply(held(20, 600*mib))
	moment(s, 21)
	want := lines(t, s)

	k.apply(&event.Event{Op: event.OpObjectFree, Time: 30, Handle: k.client<<32 | k.client})
	for i, at := range []uint64{40, 50} { // the second reading is no news
		s.Apply(nobody(at))
		moment(s, at+1)
		snap := driven(s)
		notNegative(t, snap)
		for _, x := range snap.Samples {
			if x.InuseBytes != 0 {
				t.Errorf("reading %d: %d bytes in use by %v", i, x.InuseBytes, x.Stack[0].Lines)
			}
		}
		for _, a := range snap.Accounts {
			if a.Total != 0 {
				t.Errorf("reading %d: %+v", i, a)
			}
		}
		if notes := strings.Join(snap.Notes, "\n"); strings.Count(notes, "process 17 (prog) is suspended") != 1 {
			t.Errorf("reading %d: notes %q", i, notes)
		}
		for _, p := range snap.Processes {
			if p.Inuse != 0 || p.Physical != 0 {
				t.Errorf("reading %d: %+v", i, p)
			}
		}
	}

	again := before(s, prog, 6)
	again.client += 7
	again.apply(&event.Event{Op: event.OpClient, Time: 60, Handle: again.client<<32 | again.client, Addr: 4})
	again.apply(&event.Event{Op: event.OpObjectDevice, Time: 61, Handle: again.device(), Part: again.client<<32 | again.client, Addr: 6})
	again.takes(62, "", 500*mib, 9)
	again.takes(63, "", 100*mib, 9)
	s.Apply(held(70, 600*mib))
	moment(s, 71)
	expect(t, "lines after the restore", want, lines(t, s))
	expect(t, "live after the restore", map[uint64]bool{0x420000000: true}, liveOf(s))
	snap := driven(s)
	if a := snap.Accounts[0]; a.Total != 600*mib || !a.Compared || a.Difference != 0 || strings.Contains(strings.Join(snap.Notes, ""), "suspended") {
		t.Errorf("%+v, notes %q", a, snap.Notes)
	}
	for _, x := range snap.Samples {
		if x.Kind == event.KindDriver.String() && x.InuseBytes != 0 {
			t.Errorf("%d bytes whose cause is not known: %v", x.InuseBytes, x.Stack[0].Lines)
		}
	}
}
