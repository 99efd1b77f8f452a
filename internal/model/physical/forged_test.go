package physical

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// A call that a process makes up, under the numbers of another process's client and
// objects, changes nothing of what others hold: whether it came before their calls, or
// after. The functions of a library that it calls itself show whatever it likes.
func TestForgedCalls(t *testing.T) {
	forger, importer := event.Process{PID: 66, Start: 660}, event.Process{PID: 9, Start: 90}
	by := of(forger)
	forged := map[string][]*event.Event{
		"another's client":          {makeClient(1, client, 9, by), makeDevice(1, device, 0, by)},
		"another's memory":          {makeClient(1, client, 9, by), makeDevice(1, device, 0, by), makeMemory(1, first, 1<<40, by)},
		"memory without its client": {makeMemory(1, first, 1<<40, by)},
		"the importer's":            {makeClient(1, client3, 9, by), makeShare(1, shared3, first, by), makeMemory(1, shared3, 1<<40, by)},
		"ends":                      {end(1, first, by), end(1, device, by), end(1, client, by), end(1, shared3, by), end(1, client3, by), ev(1, event.OpDescriptorClose, number(5), by)},
		"the GPU":                   {tellGPU(1, 0, 99, by), ev(1, event.OpGPU, by, func(e *event.Event) { e.Handle, e.Device = device, 5 })},
		"shares in a circle":        {makeClient(1, client2, 9, by), makeMemory(1, shared2, mib, by), makeShare(1, device2, shared2, by), makeShare(1, shared2, device2, by)},
	}
	genuine := func() []*event.Event {
		var all []*event.Event
		all = append(all, begun(client, 6, proc)...)
		all = append(all, begun(client3, 6, importer)...)
		return append(all, makeMemory(4, first, 6*mib), makeMemory(5, second, mib), makeShare(6, shared3, second, of(importer)))
	}
	figures := func(l *Ledger) string {
		return fmt.Sprintf("%d %d %+v %+v", total(l, proc), total(l, importer), l.GPUs(proc), l.GPUs(importer))
	}
	l := New(ledger.Options{})
	apply(l, genuine()...)
	want := figures(l)
	for name, calls := range forged {
		for at := range genuine() {
			l, when := New(ledger.Options{}), uint64(0)
			for i, e := range genuine() {
				if i == at {
					for _, f := range calls {
						f := *f
						f.Time = when + 1
						apply(l, &f)
					}
				}
				when = e.Time
				apply(l, e)
			}
			if got := figures(l); got != want {
				t.Errorf("%s, before call %d: %s, want %s", name, at, got, want)
			}
			apply(l, end(20, first))
			apply(l, ev(21, event.OpExit, by))
			if got := total(l, proc); got != mib {
				t.Errorf("%s, before call %d: after the end of memory %d bytes are held, want 1 MiB", name, at, got)
			}
		}
	}
}

// Where several processes say that a client is theirs, memory of it is shared with nobody,
// which is counted: who made the number up cannot have another hold what he likes.
func TestContestedClient(t *testing.T) {
	forger, importer := event.Process{PID: 66, Start: 660}, event.Process{PID: 9, Start: 90}
	claim := []*event.Event{makeClient(2, client, 9, of(forger)), makeMemory(3, first, 1<<40, of(forger))}
	owner := append(begun(client, 6, proc), makeMemory(4, first, 6*mib))
	for name, calls := range map[string][]*event.Event{
		"claimed before": append(claim, owner...), "claimed after": append(slices.Clip(owner), claim...),
	} {
		l := New(ledger.Options{})
		apply(l, begun(client3, 6, importer)...)
		apply(l, calls...)
		apply(l, makeShare(10, shared3, first, of(importer)))
		apply(l, end(11, first, of(forger)), end(12, client, of(forger)))
		if got := total(l, importer); got != 0 {
			t.Errorf("%s: the importer holds %d bytes", name, got)
		}
		if d := cmp.Diff([]int64{6 * mib}, l.BytesByGPU(proc)); d != "" {
			t.Errorf("%s: the owner (-want +got):\n%s", name, d)
		}
		if n := lossOf(l, "driver_shares_unknown"); n != 1 {
			t.Errorf("%s: %d shares unknown, want 1", name, n)
		}
		// The claim is over: the number is the owner's again.
		apply(l, makeShare(13, shared3+1, first, of(importer)), end(14, first))
		if got := total(l, importer); got != 6*mib {
			t.Errorf("%s: the importer holds %d bytes of what the owner let go, want 6 MiB", name, got)
		}
	}
}

// That another process says that it shares memory does not change how its owner's memory
// is followed: it grows, and stays with the calls that it was for.
func TestForgedShareOfWhatGrows(t *testing.T) {
	rows := func(forged bool) string {
		l := run(makeMemory(4, first, 2*mib))
		if forged {
			apply(l, begun(client2, 6, other)...)
			apply(l, makeShare(5, shared2, first, of(other)))
		}
		apply(l, end(6, first, in(inLaunch)), makeMemory(7, first, 6*mib, in(inLaunch)))
		var out []string
		for s := range l.Rows.Sites {
			if s.Proc == proc {
				out = append(out, fmt.Sprint(s.Kind, s.API, s.InuseBytes))
			}
		}
		return fmt.Sprint(out)
	}
	if want, got := rows(false), rows(true); got != want {
		t.Errorf("with a forged share %s, want %s", got, want)
	}
}
