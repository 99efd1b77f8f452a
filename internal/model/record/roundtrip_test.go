package record

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
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

// Parts of a state come back, and none that is too large.
func TestPartRoundTrip(t *testing.T) {
	many := make([]byte, maxPart)
	for i := range many {
		many[i] = byte(i)
	}
	want := []Record{&Part{Of: OfDriver, Data: many, More: true}, &Note{"between"}, &Part{Of: OfDriver, Data: []byte{1}}, &Part{Of: OfSteps, Data: []byte{}}}
	r := newTestReader(t, encoded(t, maxPayload, want...))
	if d := cmp.Diff(want, readAll(t, r)); d != "" {
		t.Error(d)
	}
	sound(t, r)
	for _, bad := range []*Part{{Data: append(many, 1)}, {Of: NumParts}} {
		if c := encode(bad); !c.bad {
			t.Errorf("%d bytes of part %d would be written", len(bad.Data), bad.Of)
		}
	}
}

// What visits fields writes and reads them, in as many Parts as need be.
func TestFields(t *testing.T) {
	type all struct {
		List  []uint64
		Map   map[int32]string
		Proc  event.Process
		Loss  []loss.Counter
		Small uint16
	}
	causes := []loss.Cause{loss.Of("one", "first"), loss.Of("two", "second")}
	set := loss.New(causes)
	set.Add(1, 7)
	visit := func(x *all, set *loss.Set) func(*Fields) {
		return func(f *Fields) {
			List(f, &x.List, 1, 1<<20, func(v *uint64) { f.Uint(v) })
			Map(f, x.Map, 2, 10, func(k *int32, v *string) {
				Signed(f, k)
				f.Text(v)
			})
			f.Process(&x.Proc)
			f.Loss(set)
			UpTo(f, &x.Small, 1000)
		}
	}
	want := &all{Map: map[int32]string{-1: "a", 2: ""}, Proc: event.Process{PID: 7, Start: 8}, Small: 1000}
	for i := range uint64(50_000) {
		want.List = append(want.List, i<<(i%64))
	}
	var data []byte
	parts := 0
	WriteFields(OfTensors, visit(want, set), func(r Record) {
		p := r.(*Part)
		if data, parts = append(data, p.Data...), parts+1; len(p.Data) > maxPart || p.Of != OfTensors {
			t.Errorf("%d bytes of part %d", len(p.Data), p.Of)
		}
	})
	got, counted := &all{Map: map[int32]string{}}, loss.New(causes)
	if !ReadFields(data, visit(got, counted)) || parts < 2 {
		t.Errorf("nonsense in %d parts", parts)
	}
	if d := cmp.Diff(want, got); d != "" || counted.Counters()[1].Value != 7 {
		t.Errorf("%v (-written +read):\n%s", counted.Counters(), d)
	}
	for _, n := range []int{0, 1, len(data) / 2, len(data) - 1} {
		if ReadFields(data[:n], visit(&all{Map: map[int32]string{}}, counted)) {
			t.Errorf("the first %d bytes make sense", n)
		}
	}
}
