// Package recordtest makes up records of traces, for tests and benchmarks.
package recordtest

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

const (
	processes = 2
	devices   = 2
	// interval is the time between two events, in nanoseconds: 300,000 a second.
	interval = 3333
	// momentEvery is how many events come between two Moments, and readingEvery
	// the nanoseconds between two Readings.
	momentEvery  = 4096
	readingEvery = uint64(time.Second)
)

// The rows of the API table that a Training has.
const (
	apiAlloc = iota + 1
	apiFree
	apiCreate
	apiMap
	apiRelease
	apiUnmap
)

// A Training is a trace of two processes that train on two GPUs each, as
// PyTorch's allocator drives them: segments come and go in random order, and
// beside them expandable segments, piece by piece.
type Training struct {
	Stacks int // call stacks, of which each process has its part
	Depth  int // frames of each
	Live   int // segments of a process
	Pieces int // pieces of expandable segments of a process

	rng     *rand.Rand
	now     uint64
	read    uint64 // time of the last reading
	n       int    // events since the last Moment
	address uint64
	procs   [processes]training
	wait    []event.Event // come next
	event   event.Event
}

type training struct {
	id       event.Process
	stacks   []uint64
	segments []uint64
	pieces   []uint64
}

var start = time.Unix(1_700_000_000, 0).UTC()

// Begin yields what comes before the events: the trace, its processes, its
// stacks and their names.
func (t *Training) Begin(yield func(record.Record)) {
	t.rng = rand.New(rand.NewPCG(1, 1))
	t.now = uint64(time.Hour)
	t.read = t.now
	yield(&record.Trace{
		Version: "test", Target: "pid 4711 (python3)", StackMode: "complete", NVML: true, Initial: true,
		Boot: start.Add(-time.Hour), Start: start,
		APIs: []string{"", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemCreate", "cuMemMap", "cuMemRelease", "cuMemUnmap"},
	})
	program := &snapshot.Mapping{Start: 0x400000, Limit: 0x800000, Path: "/usr/bin/python3", BuildID: "ab"}
	library := &snapshot.Mapping{Start: 0x7f0000000000, Limit: 0x7f0010000000, Path: "/usr/lib/libtorch_cuda.so", BuildID: "cd"}
	for i := range t.procs {
		t.procs[i].id = event.Process{PID: uint32(4711 + i), Start: uint64(1+i) * event.StartUnit}
		yield(&record.Process{Process: t.procs[i].id, Target: true, Name: "python3", FromStart: true, Program: program})
	}
	places := make([]*record.Place, 6*t.Stacks)
	for i := range places {
		address := library.Start + uint64(i)*64
		places[i] = record.NewPlace(uint64(i+1), address, &snapshot.Location{
			Address: address, Mapping: library, Lines: []snapshot.Line{{Function: fmt.Sprintf("at::native::function_%d", i)}},
		}, nil)
	}
	for i := range t.Stacks {
		p := &t.procs[i%processes]
		st := &record.Stack{ID: uint64(i+1) * 0x9e3779b97f4a7c15, Process: p.id}
		p.stacks = append(p.stacks, st.ID)
		for range t.Depth {
			st.Frames = append(st.Frames, places[t.rng.IntN(len(places))])
		}
		yield(st)
	}
}

// Next returns the next record. An event is good until Next is called again.
func (t *Training) Next() record.Record {
	switch {
	case t.n == momentEvery:
		t.n = 0
		return &record.Moment{Time: t.now, Drained: true}
	case t.now >= t.read+readingEvery:
		t.read = t.now
		return t.reading()
	}
	if len(t.wait) == 0 {
		t.step()
	}
	t.n++
	t.now += interval
	t.event = t.wait[0]
	t.event.Time = t.now
	t.wait = t.wait[1:]
	return &t.event
}

// step makes up what one process does next.
func (t *Training) step() {
	t.wait = t.wait[:0]
	p := &t.procs[t.rng.IntN(processes)]
	t.address += 2 << 20
	size := uint64(2<<20) * (1 + t.rng.Uint64N(10))
	if t.rng.IntN(4) == 0 {
		size = 512 + t.rng.Uint64N(1<<20)
	}
	t.add(p, event.Event{Op: event.OpAlloc, API: apiAlloc, Kind: event.KindDevice, Addr: 1<<40 + t.address, Size: size})
	p.segments = append(p.segments, 1<<40+t.address)
	if last := len(p.segments) - 1; last >= t.Live {
		i := t.rng.IntN(len(p.segments))
		t.add(p, event.Event{Op: event.OpFree, API: apiFree, Addr: p.segments[i]})
		p.segments[i] = p.segments[last]
		p.segments = p.segments[:last]
	}
	if t.rng.IntN(8) != 0 {
		return
	}
	piece := event.Event{API: apiCreate, Op: event.OpHandleCreate, Kind: event.KindVMM, Handle: t.address >> 9, Size: 2 << 20}
	t.add(p, piece)
	piece.API, piece.Op, piece.Addr = apiMap, event.OpMap, 1<<46+t.address
	t.add(p, piece)
	piece.API, piece.Op, piece.Addr = apiRelease, event.OpHandleRelease, 0
	t.add(p, piece)
	p.pieces = append(p.pieces, 1<<46+t.address)
	if len(p.pieces) > t.Pieces {
		t.add(p, event.Event{Op: event.OpUnmap, API: apiUnmap, Addr: p.pieces[0], Size: 2 << 20})
		p.pieces = p.pieces[1:]
	}
}

func (t *Training) add(p *training, e event.Event) {
	stack := t.rng.IntN(len(p.stacks))
	e.Proc, e.TID, e.Stack = p.id, p.id.PID+uint32(stack%4), p.stacks[stack]
	e.Device = int32(stack % devices)
	e.Ctx = 0x55d000001000 + uint64(e.Device)<<12
	t.wait = append(t.wait, e)
}

func (t *Training) reading() *record.Reading {
	r := &record.Reading{Time: t.now}
	for i := range devices {
		d := record.Device{UUID: fmt.Sprintf("GPU-%d", i), Label: fmt.Sprint(i), Name: "GPU", Total: 80 << 30, Used: 60 << 30, Free: 20 << 30, MemoryKnown: true, Listed: true}
		for j := range t.procs {
			d.Processes = append(d.Processes, snapshot.GPUProcess{PID: int(t.procs[j].id.PID), Name: "python3", Bytes: 30 << 30, Known: true})
			r.Uses = append(r.Uses, record.Use{Process: t.procs[j].id, Device: i, Bytes: 30 << 30, Known: true})
			r.Ordinals = append(r.Ordinals, record.Ordinal{Process: t.procs[j].id, Ordinal: int32(i), Device: i})
		}
		r.Devices = append(r.Devices, d)
	}
	return r
}
