package state

import (
	"fmt"
	"testing"

	holders "github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/holdertest"
)

// stored is a storage of a float32 tensor.
func stored(addr, size uint64, role holders.Role, path string) holders.Storage {
	return holders.Storage{Address: addr, Bytes: size, Role: role, Holder: path, Tensors: 1, Holders: 1}
}

// inModule is a storage that belongs to a module.
func inModule(s holders.Storage, module string) holders.Storage {
	s.Module = module
	return s
}

func reading(at uint64, storages ...holders.Storage) *record.Heap {
	return &record.Heap{Process: prog, Reading: &holders.Reading{Runtime: "CPython 3.12", Framework: "PyTorch", Begin: at - 1, End: at, Storages: storages}}
}

// byHolder returns the bytes and objects in use by leaf of the stack, holder and category.
func byHolder(s *snapshot.Snapshot) map[string][2]int64 {
	out := map[string][2]int64{}
	for i := range s.Samples {
		x := &s.Samples[i]
		if x.Kind == event.KindCached.String() || x.InuseBytes == 0 {
			continue
		}
		key := fmt.Sprintf("%s %s %s %s", x.Frames()[0].Lines[0].Function, x.Holder, x.Category, x.CategoryFrom)
		out[key] = [2]int64{out[key][0] + x.InuseBytes, out[key][1] + x.InuseObjects}
	}
	return out
}

// A tensor goes to the holder that its address says, and its category is what the heap
// says. A tensor stays as it was if it was made after the reading, if its size differs, or if
// the heap does not have it. Every sum stays the same.
func TestHolders(t *testing.T) {
	s := begun(record.Trace{})
	stack(s, 1, " ", "load")
	stack(s, 2, " ", "forward")
	grow := alloc(prog, 10, 0x1000000, 40*mib)
	grow.Stack = 1
	s.Apply(grow)
	s.Apply(tensor(11, 0x1000000, 4*mib, 2, 4*mib))
	s.Apply(tensor(12, 0x1000000+4*mib, 4*mib, 2, 8*mib))
	s.Apply(tensor(13, 0x1000000+8*mib, 4*mib, 2, 12*mib))
	s.Apply(tensor(14, 0x1000000+12*mib, 4*mib, 2, 16*mib))
	s.Apply(tensor(30, 0x1000000+16*mib, 4*mib, 2, 20*mib))
	before := s.View(Want{Holders: true}).Snapshot()
	if len(before.Heaps) != 0 || len(before.Notes) != 0 || len(before.Live) != 0 {
		t.Errorf("without a reading there are %d heaps, %d notes, %d rows", len(before.Heaps), len(before.Notes), len(before.Live))
	}
	s.Apply(reading(20,
		inModule(stored(0x1000000, 4*mib, holders.Parameter, "model.layers[3].weight"), "model.layers[3]"),
		stored(0x1000000+4*mib, 4*mib-100, holders.NoRole, "losses[7]"),
		stored(0x1000000+8*mib, 4*mib, holders.Activation, "losses[8]"),
		stored(0x1000000+12*mib, mib, holders.NoRole, "of another size"),
		stored(0x1000000+16*mib, 4*mib, holders.NoRole, "freed before the tensor was made that lies there"),
		stored(0x9000000, 4*mib, holders.NoRole, "nowhere")))
	snap := s.View(Want{Holders: true, Live: true}).Snapshot()
	expect(t, "by holder", map[string][2]int64{
		"[forward] model.layers[3].weight parameter heap": {4 * mib, 1},
		"[forward] losses[*] unknown ":                    {4 * mib, 1},
		"[forward] losses[*] activation heap":             {4 * mib, 1},
		"[forward]  unknown ":                             {8 * mib, 2},
	}, byHolder(snap))
	for i := range snap.Samples {
		x := &snap.Samples[i]
		if want := map[bool]string{true: "model.layers[3]"}[x.Category == "parameter"]; x.ModulePath != want {
			t.Errorf("%q is in module %q, want %q", x.Holder, x.ModulePath, want)
		}
	}
	for i := range snap.Live {
		a := &snap.Live[i]
		if x := &snap.Samples[a.Sample]; x.Kind == event.KindTensor.String() && (x.Holder == "") != (a.Address >= 0x1000000+12*mib) {
			t.Errorf("the row of %#x has holder %q", a.Address, x.Holder)
		}
	}
	v := s.View(Want{Holders: true, Driver: true})
	of := v.Snapshot()
	i := 0
	for key := range v.Sites {
		if x := &of.Samples[i]; x.Holder != "" && (key.Stack != 2 || key.Proc != prog) {
			t.Errorf("sample %d, which %s holds, is of site %+v", i, x.Holder, key)
		}
		i++
	}
	if i != len(of.Samples) {
		t.Errorf("%d sites of %d samples", i, len(of.Samples))
	}
	all := func(s *snapshot.Snapshot) (sum snapshot.Values) {
		for i := range s.Samples {
			sum.Add(&s.Samples[i].Values)
		}
		return sum
	}
	if a, b := all(before), all(snap); a != b {
		t.Errorf("sums were %+v and are %+v", a, b)
	}
	if len(snap.Notes) != 1 || len(snap.Heaps) != 1 || snap.Heaps[0].PID != int(prog.PID) {
		t.Errorf("notes %q, %d heaps", snap.Notes, len(snap.Heaps))
	}
	if rows := s.View(Want{Holders: true}).Snapshot().Live; rows != nil {
		t.Errorf("%d rows that nobody wanted", len(rows))
	}
	if heaps := s.View(Want{}).Snapshot().Heaps; heaps != nil {
		t.Error("a reading that nobody wanted")
	}
}

