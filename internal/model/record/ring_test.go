package record

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A write is one that a Writer did.
type write struct {
	data   []byte
	offset int64
}

// ringRecording is a recording of numbered events, with a stack every hundred,
// as the writes that made it. The keyframe has filler notes besides what it needs.
func ringRecording(t *testing.T, l layout, blockSize, events, filler int) (writes []write, w *Writer) {
	t.Helper()
	f := &memoryFile{wrote: func(b []byte, o int64) { writes = append(writes, write{slices.Clone(b), o}) }}
	place := NewPlace(1, 77, &snapshot.Location{Address: 77, Lines: []snapshot.Line{{Function: "f"}}}, nil)
	n := uint64(0)
	w, err := newWriter(f, WriterOptions{Keyframe: func(yield func(Record)) {
		yield(&Trace{Version: "v"})
		yield(&Note{fmt.Sprint(n)})
		for i := range filler {
			yield(&Note{fmt.Sprint("filler ", i)})
		}
	}}, l, blockSize, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for range events {
		// The state has it once Append has returned.
		w.Append(numbered(n + 1))
		n++
		if n%100 == 0 {
			w.Append(&Stack{ID: n, Frames: []*Place{place, place}})
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return writes, w
}

// checkSuffix checks that what is read is all that was recorded from some moment
// on, after what rebuilds the state of that moment. It returns the first and the
// last event's number.
func checkSuffix(t *testing.T, data []byte, filler int) (first, last uint64) {
	t.Helper()
	r := newTestReader(t, data)
	all := readAll(t, r)
	if r.uncertain || len(all) > 0 && r.Loss()[readNotRecorded].Value != 0 || r.Loss()[readPlaces].Value != 0 {
		t.Fatalf("uncertain %v, %v, %q", r.uncertain, r.Loss(), r.Notes())
	}
	if len(all) == 0 {
		return 0, 0
	}
	if cut, ok := all[0].(*Cut); ok {
		if len(all) < filler+3 {
			t.Fatalf("%d records are no keyframe", len(all))
		}
		if d := cmp.Diff(&Trace{Version: "v"}, all[1]); d != "" {
			t.Fatal(d)
		}
		fmt.Sscan(all[2].(*Note).Text, &last)
		if cut.Time != last {
			t.Fatalf("cut at %d, state of %d", cut.Time, last)
		}
		all = all[3+filler:]
	}
	first = last + 1
	for _, rec := range all {
		switch rec := rec.(type) {
		case *event.Event:
			last++
			if *rec != *numbered(last) {
				t.Fatalf("event %d is %+v", last, rec)
			}
		case *Stack:
			if rec.ID != last || rec.Frames[0] != rec.Frames[1] || rec.Frames[0].Location().Lines[0].Function != "f" {
				t.Fatalf("after event %d stack %d of %v", last, rec.ID, rec.Frames)
			}
		default:
			t.Fatalf("a %T after event %d", rec, last)
		}
	}
	return first, last
}

// Whatever moment the writer is killed at, also within a write, the file has a
// suffix of what was recorded, and is within its bound.
func TestRing(t *testing.T) {
	const filler = 20
	l := layout{regions: 4, regionSize: 16 << 10}
	writes, w := ringRecording(t, l, 2<<10, 30_000, filler)
	for _, c := range w.Loss() {
		if c.Value != 0 {
			t.Errorf("%s = %d", c.Name, c.Value)
		}
	}
	var data []byte
	apply := func(on []byte, w write, n int) []byte {
		if end := int(w.offset) + n; n > 0 && end > len(on) {
			on = append(on, make([]byte, end-len(on))...)
		}
		copy(on[min(int(w.offset), len(on)):], w.data[:n])
		return on
	}
	var firsts []uint64
	before, dropped := uint64(0), uint64(0)
	for i, w := range writes {
		torn := []int{1, len(w.data) - 1, 40, blockHeaderSize, blockHeaderSize + 1, len(w.data) / 2}
		if testing.Short() {
			torn = torn[:2]
		}
		for _, n := range torn {
			if i > 0 {
				_, last := checkSuffix(t, apply(slices.Clone(data), w, min(n, len(w.data))), filler)
				if before > 0 && last < before {
					t.Fatalf("write %d torn at %d: the last event is %d, it was %d", i, n, last, before)
				}
			}
		}
		data = apply(data, w, len(w.data))
		if int64(len(data)) > l.start(l.regions) {
			t.Fatalf("the file has %d bytes", len(data))
		}
		if i > 0 {
			var first uint64
			first, before = checkSuffix(t, data, filler)
			if len(firsts) == 0 || firsts[len(firsts)-1] != first {
				firsts = append(firsts, first)
			}
			// At least three regions' worth, less what keyframes and ends take.
			if dropped = max(dropped, first-1); dropped > 0 && before-first < 3000 {
				t.Fatalf("only events %d to %d are kept", first, before)
			}
		}
	}
	if before != 30_000 || len(firsts) < 8 {
		t.Errorf("the last event is %d, regions begin with %v", before, firsts)
	}
	if r := newTestReader(t, data); len(readAll(t, r)) == 0 || r.Truncated() {
		t.Error("the closed recording looks truncated")
	}
}

// A region that is damaged is a gap, and what follows it is whole again by its
// keyframe.
func TestRingHealsDamage(t *testing.T) {
	l := layout{regions: 4, regionSize: 16 << 10}
	writes, _ := ringRecording(t, l, 2<<10, 30_000, 3)
	data := make([]byte, l.start(l.regions))
	for _, w := range writes {
		copy(data[w.offset:], w.data)
	}
	s := newTestReader(t, data).scanner.spans
	data[s[1].start+5000] ^= 1
	r := newTestReader(t, data)
	all := readAll(t, r)
	var cuts int
	for _, rec := range all {
		if _, ok := rec.(*Cut); ok {
			cuts++
		}
	}
	if cuts != 2 || r.uncertain || r.Loss()[readDamaged].Value != 1 || len(r.Notes()) != 1 {
		t.Errorf("%d cuts, uncertain %v, %v, %q", cuts, r.uncertain, r.Loss(), r.Notes())
	}
}

// A keyframe that does not fit is left out, which is counted, and told when
// nothing else rebuilds the state.
func TestKeyframeTooLarge(t *testing.T) {
	l := layout{regions: 4, regionSize: 16 << 10}
	writes, w := ringRecording(t, l, 2<<10, 30_000, 20_000)
	if n := w.Loss()[lossKeyframeLarge].Value; n < 5 {
		t.Errorf("%d keyframes were too large", n)
	}
	data := make([]byte, l.start(l.regions))
	for _, w := range writes {
		copy(data[w.offset:], w.data)
	}
	r := newTestReader(t, data)
	all := readAll(t, r)
	if _, ok := all[0].(*Cut); !ok || !r.uncertain || len(r.Notes()) != 1 || r.Loss()[readPlaces].Value != 0 {
		t.Errorf("%T first, uncertain %v, %q, %v", all[0], r.uncertain, r.Notes(), r.Loss())
	}
	var last uint64
	for _, rec := range all[1:] {
		if ev, ok := rec.(*event.Event); ok {
			if last != 0 && ev.Time != last+1 {
				t.Fatalf("event %d after %d", ev.Time, last)
			}
			last = ev.Time
		}
	}
	if last != 30_000 {
		t.Errorf("the last event is %d", last)
	}
}

// The file of a real Writer is within its bound too.
func TestMaxBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 40 MiB")
	}
	path := t.TempDir() + "/a.rec"
	n := uint64(0)
	w, err := Create(fresh(t, path), WriterOptions{MaxBytes: MinBytes, Keyframe: func(yield func(Record)) {
		yield(&Trace{Version: "v"})
		yield(&Note{fmt.Sprint(n)})
	}})
	if err != nil {
		t.Fatal(err)
	}
	for range 5_000_000 {
		w.Append(numbered(n + 1))
		n++
		for w.queue.unwritten() > queueDepth/2 {
			time.Sleep(time.Millisecond)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range w.Loss() {
		if c.Value != 0 {
			t.Errorf("%s = %d", c.Name, c.Value)
		}
	}
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.scanner.size > MinBytes {
		t.Errorf("%d bytes", r.scanner.size)
	}
	all := readAll(t, r)
	if _, ok := all[0].(*Cut); !ok || all[len(all)-1].(*event.Event).Time != n {
		t.Errorf("from a %T to event %v", all[0], all[len(all)-1])
	}
	sound(t, r)
}

// A recording that begins amid a trace has first what rebuilds the state, whether it
// has regions or not, and however short it is.
func TestBeginsAmidATrace(t *testing.T) {
	for _, l := range []layout{{salt: 1}, {regions: 4, regionSize: 4 << 10, salt: 1}} {
		for _, events := range []int{0, 1, 50, 5000} {
			f := &memoryFile{}
			const before = 1000
			n := uint64(before)
			w, err := newWriter(f, WriterOptions{Since: before, Keyframe: func(yield func(Record)) {
				yield(&Trace{Version: "v"})
				yield(&Note{fmt.Sprint(n)})
			}}, l, 512, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			for range events {
				w.Append(numbered(n + 1))
				n++
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			first, last := checkSuffix(t, f.bytes(), 0)
			switch {
			case events == 0 && last != 0:
				t.Errorf("%d regions: %d to %d of none", l.regions, first, last)
			case events > 0 && (last != n || l.regions == 0 && first != before+1 || first <= before):
				t.Errorf("%d regions, %d events: from %d to %d", l.regions, events, first, last)
			}
		}
	}
}

// A keyframe that waits for the disk takes the memory of its compressed blocks.
func TestKeyframeWaitsCompressed(t *testing.T) {
	events := linear(40_000)
	f := &memoryFile{}
	w := newTestWriter(t, f, WriterOptions{Keyframe: func(yield func(Record)) {
		for i := range events {
			yield(&events[i])
		}
	}}, layout{}, 16<<10)
	f.hold = make(chan struct{})
	w.mu.Lock()
	w.keyframe()
	w.queue.mu.Lock()
	waiting, payloads := len(w.queue.blocks), 0
	for _, b := range w.queue.blocks {
		payloads += cap(b.buf)
	}
	w.queue.mu.Unlock()
	w.mu.Unlock()
	if waiting < 10 || payloads > 0 {
		t.Errorf("%d blocks wait, with %d bytes of payloads", waiting, payloads)
	}
	close(f.hold)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r := newTestReader(t, f.data)
	if got := len(readAll(t, r)); got != len(events)+1 { // and the Cut
		t.Errorf("%d records", got)
	}
	sound(t, r)
}
