package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// after returns a State that begins with a keyframe of s.
func after(s *State) *State {
	cut := New()
	cut.Apply(&record.Cut{Time: s.Now()})
	s.Keyframe(cut.Apply)
	return cut
}

// heldNow are the samples of the kernel driver's memory as bytes in use, by process,
// GPU and frames, but for what only a reading tells.
func heldNow(s *State) map[string]int64 {
	out := map[string]int64{}
	snap := driven(s)
	for i := range snap.Samples {
		x := &snap.Samples[i]
		if x.InuseBytes == 0 || kindOf(x).Class() != event.ClassDriver && x.Kind != event.KindSystem.String() {
			continue
		}
		var names []string
		for _, l := range x.Stack {
			names = append(names, l.Lines[0].Function)
		}
		if key := fmt.Sprint(x.PID, " ", x.GPU, " ", strings.Join(names, " ")); names[0] != LineBefore && names[0] != LineRemainder {
			out[key] += x.InuseBytes
		}
	}
	return out
}

func accountsOf(s *State) []snapshot.Account {
	accounts := driven(s).Accounts
	slices.SortFunc(accounts, func(a, b snapshot.Account) int {
		return strings.Compare(fmt.Sprint(a.PID, a.GPU), fmt.Sprint(b.PID, b.GPU))
	})
	return accounts
}

// read applies a reading that lists all processes.
func read(s *State) {
	r := &record.Reading{Begin: s.Now() + 1, Time: s.Now() + 2, Devices: []record.Device{{UUID: "GPU-a", Label: "0", GPU: 6, GPUKnown: true, Instance: -1, Listed: true}}}
	for _, id := range s.processes.current {
		r.Devices[0].Processes = append(r.Devices[0].Processes, snapshot.GPUProcess{PID: int(id.PID)})
		r.Uses = append(r.Uses, record.Use{Process: id, Bytes: 1 << 33, Known: true})
		r.Ordinals = append(r.Ordinals, record.Ordinal{Process: id})
	}
	s.Apply(r)
	moment(s, r.Time+1)
}

// TestKeyframeOfTheDriver: a state that begins with a keyframe shows the kernel
// driver's memory as the one that it is of, and the same accounts.
func TestKeyframeOfTheDriver(t *testing.T) {
	samples, accounts := 0, 0
	for seed := range uint64(60) {
		whole := New()
		physicalTrace(seed, 400, whole)
		read(whole)
		cut := after(whole)
		expect(t, fmt.Sprintf("seed %d: samples", seed), heldNow(whole), heldNow(cut))
		expect(t, fmt.Sprintf("seed %d: accounts", seed), accountsOf(whole), accountsOf(cut))
		samples, accounts = samples+len(heldNow(cut)), accounts+len(accountsOf(cut))
		for _, s := range []*State{whole, cut} {
			for pid, id := range s.processes.current {
				again := opened(s, id, 6)
				again.last = 0x6c000001
				again.takes(s.Now(), "cuStreamCreate", uint64(pid), 1)
			}
			read(s)
		}
		expect(t, fmt.Sprintf("seed %d: samples later", seed), heldNow(whole), heldNow(cut))
		expect(t, fmt.Sprintf("seed %d: accounts later", seed), accountsOf(whole), accountsOf(cut))
	}
	if samples < 1000 || accounts < 50 {
		t.Errorf("only %d samples, %d accounts", samples, accounts)
	}
}

// TestKeyframeGoesOn: what memory was for, what it grew to, who shares it, and where it
// is stay known for what comes after.
func TestKeyframeGoesOn(t *testing.T) {
	whole := watched()
	other := event.Process{PID: 18, Start: event.StartUnit}
	whole.Apply(&record.Process{Process: other, Target: true, Name: "other", FromStart: true})
	for id, function := range []string{"", "main", "load", "more"} {
		stack(whole, uint64(id), function)
	}
	k, importer := opened(whole, prog, 6), opened(whole, other, 6)
	arena := k.takes(10, "cuDevicePrimaryCtxRetain", 400*mib, 1)
	grow := func(k *kernel, at, size, stack uint64) {
		k.frees(at, arena, "cuModuleLoadData")
		k.apply(&event.Event{Op: event.OpObjectMemory, Time: at + 1, Kind: event.KindDriver, Handle: arena, Part: k.device(), Size: size, Outer: api("cuModuleLoadData"), Stack: stack})
	}
	grow(k, 11, 500*mib, 2)
	given := k.takes(13, "cuMemAlloc_v2", 4*mib, 1)
	importer.last++
	importer.apply(&event.Event{Op: event.OpObjectShare, Time: 14, Handle: importer.client<<32 | importer.last, Part: importer.device(), Addr: given})
	k.backs(15, 0x1000, 3*mib, 4*mib)
	cut := after(whole)
	expect(t, "where it begins", heldNow(whole), heldNow(cut))
	for _, s := range []*State{whole, cut} {
		again := *k
		again.state = s
		grow(&again, 20, 600*mib, 3)
		again.frees(22, given, "cuMemFree_v2")
	}
	expect(t, "later", heldNow(whole), heldNow(cut))
	if n := len(heldNow(cut)); n < 4 {
		t.Errorf("only %d samples: %v", n, heldNow(cut))
	}
}

// TestKeyframeAfterAReading: what a process had before it was attached to is the difference
// of two figures of the moment of the last reading.
func TestKeyframeAfterAReading(t *testing.T) {
	whole := attached()
	k := opened(whole, prog, 6)
	k.takes(10, "cuMemAlloc_v2", 4*mib, 0)
	read(whole)
	k.takes(whole.Now()+1, "cuMemAlloc_v2", 1<<30, 0)
	cut := after(whole)
	expect(t, "where it begins", accountsOf(whole), accountsOf(cut))
	for _, s := range []*State{whole, cut} {
		read(s)
	}
	expect(t, "from then on", accountsOf(whole), accountsOf(cut))
}

// TestKeyframeOfALateProcess: one that was attached to before it held anything is known from
// its start in the recording too, though the last reading says no more that it held nothing.
func TestKeyframeOfALateProcess(t *testing.T) {
	whole := attached()
	whole.Apply(&record.Reading{Begin: 5, Time: 6, Devices: []record.Device{{UUID: "GPU-a", Label: "0", GPU: 6, GPUKnown: true, Instance: -1, Listed: true}}})
	moment(whole, 7)
	opened(whole, prog, 6).takes(10, "cuMemAlloc_v2", 4*mib, 0)
	read(whole)
	if whole.AttachedLate(prog) {
		t.Fatal("it is late")
	}
	cut := after(whole)
	for _, s := range []*State{whole, cut} {
		read(s)
	}
	expect(t, "accounts", accountsOf(whole), accountsOf(cut))
}