// What call sites have in use is what their samples show, with tensors too: a search for
// leaks compares them.
func TestInuseIsOfSamples(t *testing.T) {
	s := begun(record.Trace{})
	grow := alloc(prog, 10, 0x1000000, 40*mib)
	grow.Stack = 1
	s.Apply(grow)
	s.Apply(tensor(11, 0x1000000, 4*mib, 2, 4*mib))
	s.Apply(alloc(prog, 12, 0x9000000, mib))
	got, want := map[uint64]int64{}, map[uint64]int64{}
	for h := range s.InUse {
		got[h.Site.Stack] += h.Bytes
	}
	v := s.View(Want{})
	samples, i := v.Snapshot().Samples, 0
	for key := range v.Sites {
		want[key.Stack] += samples[i].InuseBytes
		i++
	}
	expect(t, "in use", want, got)
	expect(t, "in use", map[uint64]int64{0: mib, 1: 36 * mib, 2: 4 * mib}, got)
}

// What was there before the trace is divided by name, up to what is there. What lies where a
// tensor lies that was made since is no longer there.
func TestHoldersFromBefore(t *testing.T) {
	s := attached()
	k := before(s, prog, 6)
	k.backs(10, 0x1000000, 20*mib, 20*mib)
	s.Apply(tensor(12, 0x1000000, 8*mib, 0, 108*mib))
	last := tensor(13, 0x1000000+8*mib, mib, 0, 109*mib)
	last.Part = 200 * mib
	s.Apply(last)
	s.Apply(held(20, 300*mib))
	moment(s, 21)
	was := lines(t, s)[LineOldTensors]
	if was != 100*mib {
		t.Fatalf("%d bytes of tensors from before", was)
	}
	s.Apply(reading(20,
		inModule(stored(0x7000000, 60*mib, holders.Parameter, "model.weight"), "model"),
		stored(0x70000000, 30*mib-100, holders.OptimizerState, `optimizer.state[model.weight]["exp_avg"]`),
		stored(0x1000000+mib, mib, holders.NoRole, "freed since: a tensor lies there"),
		stored(0xa0000000, 20*mib, holders.NoRole, "more than is left"),
		stored(0xb0000000, 4*mib, holders.NoRole, "history[1]"),
		stored(0xc0000000, 4*mib, holders.NoRole, "history[2]")))
	snap := s.View(Want{Holders: true, Driver: true}).Snapshot()
	got := map[string]int64{}
	for i := range snap.Samples {
		if x := &snap.Samples[i]; x.Frames()[0].Lines[0].Function == LineOldTensors {
			got[fmt.Sprintf("%s|%s|%d", x.Holder, x.Category, len(x.Stack))] = x.InuseBytes
		}
	}
	expect(t, "tensors from before", map[string]int64{
		"model.weight|parameter|2":                                   60 * mib,
		`optimizer.state[model.weight]["exp_avg"]|optimizer_state|2`: 30 * mib,
		"history[*]||2": 8 * mib,
		"||1":           2 * mib,
	}, got)
}

