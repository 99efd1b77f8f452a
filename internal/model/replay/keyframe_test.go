package replay

import (
	"cmp"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// recordsOf returns the records of a file, each its own.
func recordsOf(t *testing.T, path string) (all []record.Record) {
	t.Helper()
	r, err := record.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		x, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := x.(*event.Event); ok {
			kept := *e
			x = &kept
		}
		all = append(all, x)
	}
}

// allOf is all that a state shows, but for windows, which begin anew.
func allOf(s *state.State) *snapshot.Snapshot {
	out := s.View(state.Want{Live: true, Driver: true, Steps: s.TensorWindows() == nil, Freed: true, GPUs: true, Holders: true}).Snapshot()
	slices.SortFunc(out.Live, func(a, b snapshot.Allocation) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Handle, b.Handle), cmp.Compare(a.Sample, b.Sample))
	})
	if out.Meta.Windows != nil {
		out.Meta.Windows, out.Notes, out.Loss = nil, nil, nil
	}
	return out
}

func compareAll(t *testing.T, when string, whole, cut *state.State) {
	t.Helper()
	a, b := allOf(whole), allOf(cut)
	if reflect.DeepEqual(a, b) {
		return // Diff takes long
	}
	if d := gocmp.Diff(a, b, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("%s (-whole +cut):\n%.6000s", when, d)
	}
}

// follow applies the records from at on to whole, and to a recording that begins there. It returns
// the state at the end of that.
func follow(t *testing.T, whole *state.State, all []record.Record, at int) *state.State {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "cut.gmt"))
	if err != nil {
		t.Fatal(err)
	}
	w, err := record.Create(f, record.WriterOptions{Since: max(whole.Now(), 1), Keyframe: whole.Keyframe, Unbounded: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all[at:] {
		w.Append(r)
		whole.Apply(r)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	cut := state.New()
	for _, r := range recordsOf(t, f.Name()) {
		cut.Apply(r)
	}
	return cut
}

// A recording that begins in the middle of a trace shows, there and at its end, what the whole
// one shows: figures, counts and peaks, each allocation, accounts, steps and loss.
func TestKeyframeOfRealRecordings(t *testing.T) {
	var paths []string
	for _, pattern := range []string{"*.gmt", "*/*.gmt", "*/*/*.gmt"} {
		some, err := filepath.Glob("../../../test/recordings/" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, some...)
	}
	if len(paths) < 32 {
		t.Fatalf("%d recordings", len(paths))
	}
	for i, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			all := recordsOf(t, path)
			at := len(all)/4 + rand.New(rand.NewPCG(uint64(i), 2)).IntN(len(all)/2)
			whole, cut := state.New(), state.New()
			for _, r := range all[:at] {
				whole.Apply(r)
			}
			cut.Apply(&record.Cut{Time: whole.Now()})
			whole.Keyframe(cut.Apply)
			compareAll(t, "where it begins", whole, cut)
			compareAll(t, "at the end", whole, follow(t, whole, all, at))
		})
	}
}

// A recording that wrapped says of now what the whole one says, and of what was ever allocated
// and of peaks, too.
func TestWrappedRecording(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	all := []record.Record{traceOf(), &record.Process{Process: proc, Target: true, Name: "prog", FromStart: true}}
	var live []uint64
	now := uint64(0)
	for i := range uint64(800_000) {
		now = at(time.Duration(i) * time.Microsecond)
		e := &event.Event{Op: event.OpAlloc, Time: now, Proc: proc, TID: rng.Uint32(), Stack: 1 + rng.Uint64N(100), Stream: rng.Uint64(), API: 1, Kind: event.KindDevice, Addr: rng.Uint64() >> 8, Size: 1 + rng.Uint64N(1<<40)}
		// Most is held in the first tenth.
		if n := len(live); n > 100 && (i > 70_000 && n > 1000 || rng.IntN(3) == 0) {
			e.Op, e.Addr, e.Size = event.OpFree, live[n-1], 0
			live = live[:n-1]
		} else {
			live = append(live, e.Addr)
		}
		all = append(all, e)
	}
	all = append(all, &record.Moment{Time: now, Drained: true})
	f, err := os.Create(filepath.Join(t.TempDir(), "ring.gmt"))
	if err != nil {
		t.Fatal(err)
	}
	whole := state.New()
	w, err := record.Create(f, record.WriterOptions{MaxBytes: record.MinBytes, Keyframe: whole.Keyframe, Unbounded: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		w.Append(r)
		whole.Apply(r)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	left := recordsOf(t, f.Name())
	if _, cut := left[0].(*record.Cut); !cut || len(left) > len(all) {
		t.Fatalf("it begins with a %T: %d of %d records are left", left[0], len(left), len(all))
	}
	s, err := Play(f.Name(), Options{At: End})
	if err != nil {
		t.Fatal(err)
	}
	compareAll(t, "at the end", whole, s)
	if p := s.Processes()[0]; p.Peak < 10*p.Inuse {
		t.Errorf("the peak is %d bytes, %d are in use", p.Peak, p.Inuse)
	}
}
