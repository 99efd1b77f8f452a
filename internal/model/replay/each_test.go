package replay

import (
	"errors"
	"io"
	"maps"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// A figure is one value of a process's memory of one kind.
type figure struct {
	pid         int
	kind, value string
}

func figures(into map[figure]int64, s *snapshot.Snapshot) {
	for i := range s.Samples {
		x := &s.Samples[i]
		for j := range snapshot.AllValues {
			v := &snapshot.AllValues[j]
			if n := *v.Of(&x.Values); n != 0 {
				into[figure{x.PID, x.Kind, v.Name}] += n
			}
		}
	}
	for i := range s.Accounts {
		into[figure{s.Accounts[i].PID, s.Accounts[i].GPU, "account"}] += s.Accounts[i].Total
	}
	for i := range s.Processes {
		into[figure{s.Processes[i].PID, "process", "peak"}] += s.Processes[i].Peak
	}
}

// states yields the state of a recording after each of so many records.
func states(t *testing.T, path string, every int, yield func(*state.State)) {
	t.Helper()
	r, err := record.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := state.New()
	for n := 1; ; n++ {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			yield(s)
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, reported := rec.(*record.Reported); reported {
			continue // ended processes would be gone
		}
		if s.Apply(rec); n%every == 0 {
			yield(s)
		}
	}
}

// Processes by themselves show what they show together.
func TestEachAddsUp(t *testing.T) {
	for name, path := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			states(t, path, 1500, func(s *state.State) {
				all, each := map[figure]int64{}, map[figure]int64{}
				v := s.View(state.Want{Driver: true})
				figures(all, v.Snapshot())
				for _, one := range v.ByProcess() {
					snap := one.Snapshot()
					figures(each, snap)
					if n := len(snap.Processes); n != 1 || snap.Processes[0].PID != int(one.Process.PID) || snap.Processes[0].Name != one.Name {
						t.Errorf("%d processes", n)
					}
				}
				if !maps.Equal(all, each) {
					t.Errorf("%v, and each by itself %v", all, each)
				}
			})
		})
	}
}

// What was allocated from one report to the next adds up to all.
func TestUnreportedAddsUp(t *testing.T) {
	for name, path := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			all, parts := map[figure]int64{}, map[figure]int64{}
			// What the driver's memory is for shows when its stack has names.
			ever := func(all map[figure]int64) map[figure]int64 {
				out := map[figure]int64{}
				for f, n := range all {
					if f.kind != event.KindTensor.String() && f.kind != event.KindDevice.String() {
						f.kind = "other"
					}
					out[f] += n
				}
				return out
			}
			states(t, path, 700, func(s *state.State) {
				clear(all)
				figures(all, s.View(state.Want{Driver: true}).Snapshot())
				v := s.View(state.Want{Driver: true, Unreported: true})
				s.Apply(&record.Reported{})
				for _, one := range v.ByProcess() {
					of := map[figure]int64{}
					figures(of, one.Snapshot())
					for f, n := range of {
						if f.value == "alloc_objects" || f.value == "alloc_space" {
							parts[f] += n
						} else if all[f] != n {
							t.Fatalf("%v is %d, want %d", f, n, all[f])
						}
					}
				}
			})
			parts = ever(parts)
			for f, n := range ever(all) {
				if f.kind == "device" { // what tensors are handed out of counts elsewhere
					continue
				}
				if (f.value == "alloc_objects" || f.value == "alloc_space") && parts[f] != n {
					t.Errorf("%v adds up to %d of %d", f, parts[f], n)
				}
			}
		})
	}
}