// Where PyTorch's allocator was read, tensors from before have the blocks that it has for them, what C++ alone
// holds is told, and so is what is cached. A segment that was seen allocated is not from before.
func TestHoldersFromBeforeHaveBlocks(t *testing.T) {
	const old, since = 0x7f0000000000, 0x1000000
	s := attached()
	k := before(s, prog, 6)
	k.backs(10, since, 20*mib, 20*mib)
	s.Apply(held(20, 300*mib))
	moment(s, 21)
	s.Apply(reading(20,
		stored(old, 11*mib+100, holders.Parameter, "model.wide"),
		stored(old+12*mib, 8*mib, holders.NoRole, ""),
		stored(since, 8*mib, holders.NoRole, "history[1]")))
	block := func(at, size uint64, state holders.BlockState, first bool) holders.Block {
		return holders.Block{Address: at, Size: size, State: state, First: first}
	}
	blocks := []holders.Block{
		block(since, 8*mib, holders.Allocated, true), block(since+8*mib, 12*mib, holders.Free, false),
		block(old, 12*mib, holders.Allocated, true),
		block(old+12*mib, 8*mib, holders.Allocated, true), block(old+20*mib, 30*mib, holders.Free, false),
		block(old+50*mib, 40*mib, holders.Unmapped, false),
		block(old+90*mib, 2*mib, holders.Waiting, true),
	}
	for i, part := range [][]holders.Block{blocks[:3], blocks[3:]} {
		s.Apply(&record.Blocks{Process: prog, Begin: 19, Index: i, Blocks: part, More: i == 0})
	}
	check := func(s *State) {
		t.Helper()
		expect(t, "lines", map[string]int64{
			LineAllocations: 20 * mib, LineOldTensors: 20 * mib, LineOldCached: 32 * mib, LineBefore: 228 * mib,
		}, lines(t, s))
		got := map[string]int64{}
		snap := s.View(Want{Holders: true, Driver: true}).Snapshot()
		for i := range snap.Samples {
			if x := &snap.Samples[i]; x.InuseBytes != 0 && x.Frames()[0].Lines[0].Function == LineOldTensors {
				got[x.Holder] += x.InuseBytes
			}
		}
		expect(t, "tensors from before", map[string]int64{"model.wide": 12 * mib, holders.NoHolder: 8 * mib}, got)
	}
	check(s)
	again := New()
	s.Keyframe(again.Apply)
	check(again)
	s.Apply(reading(30))
	if s.heaps.pieces != 0 {
		t.Errorf("%d blocks are counted, and none is kept", s.heaps.pieces)
	}
}

// Blocks of which there are too many are dropped, all of a process's.
func TestBlocksHaveBounds(t *testing.T) {
	s := attached()
	before(s, prog, 6)
	s.Apply(reading(20))
	part := make([]holders.Block, record.MaxHeapEntries)
	n := 0
	for ; n*len(part) <= maxBlocks/2; n++ {
		s.Apply(&record.Blocks{Process: prog, Begin: 19, Index: n, Blocks: part, More: true})
	}
	s.Apply(&record.Blocks{Process: prog, Begin: 19, Index: n, Blocks: part})
	if s.heaps.pieces != 0 || s.heaps.dropped == 0 || len(s.heaps.of[prog].reading.Allocators) > 0 {
		t.Errorf("%d blocks are kept, %d were dropped", s.heaps.pieces, s.heaps.dropped)
	}
}

// Where the allocator said nothing since the trace began, all from before is divided.
func TestHoldersFromBeforeAlone(t *testing.T) {
	s := attached()
	before(s, prog, 6)
	s.Apply(held(20, 300*mib))
	moment(s, 21)
	s.Apply(reading(20, stored(0x7000000, 60*mib, holders.Parameter, "model.weight"), stored(0xb0000000, 900*mib, holders.NoRole, "more than there is")))
	got := map[string]int64{}
	snap := s.View(Want{Holders: true, Driver: true}).Snapshot()
	for i := range snap.Samples {
		if x := &snap.Samples[i]; x.Frames()[0].Lines[0].Function == LineBefore {
			got[x.Holder] += x.InuseBytes
		}
	}
	expect(t, "what was allocated before attach", map[string]int64{"model.weight": 60 * mib, "": 240 * mib}, got)
	if got := lines(t, s)[LineBefore]; got != 300*mib {
		t.Errorf("the account's line has %d bytes", got)
	}
}

