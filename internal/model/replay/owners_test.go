package replay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// fromNames are the labels that follow from the names of a stack, with the values that say
// nothing.
var fromNames = map[string][]string{
	"owner":    {snapshot.NotNamed},
	"operator": {snapshot.NotNamed},
	"module":   {snapshot.NotNamed},
	"category": {stacks.Unknown, ""},
	"kind":     {event.KindDriver.String()},
}

// A statement is a label that says something of memory.
type statement struct{ label, value string }

// statements yields those of a sample.
func statements(x *snapshot.Sample) map[string]statement {
	all := map[string]statement{}
	for i := range snapshot.AllLabels {
		l := &snapshot.AllLabels[i]
		nothing, named := fromNames[l.Name]
		if !named {
			continue
		}
		value := l.Get(&x.Labels)
		says := true
		for _, n := range nothing {
			says = says && value != n
		}
		if says {
			all[l.Name] = statement{l.Name, value}
		}
	}
	return all
}

// agrees fails for each call site of which a view of damaged records says something else than
// the view of all records of the same moment, by a label that is none of the others.
func agrees(t *testing.T, of string, damaged, whole *state.View, others ...string) {
	t.Helper()
	said := map[ledger.SiteKey]map[string]statement{}
	snap, i := whole.Snapshot(), 0
	for x := range whole.Sites {
		said[x] = statements(&snap.Samples[i])
		i++
	}
	snap, i = damaged.Snapshot(), 0
	for x := range damaged.Sites {
		for label, got := range statements(&snap.Samples[i]) {
			if want, known := said[x]; known && got != want[label] && !slices.Contains(others, label) {
				t.Errorf("%s: stack %x: %s, want %s", of, x.Stack, got, want[label])
			}
		}
		i++
	}
}

// noMore fails for each statement that a view of damaged records makes of more memory than
// the view of all records of the same moment.
func noMore(t *testing.T, of string, damaged, whole *state.View) {
	t.Helper()
	bytes := map[statement]int64{}
	add := func(v *state.View, sign int64) {
		snap := v.Snapshot()
		for i := range snap.Samples {
			for _, said := range statements(&snap.Samples[i]) {
				bytes[said] += sign * snap.Samples[i].InuseBytes
			}
		}
	}
	add(whole, 1)
	add(damaged, -1)
	for said, left := range bytes {
		if left < 0 {
			t.Errorf("%s: %d bytes too many are of %s", of, -left, said)
		}
	}
}

// playBoth plays a damaged recording to its end, and the whole one to the same moment. The
// views are nil if the damaged one has no moment.
func playBoth(t *testing.T, damaged, whole []byte) (part, all *state.View) {
	t.Helper()
	play := func(data []byte, opts Options) (*state.View, error) {
		r, err := record.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		s, err := PlayReader(r, opts)
		if err != nil {
			return nil, err
		}
		return s.View(state.Want{Driver: true}), nil
	}
	part, err := play(damaged, Options{At: End})
	if err != nil {
		return nil, nil
	}
	all, err = play(whole, Options{At: part.Snapshot().Meta.Duration})
	if errors.Is(err, ErrNoMoment) {
		return nil, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return part, all
}

// A recording that was cut off says of memory what the whole one says, or that it does not
// know.
func TestOwnersOfCutRecording(t *testing.T) {
	for name, path := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			data, played := bytesOf(t, path), 0
			for _, percent := range []int{10, 25, 50, 80, 95} {
				part, all := playBoth(t, data[:len(data)*percent/100], data)
				if part == nil {
					continue
				}
				played++
				of := fmt.Sprintf("%d %%", percent)
				agrees(t, of, part, all)
				noMore(t, of, part, all)
			}
			if played < 2 {
				t.Errorf("%d parts could be played", played)
			}
		})
	}
}

// So does one in which 16 bytes were overwritten. Tensors and frees may be missing in it, so
// that what became of memory shows another category, or that a segment is cached.
func TestOwnersOfScratchedRecording(t *testing.T) {
	const places = 12
	for name, path := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			data, played := bytesOf(t, path), 0
			for i := range places {
				damaged := bytes.Clone(data)
				clear(damaged[len(data)*(2*i+1)/(2*places):][:16])
				if part, all := playBoth(t, damaged, data); part != nil {
					played++
					agrees(t, fmt.Sprint("scratch ", i), part, all, "category", "kind")
				}
			}
			if played < places/2 {
				t.Errorf("%d parts could be played", played)
			}
		})
	}
}

// So does a state that has any part of the stacks and names.
func TestOwnersBeforeNames(t *testing.T) {
	for name, path := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 1))
			view := func(percent int) *state.View {
				r, err := record.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				s := state.New()
				for {
					rec, err := r.Next()
					if errors.Is(err, io.EOF) {
						return s.View(state.Want{Driver: true})
					}
					if err != nil {
						t.Fatal(err)
					}
					switch rec.(type) {
					case *record.Reported: // it removes processes that have ended
						continue
					case *record.Stack, *record.Name:
						if rng.IntN(100) >= percent {
							continue
						}
					}
					s.Apply(rec)
				}
			}
			whole := view(100)
			for _, percent := range []int{0, 10, 50, 90, 99} {
				part, of := view(percent), fmt.Sprintf("%d %% of the names", percent)
				agrees(t, of, part, whole)
				noMore(t, of, part, whole)
			}
		})
	}
}
