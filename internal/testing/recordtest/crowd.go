package recordtest

import (
	"fmt"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

const (
	crowdGPUs  = 8
	crowdDepth = 40 // frames of a stack
	crowdSize  = 4096
)

// Crowd yields the records of a machine with eight GPUs on which so many processes hold so
// many allocations of 4 KiB each, from so many stacks each, all traced (record.Trace.All)
// and read by NVML. PIDs are from 1000 on.
func Crowd(processes, live, stacks int, yield func(record.Record)) {
	begin := uint64(time.Hour)
	yield(&record.Trace{
		Version: "test", Target: "every process", StackMode: "complete", NVML: true, Initial: true, All: true,
		Boot: start.Add(-time.Hour), Start: start, APIs: []string{"", "cuMemAlloc_v2", "cuMemFree_v2"}, Incidents: 10,
	})
	program := &snapshot.Mapping{Start: 0x400000, Limit: 0x800000, Path: "/usr/bin/train", BuildID: "ab"}
	libraries := []string{"libtorch_cuda.so", "libnccl.so.2", "libcublas.so.12", "libcudnn.so.9"}
	reading := &record.Reading{}
	for i := range crowdGPUs {
		reading.Devices = append(reading.Devices, record.Device{UUID: fmt.Sprintf("GPU-%d", i), Label: fmt.Sprint(i), Name: "GPU",
			Total: 80 << 30, Used: 60 << 30, Free: 20 << 30, MemoryKnown: true, Listed: true, Instance: -1})
	}
	at, place, stack := begin, uint64(0), uint64(0)
	for p := range processes {
		id := event.Process{PID: uint32(1000 + p), Start: uint64(1+p) * event.StartUnit}
		yield(&record.Process{Process: id, Target: true, Name: fmt.Sprintf("rank%d", p), FromStart: true, Program: program})
		library := &snapshot.Mapping{Start: 0x7f0000000000, Limit: 0x7f0010000000, Path: "/usr/lib/" + libraries[p%len(libraries)], BuildID: "cd"}
		places := make([]*record.Place, crowdDepth+stacks)
		for i := range places {
			place++
			address := library.Start + uint64(i)*64
			places[i] = record.NewPlace(place, address, &snapshot.Location{Address: address, Mapping: library,
				Lines: []snapshot.Line{{Function: fmt.Sprintf("function_%d", i)}}}, nil)
		}
		first := stack + 1
		for i := range stacks {
			stack++
			yield(&record.Stack{ID: stack * 0x9e3779b97f4a7c15, Process: id, Frames: places[i : i+crowdDepth]})
		}
		device := p % crowdGPUs
		for i := range live {
			at += interval
			yield(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: apiAlloc, Time: at, Proc: id, TID: id.PID, Stack: (first + uint64(i%stacks)) * 0x9e3779b97f4a7c15,
				Addr: 1<<40 + uint64(i)*crowdSize, Size: crowdSize})
		}
		d := &reading.Devices[device]
		bytes := int64(live)*crowdSize + 500<<20
		d.Processes = append(d.Processes, snapshot.GPUProcess{PID: int(id.PID), Name: "train", Bytes: bytes, Known: true})
		reading.Uses = append(reading.Uses, record.Use{Process: id, Device: device, Bytes: bytes, Known: true})
		reading.Ordinals = append(reading.Ordinals, record.Ordinal{Process: id, Ordinal: 0, Device: device})
	}
	reading.Begin, reading.Time = at+1, at+2
	yield(reading)
	yield(&record.Moment{Time: at + 3, Drained: true})
}