// The last complete reading counts. Another program's does not, nor that of a process
// that nobody traces.
func TestHeapReadings(t *testing.T) {
	s := begun(record.Trace{})
	count := func() int {
		n := 0
		for _, h := range s.View(Want{Holders: true}).Snapshot().Heaps {
			if n += len(h.Reading.Storages); len(h.Reading.Modules) != len(h.Reading.Storages) {
				t.Errorf("%d modules of %d storages", len(h.Reading.Modules), n)
			}
		}
		return n
	}
	parts := func(at uint64, n int) (out []*record.Heap) {
		r := reading(at).Reading
		for i := range n {
			r.Storages = append(r.Storages, stored(uint64(i+1)<<12, 4096, holders.NoRole, fmt.Sprint("x", i)))
			r.Modules = append(r.Modules, holders.Module{Address: uint64(i), Path: fmt.Sprint("m", i)})
		}
		return record.Heaps(prog, r)
	}
	for _, p := range parts(20, 3000) {
		s.Apply(p)
	}
	if n := count(); n != 3000 {
		t.Fatalf("%d storages", n)
	}
	next := parts(30, 2500)
	for _, p := range next[:len(next)-1] {
		s.Apply(p)
		if n := count(); n != 3000 {
			t.Fatalf("%d storages after a part of a reading", n)
		}
	}
	for _, p := range parts(40, 10) { // the last part of the one before was lost
		s.Apply(p)
	}
	if n := count(); n != 10 {
		t.Fatalf("%d storages after another reading", n)
	}
	s.Apply(&record.Heap{Process: event.Process{PID: 99}, Reading: reading(50, stored(1, 1, 0, "x")).Reading})
	if n := len(s.heaps.of); n != 1 {
		t.Errorf("%d processes have readings", n)
	}
	again := New()
	s.Keyframe(again.Apply)
	if got := again.View(Want{Holders: true}).Snapshot().Heaps; len(got) != 1 || len(got[0].Reading.Storages) != 10 {
		t.Errorf("after a keyframe there is %+v", got)
	}
	s.Apply(&event.Event{Op: event.OpExec, Proc: prog, Time: 60})
	if n := count(); n != 0 {
		t.Errorf("%d storages of the program before", n)
	}
}

// A tensor that no object of a module holds is in the innermost module of its stack that the
// reading has, and in none without a reading.
func TestModulesOfStacks(t *testing.T) {
	s := begun(record.Trace{})
	for id, modules := range map[uint64][]uint64{1: {0x300, 0x200, 0x100}, 2: {0x999, 0x400, 0x100}, 3: {0x999}, 4: nil} {
		l := &snapshot.Location{Address: id, Lines: []snapshot.Line{{Function: "forward"}}}
		s.Apply(&record.Stack{ID: id, Process: prog, Frames: []*record.Place{record.NewPlace(id, id, l, nil)}, Modules: modules})
		s.Apply(tensor(10+id, 0x1000000*id, mib, id, id*mib))
	}
	s.Apply(tensor(20, 0x9000000, mib, 1, 5*mib))
	paths := func(s *State) map[string]int64 {
		out := map[string]int64{}
		for _, x := range s.View(Want{Holders: true}).Snapshot().Samples {
			out[x.ModulePath+" "+x.Holder] += x.InuseBytes
		}
		return out
	}
	expect(t, "without a reading", map[string]int64{" ": 5 * mib}, paths(s))
	r := reading(30, inModule(stored(0x9000000, mib, holders.Buffer, "model.norm.mean"), "model.norm"))
	for i, path := range []string{"model", "model.layers[0]", "model.layers[0].mlp", "model.layers[1]"} {
		r.Reading.Modules = append(r.Reading.Modules, holders.Module{Address: uint64(i+1) << 8, Path: path})
	}
	s.Apply(r)
	want := map[string]int64{"model.layers[0].mlp ": mib, "model.layers[1] ": mib, " ": 2 * mib, "model.norm model.norm.mean": mib}
	expect(t, "with a reading", want, paths(s))
	again := New()
	s.Keyframe(again.Apply)
	expect(t, "after a keyframe", want, paths(again))
	before := begun(record.Trace{})
	again.stacks.All(func(st *record.Stack) bool {
		before.Apply(st)
		return true
	})
	before.Apply(tensor(11, 0x1000000, mib, 1, mib))
	before.LearnFrom(s)
	expect(t, "before the first reading", map[string]int64{"model.layers[0].mlp ": mib}, paths(before))
}

