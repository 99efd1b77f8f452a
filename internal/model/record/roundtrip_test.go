package record

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

func TestRoundTrip(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 4 // for the race detector each is alike: a writer's goroutines, then one that reads
	}
	for seed := range seeds {
		want := newMaker(seed).records(400)
		for _, blockSize := range []int{4 << 10, maxPayload} {
			r := newTestReader(t, encoded(t, blockSize, want...))
			got := readAll(t, r)
			if d := cmp.Diff(want, got, comparePlaces); d != "" {
				t.Fatalf("seed %d, blocks of %d bytes (-written +read):\n%s", seed, blockSize, d)
			}
			sound(t, r)
		}
	}
}

// What the kernel driver's operations tell comes back, all of it.
func TestObjectsRoundTrip(t *testing.T) {
	want := objects()
	if d := cmp.Diff(want, readAll(t, newTestReader(t, encoded(t, 4<<10, want...)))); d != "" {
		t.Error(d)
	}
}

// What was one pointer is one again, in other blocks too.
func TestReadSharesPointers(t *testing.T) {
	m := &snapshot.Mapping{Start: 1 << 40, Limit: 1<<40 + 4096, Path: "/lib/libcuda.so.1"}
	name := func(f string) *snapshot.Location {
		return &snapshot.Location{Address: 1<<40 + 7, Mapping: m, Lines: []snapshot.Line{{Function: f}}}
	}
	a, b := NewPlace(1, 1<<40+7, name("a"), nil), NewPlace(2, 1<<40+9, nil, nil)
	filler := &Note{strings.Repeat("x", 1000)}
	r := newTestReader(t, encoded(t, 2<<10,
		&Stack{ID: 1, Frames: []*Place{a, b}}, filler,
		&Name{b, name("b"), true}, filler,
		&Stack{ID: 2, Frames: []*Place{b, a, a}}, filler,
		&Process{Program: m},
	))
	all := readAll(t, r)
	s1, n, s2, p := all[0].(*Stack), all[2].(*Name), all[4].(*Stack), all[6].(*Process)
	if s1.Frames[0] != s2.Frames[1] || s1.Frames[0] != s2.Frames[2] || s1.Frames[1] != s2.Frames[0] || n.Place != s1.Frames[1] {
		t.Error("places are not shared")
	}
	if n.Location.Mapping != p.Program || s1.Frames[0].Location().Mapping != p.Program {
		t.Error("mappings are not shared")
	}
	if !s1.Frames[0].Final() || s1.Frames[1].Named() {
		t.Error("a Name was applied by the reader, or a name that came with its place is missing")
	}
}

func TestTextsAreCut(t *testing.T) {
	f := &memoryFile{}
	w := newTestWriter(t, f, WriterOptions{}, layout{}, maxPayload)
	long := strings.Repeat("y", maxString+1)
	w.Append(&Note{long})
	w.Append(&event.Event{Name: long})
	w.Append(&Note{"after"})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got := readAll(t, newTestReader(t, f.data))
	want := []Record{&Note{long[:maxString]}, &event.Event{Name: long[:maxString]}, &Note{"after"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if n := w.Loss()[lossTextCut].Value; n != 2 {
		t.Errorf("%d texts were cut, want 2", n)
	}
}

func TestUnfitRecordsAreCounted(t *testing.T) {
	f := &memoryFile{}
	w := newTestWriter(t, f, WriterOptions{}, layout{}, maxPayload)
	unfit := []Record{
		nil,
		&Stack{Frames: make([]*Place, maxFrames+1)},
		&Stack{Frames: []*Place{nil}},
		&Stack{Modules: make([]uint64, maxStackModules+1)},
		&Name{},
		&Name{Place: NewPlace(1, 1, nil, nil), Location: &snapshot.Location{}},
		&Loss{Notes: []string{strings.Repeat("a", maxString), strings.Repeat("b", maxString), strings.Repeat("c", maxString), strings.Repeat("d", maxString)}},
		&Reading{Uses: []Use{{Device: 0}}},
		&Reading{Devices: make([]Device, 1), Ordinals: []Ordinal{{Device: -1}}},
	}
	for _, r := range unfit {
		w.Append(r)
	}
	w.Append(&Note{"after"})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r := newTestReader(t, f.data)
	if d := cmp.Diff([]Record{&Note{"after"}}, readAll(t, r)); d != "" {
		t.Error(d)
	}
	sound(t, r)
	if n := w.Loss()[lossUnfit].Value; n != uint64(len(unfit)) {
		t.Errorf("%d are unfit, want %d", n, len(unfit))
	}
}

// Numbers of steps come back, and no more of them than there may be.
func TestStepsRoundTrip(t *testing.T) {
	many := make([]uint64, MaxNumbers)
	for i := range many {
		many[i] = newMaker(uint64(i)).u64()
	}
	proc := event.Process{PID: 7, Start: event.StartUnit}
	want := []Record{&Steps{Process: proc, Numbers: many, More: true}, &Note{"between"}, &Steps{Process: proc, Numbers: []uint64{1}}, &Steps{}}
	r := newTestReader(t, encoded(t, maxPayload, want...))
	if d := cmp.Diff(want, readAll(t, r)); d != "" {
		t.Error(d)
	}
	sound(t, r)
	c := encode(&Steps{Numbers: append(many, 1)})
	if !c.bad {
		t.Error("more than MaxNumbers would be written")
	}
	d := codec{reading: true, shared: newKnown(1 << 20)}
	d.begin(c.buf)
	if d.next(); !d.bad {
		t.Error("more than MaxNumbers were read")
	}
}
