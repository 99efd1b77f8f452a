package timeline

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// boot and start are of every recording that is made up here.
var (
	boot  = time.Unix(1_700_000_000, 0).UTC()
	start = boot.Add(time.Second)
	proc  = event.Process{PID: 7, Start: event.StartUnit}
)

// at is a time of records, so long after the trace began.
func at(after time.Duration) uint64 { return uint64(time.Second + after) }

func traceOf() *record.Trace {
	return &record.Trace{Version: "1", Target: "pid 7 (prog)", Boot: boot, Start: start, APIs: []string{"", "cuMemAlloc_v2", "cuMemFree_v2"}}
}

func momentAt(after time.Duration) *record.Moment {
	return &record.Moment{Time: at(after), Drained: true}
}

func alloc(id event.Process, after time.Duration, stack, addr, size uint64) *event.Event {
	return &event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Time: at(after), Proc: id, TID: id.PID, API: 1, Stack: stack, Addr: addr, Size: size}
}

func free(id event.Process, after time.Duration, addr uint64) *event.Event {
	return &event.Event{Op: event.OpFree, Time: at(after), Proc: id, TID: id.PID, API: 2, Addr: addr}
}

// stack is a call stack of one place.
func stack(id event.Process, number uint64, file, function string) *record.Stack {
	m := &snapshot.Mapping{Start: 0x1000, Limit: 0x9000, Path: file}
	l := &snapshot.Location{Address: 0x1000 + number, Mapping: m, Lines: []snapshot.Line{{Function: function, File: file, Line: int(number)}}}
	return &record.Stack{ID: number, Process: id, Frames: []*record.Place{record.NewPlace(number, l.Address, l, nil)}}
}
