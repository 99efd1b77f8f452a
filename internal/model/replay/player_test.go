package replay

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// shown is all that a state shows, but for what the recording itself lacks: a Play tells
// that from the first moment on.
func shown(t *testing.T, s *state.State, shapes *state.Shapes) string {
	t.Helper()
	snap := s.View(state.Want{Driver: true, Live: true, Shapes: shapes}).Snapshot()
	snap.Loss, snap.Notes = nil, nil
	var b bytes.Buffer
	if err := export.JSON(&b, snap, export.Options{}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "%+v\n", snap.Steps)
	return b.String()
}

// A Player shows at each moment what Play does, on and back, and so does what keeps how
// stacks look.
func TestPlayer(t *testing.T) {
	for name, path := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			end, err := Play(path, Options{At: End})
			if err != nil {
				t.Fatal(err)
			}
			span := end.Time().Sub(end.Start())
			p, shapes := NewPlayer(path), state.NewShapes()
			defer p.Close()
			for _, part := range []int{0, 1, 30, 31, 32, 50, 77, 99, 100, 40, 41, 90, 5, 100, 100} {
				at := span * time.Duration(part) / 100
				want, err := Play(path, Options{At: at})
				if err != nil {
					t.Fatal(err)
				}
				got, err := p.To(at)
				if err != nil {
					t.Fatal(err)
				}
				if w, g := shown(t, want, nil), shown(t, got, shapes); w != g {
					t.Fatalf("at %v (%d %%) it shows other than Play: %d bytes, %d", at, part, len(g), len(w))
				}
			}
		})
	}
}

// What comes beyond a moment is held, and not lost: the events of the batch that the
// moment ends, and a stack that is dropped and told again there.
func TestPlayerHolds(t *testing.T) {
	stack := func() *record.Stack {
		return &record.Stack{ID: 1, Process: proc, Frames: []*record.Place{record.NewPlace(1, 4096, nil, nil)}}
	}
	path := recordtest.File(t, traceOf(), &record.Process{Process: proc, Target: true, Name: "prog", FromStart: true},
		moment(0), alloc(1*time.Second, 1), stack(), moment(1*time.Second),
		alloc(2*time.Second, 2), alloc(2*time.Second, 3), moment(2*time.Second),
		alloc(3*time.Second, 4), moment(3*time.Second))
	p := NewPlayer(path)
	defer p.Close()
	for _, c := range []struct {
		at   time.Duration
		want int64
	}{{500 * time.Millisecond, 0}, {1500 * time.Millisecond, 1}, {1600 * time.Millisecond, 1}, {2 * time.Second, 3}, {time.Minute, 4}, {2500 * time.Millisecond, 3}, {time.Second, 1}} {
		s, err := p.To(c.at)
		if err != nil {
			t.Fatal(err)
		}
		var live int64
		for _, x := range s.Processes() {
			live += x.LiveObjects
		}
		if live != c.want {
			t.Errorf("at %v %d are live, want %d", c.at, live, c.want)
		}
	}
}
