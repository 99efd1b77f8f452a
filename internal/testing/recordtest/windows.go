package recordtest

import (
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Windowed writes a recording with one window, in which a tensor is made of 40 MiB that there are.
func Windowed(t testing.TB) string {
	id, w := event.Process{PID: 17, Start: event.StartUnit}, record.Window{Length: uint64(2 * time.Second), Every: uint64(time.Minute)}
	open := w
	open.Open = true
	begin := time.Unix(1_700_000_000, 0)
	place := record.NewPlace(1, 0, &snapshot.Location{Lines: []snapshot.Line{{Function: "forward", File: "/home/u/train.py", Line: 7}}}, nil)
	return File(t, &record.Trace{Start: begin, Boot: begin, Target: "pid 17 (train)", APIs: []string{"", "cuMemAlloc_v2"}},
		&record.Tensors{Window: w}, &record.Process{Process: id, Target: true, Name: "train"}, &record.Stack{ID: 5, Process: id, Frames: []*record.Place{place}},
		&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: 1e9, Proc: id, Addr: 1 << 30, Size: 64 << 20, Stack: 5},
		&record.Tensors{Time: 2e9, Window: open},
		&event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Time: 3e9, Proc: id, Addr: 1 << 30, Size: 12 << 20, Stack: 5, Handle: 52 << 20, Part: 64 << 20},
		&record.Tensors{Time: 4e9, Window: w}, &record.Moment{Time: 5e9, Drained: true})
}
