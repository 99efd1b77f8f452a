package server

import (
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// The page shows the tensors of windows, of the chosen process, and says of which windows they are. So
// does the API.
func TestPageOfWindows(t *testing.T) {
	h := &held{state: state.New()}
	id, w := event.Process{PID: 17, Start: event.StartUnit}, record.Window{Length: uint64(2 * time.Second), Every: uint64(time.Minute)}
	open := w
	open.Open = true
	place := record.NewPlace(1, 0, &snapshot.Location{Lines: []snapshot.Line{{Function: "forward\x1b", File: "/home/u/train.py", Line: 7}}}, nil)
	begin := time.Unix(1_700_000_000, 0)
	h.apply(&record.Trace{All: true, Start: begin, Boot: begin, APIs: []string{"", "cuMemAlloc_v2"}}, &record.Process{Process: id, Target: true, Name: "train"},
		&record.Stack{ID: 5, Process: id, Frames: []*record.Place{place}}, &record.Tensors{Window: w},
		&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: 1e9, Proc: id, Addr: 1 << 30, Size: 64 << 20, Stack: 5},
		&record.Tensors{Time: 2e9, Window: open},
		&event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Time: 3e9, Proc: id, Addr: 1 << 30, Size: 12 << 20, Stack: 5, Handle: 52 << 20, Part: 64 << 20},
		&record.Tensors{Time: 4e9, Window: w}, &record.Moment{Time: 5e9, Drained: true})
	s := serve(t, Options{Source: h, Insecure: true})
	page := s.get(200, "/now")
	for _, want := range []string{"Tensors of train (17)", "of 1 window of 2s, one each 1m", "No window had a whole training step", "40.0 MiB", "[tensors from before the window]",
		"12.0 MiB", "ALLOCATED A SECOND", `forward\x1b`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if page = s.get(200, "/now?pid=18"); strings.Contains(page, "Tensors of train") {
		t.Error("the page of another process shows it")
	}
	if api := s.get(200, "/api/v1/top"); !strings.Contains(api, `"tensor_windows":{"length_ns":2000000000`) || !strings.Contains(api, `"before_bytes":41943040`) || !strings.Contains(api, `"peak_bytes":12582912`) {
		t.Error(api)
	}
}

// The profile of one process has no tensors of another's windows.
func TestWindowsOfOneProcess(t *testing.T) {
	s := snapshottest.Windowed()
	s.Processes = append(s.Processes, snapshot.Process{PID: 31})
	part, err := filter{pid: 31}.of(s)
	if err != nil || len(part.Windowed) != 1 || part.Windowed[0].PID != 31 {
		t.Errorf("%+v, %v", part, err)
	}
}
