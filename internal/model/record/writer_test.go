package record

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.gmt")
	for _, o := range []WriterOptions{{MaxBytes: MinBytes}, {MaxBytes: MinBytes - 1, Keyframe: func(func(Record)) {}}, {MaxBytes: -1}} {
		if _, err := Create(fresh(t, path), o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	w, err := Create(fresh(t, path), WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.Append(&Note{"hello"})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	w.Append(&Note{"late"})
	if n := w.Loss()[lossNotRecorded].Value; n != 1 {
		t.Errorf("%d records lost, want 1", n)
	}
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if d := cmp.Diff([]Record{&Note{"hello"}}, readAll(t, r)); d != "" {
		t.Error(d)
	}
	sound(t, r)
}

// What was recorded is in the file soon, also when nothing follows.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &memoryFile{}
		w := newTestWriter(t, f, WriterOptions{}, layout{}, maxPayload)
		w.Append(&Note{"one"})
		time.Sleep(time.Second)
		synctest.Wait()
		r := newTestReader(t, f.bytes())
		if got := readAll(t, r); len(got) != 1 || !r.Truncated() {
			t.Errorf("%d records, truncated %v", len(got), r.Truncated())
		}
		size := len(f.bytes())
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(f.bytes()) != size {
			t.Error("the file grows though nothing is recorded")
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// pending reports whether something waits to be handed over.
func (w *Writer) pending() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.enc.buf) > 0
}

const killedEnv = "RECORD_TEST_FILE"

// TestKilledWriter is the process that is killed, too.
func TestKilledWriter(t *testing.T) {
	if path := os.Getenv(killedEnv); path != "" {
		w, err := Create(fresh(t, path), WriterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := uint64(1); ; i++ {
			w.Append(&event.Event{Time: i, Addr: i, Op: event.OpAlloc})
			if i == 1_000_000 {
				time.Sleep(flushInterval)
				for w.pending() || w.queue.unwritten() > 0 {
					time.Sleep(time.Millisecond)
				}
				fmt.Println("ready")
			}
			if i > 1_000_000 {
				time.Sleep(time.Microsecond)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "a.rec")
	cmd := exec.Command(os.Args[0], "-test.run", "^TestKilledWriter$")
	cmd.Env = append(os.Environ(), killedEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Error(err)
	}
	cmd.Process.Kill()
	cmd.Wait()

	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	all := readAll(t, r)
	for i, rec := range all {
		if ev := rec.(*event.Event); ev.Addr != uint64(i+1) {
			t.Fatalf("record %d is event %d", i, ev.Addr)
		}
	}
	if len(all) < 1_000_000 || !r.Truncated() || r.uncertain {
		t.Errorf("%d events, truncated %v, uncertain %v", len(all), r.Truncated(), r.uncertain)
	}
}

func numbered(n uint64) *event.Event {
	return &event.Event{Time: n, Addr: n * 1_000_003, Size: n, Op: event.OpAlloc}
}

// A full disk keeps what is there; when there is room again the recording goes
// on and tells what is missing.
func TestFullDisk(t *testing.T) {
	f := &memoryFile{limit: 10_000}
	w := newTestWriter(t, f, WriterOptions{}, layout{}, 4<<10)
	n := uint64(0)
	fill := func(count int) {
		for range count {
			n++
			w.Append(numbered(n))
			if n%200 == 0 {
				w.flush()
			}
		}
	}
	fill(2000)
	if err := w.Err(); !errors.Is(err, errDiskFull) {
		t.Fatalf("Err() = %v", err)
	}
	if r := newTestReader(t, f.bytes()); len(readAll(t, r)) == 0 || r.uncertain || !r.Truncated() {
		t.Error("what was written before the disk was full is not whole")
	}
	lost := w.Loss()[lossNotRecorded].Value
	f.setLimit(0)
	fill(2000)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r := newTestReader(t, f.bytes())
	all := readAll(t, r)
	if lost == 0 || w.Loss()[lossNotRecorded].Value != lost || uint64(len(all)) != n-lost {
		t.Errorf("%d of %d events read, %d lost", len(all), n, lost)
	}
	if last := all[len(all)-1].(*event.Event); last.Addr != numbered(n).Addr {
		t.Error("the last event is missing")
	}
	if r.Loss()[readNotRecorded].Value != lost || r.Loss()[readDamaged].Value != 0 || !r.uncertain || r.Truncated() || len(r.Notes()) != 1 {
		t.Errorf("%v, uncertain %v, truncated %v, %q", r.Loss(), r.uncertain, r.Truncated(), r.Notes())
	}
}

// A disk that is full at the end leaves a recording that was not closed.
func TestFullDiskAtTheEnd(t *testing.T) {
	f := &memoryFile{}
	w := newTestWriter(t, f, WriterOptions{}, layout{}, 4<<10)
	for n := range uint64(3000) {
		if n == 1000 {
			w.flush()
			f.setLimit(int64(len(f.bytes())) + 10)
		}
		w.Append(numbered(n + 1))
	}
	if err := w.Close(); !errors.Is(err, errDiskFull) {
		t.Errorf("Close() = %v", err)
	}
	r := newTestReader(t, f.bytes())
	if got := uint64(len(readAll(t, r))); got == 0 || got+w.Loss()[lossNotRecorded].Value != 3000 || !r.Truncated() {
		t.Errorf("%d read, %v, truncated %v", got, w.Loss(), r.Truncated())
	}
}

// A disk that is full from the beginning, until the end or for a while, leaves a
// recording that was cut short. It is not damaged: nothing in it is wrong.
func TestFullDiskFromTheBeginning(t *testing.T) {
	for _, room := range []bool{false, true} {
		f := &memoryFile{limit: fileHeaderSize}
		w := newTestWriter(t, f, WriterOptions{}, layout{}, 4<<10)
		w.Append(&Trace{Version: "v"})
		w.flush()
		if room {
			f.setLimit(0)
		}
		w.Append(&Note{"after"})
		if err := w.Close(); (err == nil) != room {
			t.Errorf("Close() = %v", err)
		}
		data := f.bytes()
		r := newTestReader(t, data)
		all := readAll(t, r)
		if err := r.MissingTrace(); !errors.Is(err, ErrCutShort) || (len(all) > 0) != room || r.Truncated() == room {
			t.Errorf("room again %v: %v, %d records, truncated %v", room, err, len(all), r.Truncated())
		}
		if room {
			data[len(data)-1] ^= 1
			r := newTestReader(t, data)
			readAll(t, r)
			if err := r.MissingTrace(); !errors.Is(err, ErrMalformed) {
				t.Errorf("damaged: %v", err)
			}
		}
	}
}

// Append never waits: a disk that hangs costs records, and memory for as many
// blocks as may wait.
func TestSlowDisk(t *testing.T) {
	f := &memoryFile{}
	w, err := newWriter(f, WriterOptions{}, layout{}, 4<<10, 8)
	if err != nil {
		t.Fatal(err)
	}
	f.hold = make(chan struct{})
	n := uint64(0)
	place := NewPlace(1, 77, nil, nil)
	for range 50_000 {
		n++
		w.Append(numbered(n))
		if n%1000 == 0 {
			w.Append(&Stack{ID: n, Frames: []*Place{place}})
		}
	}
	if got := w.queue.unwritten(); got != 8 && got != 9 {
		t.Errorf("%d blocks wait or are being written, want 8 and one", got)
	}
	lost := w.Loss()[lossNotRecorded].Value
	close(f.hold)
	for w.queue.unwritten() > 0 {
		time.Sleep(time.Millisecond)
	}
	w.Append(&Stack{ID: 1, Frames: []*Place{place}})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r := newTestReader(t, f.bytes())
	all := readAll(t, r)
	if lost == 0 || w.Loss()[lossNotRecorded].Value != lost || r.Loss()[readNotRecorded].Value != lost || uint64(len(all))+lost != n+n/1000+1 {
		t.Errorf("%d read, %v, %v", len(all), w.Loss(), r.Loss())
	}
	if s := all[len(all)-1].(*Stack); s.Frames[0].Address != 77 {
		t.Error("a place was not defined again after its definition may have been lost")
	}
}

// A file without a bound is whole again after a loss, by a keyframe.
func TestKeyframeHeals(t *testing.T) {
	frames := 0
	f := &memoryFile{}
	w := newTestWriter(t, f, WriterOptions{Keyframe: func(yield func(Record)) {
		frames++
		for range 300 {
			yield(&Note{"keyframe"})
			yield(&Moment{Slept: 1 << 60})
		}
	}}, layout{}, 4<<10)
	n := uint64(0)
	fill := func(count int) {
		for range count {
			n++
			w.Append(numbered(n))
			if n%300 == 0 {
				w.flush()
			}
		}
	}
	fill(1000)
	f.setLimit(int64(len(f.bytes())))
	fill(1000)
	if frames != 0 {
		t.Error("a keyframe was recorded while the disk was full")
	}
	f.setLimit(0)
	fill(4000)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if frames != 1 {
		t.Errorf("%d keyframes, want 1", frames)
	}
	r := newTestReader(t, f.bytes())
	all := readAll(t, r)
	cut := slices.IndexFunc(all, func(rec Record) bool { _, ok := rec.(*Cut); return ok })
	if cut < 0 || r.uncertain || r.Loss()[readNotRecorded].Value == 0 {
		t.Fatalf("cut %d, uncertain %v, %v", cut, r.uncertain, r.Loss())
	}
	if d := cmp.Diff(&Note{"keyframe"}, all[cut+1]); d != "" {
		t.Error(d)
	}
	after := all[cut+1+600:]
	for i, rec := range after {
		if d := cmp.Diff(numbered(n-uint64(len(after)-1-i)), rec); d != "" {
			t.Fatal(d)
		}
	}

	// Without its Cut a keyframe would be taken for what happened.
	data := f.bytes()
	for _, start := range blocksOf(t, data) {
		if h, ok := parseBlock(data[start:], 0); ok && h.Flags&flagCut != 0 {
			data[start+blockHeaderSize] ^= 1
		}
	}
	r = newTestReader(t, data)
	for _, rec := range readAll(t, r) {
		if _, ok := rec.(*event.Event); !ok {
			t.Fatalf("%v is returned", rec)
		}
	}
	if !r.uncertain {
		t.Error("the recording looks whole without its keyframe")
	}
}

// Places are defined again when they come up after very many others.
func TestManyPlaces(t *testing.T) {
	ids := []uint64{1, 2, 1 << 20, 1, placeWindow + 5, 2, placeWindow + 4, 3 * placeWindow, placeWindow + 5, 1, 3*placeWindow + 64, 1 << 63, 3 * placeWindow, math.MaxUint64, 1 << 63, 1}
	var want []Record
	places := map[uint64]*Place{}
	for i, id := range ids {
		if places[id] == nil {
			places[id] = NewPlace(id, id*3, nil, nil)
		}
		want = append(want, &Stack{ID: uint64(i), Frames: []*Place{places[id], places[id]}})
	}
	r := newTestReader(t, encoded(t, maxPayload, want...))
	got := readAll(t, r)
	if d := cmp.Diff(want, got, comparePlaces); d != "" {
		t.Error(d)
	}
	sound(t, r)
	for i, rec := range got {
		if f := rec.(*Stack).Frames; f[0] != f[1] || i == 3 && f[0] != got[0].(*Stack).Frames[0] {
			t.Errorf("stack %d: a place has two pointers", i)
		}
	}

	// A reader forgets only what a writer defines again.
	var set placeSet
	k := newKnown(1 << 20)
	for id := range uint64(1000) {
		id *= placeWindow / 100
		set.add(id)
		k.define(id, 0, unnamed, nil)
	}
	k.forget()
	for id := range uint64(1000) {
		id *= placeWindow / 100
		if k.places[id] == nil && !set.add(id) {
			t.Errorf("place %d is forgotten", id)
		}
	}
	if n := len(k.places); n > 101 {
		t.Errorf("%d places are kept", n)
	}
}

// Everything of a Writer may be called from anywhere at any time.
func TestConcurrentUse(t *testing.T) {
	f := &memoryFile{}
	w := newTestWriter(t, f, WriterOptions{}, layout{}, 4<<10)
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			p := NewPlace(uint64(g+1), 5, nil, nil)
			for i := range 2000 {
				w.Append(numbered(uint64(i)))
				if i%100 == 0 {
					w.Append(&Stack{ID: uint64(i), Frames: []*Place{p}})
					w.flush()
				}
				w.Loss()
				w.Err()
			}
		})
	}
	all.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r := newTestReader(t, f.data)
	if n := len(readAll(t, r)); n != 4*2020 {
		t.Errorf("%d records, want %d", n, 4*2020)
	}
	sound(t, r)
}