// Readings have a bound. Each takes no more than it leaves to others, its largest storages, and
// each lost storage is counted.
func TestHeapsAreBounded(t *testing.T) {
	s := begun(record.Trace{All: true})
	big := holdertest.Training()
	for i := range maxStorages {
		big.Storages = append(big.Storages, stored(uint64(i)<<12, uint64(i%7+1), holders.NoRole, "x"))
	}
	apply := func(id event.Process, r *holders.Reading) {
		s.Apply(&record.Process{Process: id, Target: true})
		for _, p := range record.Heaps(id, r) {
			s.Apply(p)
		}
	}
	sum := func() (n int) {
		for _, x := range s.heaps.of {
			n += size(x.reading)
		}
		if n != s.heaps.held {
			t.Fatalf("%d storages and modules are %d", n, s.heaps.held)
		}
		return n
	}
	apply(prog, big)
	if n := sum(); n > maxStorages || n < maxStorages/2 {
		t.Errorf("%d storages of one process", n)
	}
	for pid := range uint32(20) {
		apply(event.Process{PID: 100 + pid, Start: event.StartUnit}, holdertest.Training())
		if n := sum(); n > maxStorages {
			t.Fatalf("%d storages", n)
		}
	}
	for id, x := range s.heaps.of {
		if id != prog && size(x.reading) != size(holdertest.Training()) {
			t.Errorf("a small process has %d storages", size(x.reading))
		}
	}
	lost := int64(0)
	for _, c := range s.loss() {
		if c.Name == "heap_storages_dropped" {
			lost = int64(c.Value)
		}
	}
	if lost == 0 {
		t.Error("nothing was counted as lost")
	}
	if s.heaps.coming != 0 {
		t.Errorf("%d storages come", s.heaps.coming)
	}
	for id := range s.heaps.of {
		s.heaps.forget(id)
	}
	if n := s.heaps.held; n != 0 {
		t.Errorf("%d storages are held by nobody", n)
	}
}

// A failure for want of memory waits for the reading that it brought about, where heaps
// are read, and has the last one if none comes.
func TestHeapOfAFailure(t *testing.T) {
	for name, late := range map[string]bool{"the reading comes": true, "the process is gone": false} {
		s := begun(record.Trace{Incidents: 3})
		stack(s, 2, " ", "forward")
		s.Apply(alloc(prog, 10, 0x1000000, 40*mib))
		s.Apply(tensor(11, 0x1000000, 4*mib, 2, 4*mib))
		s.Apply(reading(20, stored(0x1000000, 4*mib, holders.Parameter, "before")))
		failed := alloc(prog, 30, 0, mib)
		failed.Result = event.OutOfMemory
		s.Apply(failed)
		moment(s, 31+recoveryWindow)
		s.Apply(&record.Loss{})
		if s.HasIncidents() {
			t.Fatalf("%s: the incident waits for no reading", name)
		}
		want := "before"
		if late {
			s.Apply(reading(40, stored(0x1000000, 4*mib, holders.Parameter, "after")))
			want = "after"
		} else {
			moment(s, 31+readingPatience)
		}
		s.Apply(&record.Loss{})
		all := s.Incidents(false)
		if len(all) != 1 {
			t.Fatalf("%s: %d incidents", name, len(all))
		}
		o := all[0].OutOfMemory(Want{})
		if len(o.Snapshot.Heaps) != 1 || o.Snapshot.Heaps[0].Reading.Storages[0].Holder != want {
			t.Errorf("%s: %+v", name, o.Snapshot.Heaps)
		}
		if got := byHolder(o.Snapshot)["[forward] "+want+" parameter heap"]; got != [2]int64{4 * mib, 1} {
			t.Errorf("%s: %v", name, byHolder(o.Snapshot))
		}
		if o.Snapshot.Live != nil {
			t.Errorf("%s: %d rows that nobody wanted", name, len(o.Snapshot.Live))
		}
	}
}
