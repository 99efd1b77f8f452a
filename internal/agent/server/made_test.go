package server

import (
	"fmt"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

var process = event.Process{PID: 4711, Start: event.StartUnit}

// begun is a state of one process that made no call yet.
func begun() *held { return begunAs("python3", "pid 4711 (python3)") }

func begunAs(name, target string) *held {
	h := &held{state: state.New()}
	boot := time.Unix(1_700_000_000, 0).UTC()
	h.apply(&record.Trace{Version: "test", Target: target, Boot: boot, Start: boot.Add(time.Second), APIs: []string{"", "cuMemAlloc_v2"}},
		&record.Process{Process: process, Target: true, Name: name, FromStart: true})
	h.at(time.Second)
	return h
}

// at tells what time it is, since the machine's start.
func (h *held) at(d time.Duration) { h.apply(&record.Moment{Time: uint64(d), Drained: true}) }

// alloc is an allocation at a stack.
func (h *held) alloc(at time.Duration, stack, addr, size uint64) {
	h.allocNamed(at, stack, addr, size, "/bin/x", "f"+fmt.Sprint(stack))
}

func (h *held) allocNamed(at time.Duration, stack, addr, size uint64, path, function string) {
	h.allocBy(process, at, stack, addr, size, path, function)
}

func (h *held) allocBy(process event.Process, at time.Duration, stack, addr, size uint64, path, function string) {
	h.apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Time: uint64(at), Proc: process, TID: 1, API: 1, Stack: stack, Addr: addr, Size: size},
		&record.Stack{ID: stack, Process: process, Frames: []*record.Place{record.NewPlace(stack, 0x1000+stack, &snapshot.Location{
			Address: 0x1000 + stack, Mapping: &snapshot.Mapping{Start: 0x1000, Limit: 0x9000, Path: path}, Lines: []snapshot.Line{{Function: function, File: path, Line: 7}},
		}, nil)}})
}

func (h *held) note(text string) { h.apply(&record.Note{Text: text}) }

func (h *held) free(at time.Duration, addr uint64) {
	h.apply(&event.Event{Op: event.OpFree, Time: uint64(at), Proc: process, TID: 1, Addr: addr})
}

// failureOf is a failure for want of memory of a process, at a function.
func failureOf(process, function string) *snapshot.OutOfMemory {
	return &snapshot.OutOfMemory{Time: time.Unix(1_700_000_003, 0), PID: 4711, Process: process, Requested: 1 << 40, API: "cuMemAlloc_v2", GPU: "0", Calls: 1,
		Stack: []*snapshot.Location{{Lines: []snapshot.Line{{Function: function}}}}, Snapshot: &snapshot.Snapshot{}}
}
