package replay

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/memoryviz"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/viewertest"
)

// viewed returns a played recording as PyTorch's memory viewer reads it.
func viewed(t *testing.T, s *state.State) (*snapshot.Snapshot, *viewertest.Snapshot) {
	t.Helper()
	snap := s.View(state.Want{Driver: true, Layout: true}).Snapshot()
	var b bytes.Buffer
	if err := memoryviz.Pickle(&b, snap); err != nil {
		t.Fatal(err)
	}
	seen, err := viewertest.ReadPickle(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return snap, seen
}

// TestRealViewer: PyTorch's memory viewer can go through what the recordings show, at
// moments all over them, and its sums are those of the other outputs.
func TestRealViewer(t *testing.T) {
	blocks := 0
	for name, path := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			whole, err := Play(path, Options{At: End})
			if err != nil {
				t.Fatal(err)
			}
			length := whole.Time().Sub(whole.Start())
			for _, opts := range []Options{
				{At: length / 7, Layout: true, Remember: 1 << 20}, {At: length / 3, Layout: true, Remember: 500}, {At: length / 2, Layout: true, Remember: 5000},
				{At: length * 2 / 3, Layout: true, Remember: 1000}, {At: length * 5 / 6, Layout: true}, {At: End, Layout: true, Remember: 1 << 20},
			} {
				s, err := Play(path, opts)
				if err != nil {
					t.Fatal(err)
				}
				snap, seen := viewed(t, s)
				if err := seen.Check(true); err != nil {
					t.Errorf("at %v, %d steps: %v", opts.At, opts.Remember, err)
				}
				var tensors, inuse, viewTensors, viewAll int64
				for i := range snap.Samples {
					if x := &snap.Samples[i]; x.Kind == event.KindTensor.String() {
						tensors += x.InuseBytes
					}
				}
				for i := range snap.Processes {
					inuse += snap.Processes[i].Inuse
				}
				for i := range seen.Segments {
					g := &seen.Segments[i]
					viewAll += g.Total
					for _, b := range g.Blocks {
						if b.Metadata["kind"] == event.KindTensor.String() {
							viewTensors += b.Size
							blocks++
						}
					}
				}
				// Of memory that was made to be mapped, and is not yet, a note tells.
				unmapped := slices.ContainsFunc(seen.About.Notes, func(n string) bool { return strings.Contains(n, "at no address of its own") })
				if tensors != viewTensors || inuse < viewAll || unmapped != (inuse > viewAll) {
					t.Errorf("at %v: %d in tensors of %d, in the viewer %d of %d", opts.At, tensors, inuse, viewTensors, viewAll)
				}
				if opts.Remember == 1<<20 {
					for device, entries := range seen.DeviceTraces {
						begin(t, seen, device, entries)
					}
				}
			}
		})
	}
	if blocks == 0 {
		t.Error("no recording has tensors")
	}
}

// begin checks that before its trace a device is empty: nothing was dropped.
func begin(t *testing.T, s *viewertest.Snapshot, device int, entries []viewertest.Entry) {
	t.Helper()
	var segments, blocks int64
	for _, e := range entries {
		switch e.Action {
		case "segment_alloc", "segment_map":
			segments += e.Size
		case "segment_free", "segment_unmap":
			segments -= e.Size
		case "alloc":
			blocks += e.Size
		case "free_completed":
			blocks -= e.Size
		}
	}
	for i := range s.Segments {
		if g := &s.Segments[i]; g.Device == device {
			segments -= g.Total
			blocks -= g.Allocated
		}
	}
	if segments != 0 || blocks != 0 {
		t.Errorf("device %d: the trace differs from what is there by %d in segments, %d in blocks", device, segments, blocks)
	}
}

// A trace has the latest steps, and says how many there were before.
func TestViewerDropped(t *testing.T) {
	path := recordings(t)["profiler"]
	whole, err := Play(path, Options{At: End, Layout: true, Remember: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	_, all := viewed(t, whole)
	s, err := Play(path, Options{At: End, Layout: true, Remember: 100})
	if err != nil {
		t.Fatal(err)
	}
	snap, seen := viewed(t, s)
	steps := whole.View(state.Want{Layout: true}).Snapshot().Layout.Changes
	if l := snap.Layout; l.Changes != 100 || int(l.Dropped) != steps-100 {
		t.Errorf("%d steps and %d dropped, of %d", l.Changes, l.Dropped, steps)
	}
	trace, latest := seen.DeviceTraces[0], all.DeviceTraces[0]
	if n := len(trace); n < 100 || !reflect.DeepEqual(trace[n-100:], latest[len(latest)-100:]) {
		t.Errorf("the trace has %d entries, which are not the latest", n)
	}
	if len(seen.About.Notes) == 0 || seen.AllocatorSettings["trace_alloc_overflowed"] != true {
		t.Errorf("nobody is told: %q", seen.About.Notes)
	}
	none, err := Play(path, Options{At: End, Layout: true})
	if err != nil {
		t.Fatal(err)
	}
	_, still := viewed(t, none)
	if !reflect.DeepEqual(seen.Segments, all.Segments) || !reflect.DeepEqual(still.Segments, all.Segments) {
		t.Error("segments depend on how many steps are kept")
	}
}
