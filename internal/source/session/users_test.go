package session

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// The kernel driver's calls are watched only where it is known how to read them.
func TestWatchesKernel(t *testing.T) {
	for _, c := range []struct {
		version string
		loaded  bool
		api     probes.API
		want    bool
		warning string
	}{
		{"580.159.04", true, probes.APIDriver, true, ""},
		{"580.159.04", true, probes.APIRuntime, false, ""},
		{"600.1", true, probes.APIDriver, false, "the calls of version 600.1 are not known"},
		{"", true, probes.APIDriver, false, "the version of the loaded driver cannot be read"},
		{"", false, probes.APIDriver, true, ""}, // there is no call to misread
	} {
		var warnings []string
		s := &sources{opts: Options{API: c.api, Warn: func(text string) { warnings = append(warnings, text) }}, store: newStore(record.Trace{Driver: c.version})}
		if got := s.watchesKernel(c.loaded); got != c.want || len(warnings) != min(1, len(c.warning)) || c.warning != "" && !strings.Contains(warnings[0], c.warning) {
			t.Errorf("version %q, loaded %t: %t, warnings %q", c.version, c.loaded, got, warnings)
		}
	}
}

// A process that makes up that it shares another user's memory does not come before the
// process that does, when the owner lets go; one of the same user may share it.
func TestForgedShare(t *testing.T) {
	const mib = 1 << 20
	owner, importer, forger, gone := event.Process{PID: 7, Start: 70}, event.Process{PID: 8, Start: 80}, event.Process{PID: 66, Start: 660}, event.Process{PID: 67, Start: 670}
	reads := 0
	u := newUsers()
	u.read = func(pid int) (uint32, error) {
		reads++
		user, ok := map[int]uint32{7: 1000, 8: 1000, 66: 2000}[pid]
		if !ok {
			return 0, errors.New("gone")
		}
		return user, nil
	}
	s := newStore(record.Trace{})
	s.users = u
	s.apply(&record.Trace{Physical: true, All: true})
	name := func(p event.Process, object uint64) uint64 { return uint64(p.PID)<<32 | object }
	tell := func(p event.Process, e event.Event) {
		e.Proc, e.TID, e.Device = p, p.PID, event.NoDevice
		s.apply(&e)
	}
	for _, p := range []event.Process{owner, importer, forger, gone} {
		s.apply(&record.Process{Process: p, Target: true, FromStart: true})
		tell(p, event.Event{Op: event.OpClient, Time: 1, Handle: name(p, uint64(p.PID)), Addr: 3})
		tell(p, event.Event{Op: event.OpObjectDevice, Time: 2, Handle: name(p, 1), Part: name(p, uint64(p.PID))})
	}
	tell(owner, event.Event{Op: event.OpObjectMemory, Kind: event.KindDriver, Time: 3, Handle: name(owner, 2), Part: name(owner, 1), Size: 6 * mib})
	share := func(p event.Process, at, object uint64) {
		tell(p, event.Event{Op: event.OpObjectShare, Kind: event.KindDriver, Time: at, Handle: name(p, object), Part: name(p, 1), Addr: name(owner, 2)})
	}
	share(importer, 4, 2)
	for i := range uint64(100) {
		share(forger, 5+i, 2+i)
	}
	share(gone, 200, 2)
	tell(owner, event.Event{Op: event.OpObjectFree, Time: 300, Handle: name(owner, 2)})
	held := map[int]int64{}
	for _, a := range s.state.View(state.Want{Driver: true}).Snapshot().Accounts {
		held[a.PID] = a.Total
	}
	if held[8] != 6*mib || held[66] != 0 || held[67] != 0 {
		t.Errorf("held by process: %v, want 6 MiB by 8 alone", held)
	}
	if reads > 4 {
		t.Errorf("%d reads of whose a process is", reads)
	}
}

func TestUsers(t *testing.T) {
	u := newUsers()
	if user, known := u.of(event.Process{PID: uint32(os.Getpid())}); !known || user != uint32(os.Geteuid()) {
		t.Errorf("user %d, %v", user, known)
	}
	u.read = func(pid int) (uint32, error) { return map[int]uint32{5: 0, 6: 1000}[pid], nil }
	root, other := event.Process{PID: 5}, event.Process{PID: 6}
	if !u.mayShare(root, other) || u.mayShare(other, root) || !u.mayShare(other, other) {
		t.Error("root may share, and nobody may share root's")
	}
}
