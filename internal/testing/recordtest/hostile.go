package recordtest

import (
	"fmt"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// Hostile are recordings that are made to cost more memory or time than they are worth. Each
// fills a Forger's file, which has a Trace.
var Hostile = []struct {
	Name string
	Fill func(f *Forger)
}{
	{"processes that allocate", func(f *Forger) {
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: forgedProcess(i), Addr: 4096, Size: 512})
		}
	}},
	{"processes with contexts on many devices", func(f *Forger) {
		for i := uint64(1); f.Room(96); i++ {
			e := event.Event{Op: event.OpContextCreate, Time: second(1), Proc: forgedProcess(1 + i%1000), Device: int32(i % 256), Ctx: i}
			f.Event(e)
			e.Op, e.Kind, e.API, e.Addr, e.Size = event.OpAlloc, event.KindDevice, 1, 4096*i, 512
			f.Event(e)
		}
	}},
	{"live rows", func(f *Forger) {
		p := forgedProcess(1)
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1) + i, Proc: p, Addr: 2 * i, Size: 1})
		}
	}},
	{"tensors", func(f *Forger) {
		p := forgedProcess(1)
		f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: p, Addr: 1 << 40, Size: 1 << 39})
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpTensorAlloc, Time: second(1) + i, Proc: p, Addr: 1<<40 + 1024*i, Size: 512, Handle: 1, Part: 1})
		}
	}},
	{"call sites", func(f *Forger) {
		p := forgedProcess(1)
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: p, Addr: 2 * i, Size: 1, Stack: i})
		}
	}},
	{"long texts in many lines", func(f *Forger) {
		long := strings.Repeat("x", 60<<10)
		p := forgedProcess(1)
		f.Room(250 << 10)
		f.Place(1, true).Int(0).Uint(0, 4)
		for range 4 {
			f.Text(long, "", "").Int(1).Text("")
		}
		for i := uint64(1); f.Room(64); i++ {
			f.Stack(i, p, 16, 1)
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: p, Addr: 2 * i, Size: 1, Stack: i})
		}
	}},
	{"one long line in many stacks", func(f *Forger) {
		long := strings.Repeat("x", 60<<10)
		p := forgedProcess(1)
		f.Room(200 << 10)
		f.Place(1, true).Int(0).Uint(0, 1).Text(long, long, long).Int(1).Text("")
		for i := uint64(1); f.Room(5000); i++ {
			f.Stack(i, p, 4096, 1)
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: p, Addr: 2 * i, Size: 1, Stack: i})
		}
	}},
	{"many lines in many stacks", func(f *Forger) {
		p := forgedProcess(1)
		f.Room(100 << 10)
		f.Place(1, true).Int(0).Uint(0, 10_000)
		for range 10_000 {
			f.Text("f", "", "").Int(1).Text("")
		}
		for i := uint64(1); f.Room(5000); i++ {
			f.Stack(i, p, 4096, 1)
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: p, Addr: 2 * i, Size: 1, Stack: i})
		}
	}},
	{"one stack in many processes", func(f *Forger) {
		p := forgedProcess(1)
		f.Room(100 << 10)
		f.Place(1, true).Int(0).Uint(0, 1).Text(strings.Repeat("x", 200), "", "").Int(1).Text("")
		f.Stack(1, p, 4096, 1)
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: forgedProcess(i), Addr: 2 * i, Size: 1, Stack: 1})
		}
	}},
	{"devices of a reading", func(f *Forger) {
		for f.Room(200 << 10) {
			f.Entry(EntryReading).Int(0).Uint(0, 10_000)
			for range 10_000 {
				f.Text("u", "l", "n").Uint(1, 1).Int(0).Int(1).Int(1).Int(1).Bool(true).Bool(true).Uint(0)
			}
			f.Uint(0, 0).Moment(second(1))
		}
	}},
	{"processes of a reading", func(f *Forger) {
		for f.Room(200 << 10) {
			f.Entry(EntryReading).Int(0).Uint(0, 1)
			f.Text("u", "l", "n").Uint(1, 1).Int(0).Int(1).Int(1).Int(1).Bool(true).Bool(true).Uint(40_000)
			for i := range int64(40_000) {
				f.Int(i & 63).Text("p").Int(1).Bool(true)
			}
			f.Uint(0, 0).Moment(second(1))
		}
	}},
	{"uses of a reading", func(f *Forger) {
		for i := uint64(1); i < 1000; i++ {
			f.Process(forgedProcess(i), "p")
		}
		for f.Room(200 << 10) {
			f.Entry(EntryReading).Int(0).Uint(0, 1)
			f.Text("u", "l", "n").Uint(1, 1).Int(0).Int(1).Int(1).Int(1).Bool(true).Bool(true).Uint(0)
			f.Uint(20_000)
			for i := range uint64(20_000) {
				f.Uint(1+i%1000, forgedProcess(1).Start, 0).Int(1).Bool(true).Bool(false)
			}
			f.Uint(0).Moment(second(1))
		}
	}},
	{"many readings", func(f *Forger) {
		for i := uint64(1); i < 500; i++ {
			f.Process(forgedProcess(i), "p").Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: forgedProcess(i), Addr: 4096, Size: 512})
		}
		for i := uint64(1); f.Room(64); i++ {
			f.Entry(EntryReading).Int(0).Uint(0, 1)
			f.Text("u", "l", "n").Uint(1, 1).Int(0).Int(1).Int(1).Int(1).Bool(true).Bool(true).Uint(0, 0, 0)
			f.Moment(second(1) + 1000*i)
		}
	}},
	{"counters of a loss", func(f *Forger) {
		f.Room(250 << 10)
		f.Entry(EntryLoss).Uint(50_000)
		for range 50_000 {
			f.Text("x", "y").Uint(1)
		}
		f.Uint(0)
	}},
	{"functions of a trace", func(f *Forger) {
		apis := make([]string, 120_000)
		for i := range apis {
			apis[i] = "x"
		}
		f.Room(250 << 10)
		f.Trace(10, apis...)
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: forgedProcess(1), Addr: 2 * i, Size: 1, Stack: i})
		}
	}},
	{"allocators", func(f *Forger) {
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpTensorAlloc, Time: second(1) + i, Proc: forgedProcess(i / 256), Device: int32(i % 256), Addr: 1024 * i, Size: 512, Handle: 512, Part: 512})
		}
	}},
	{"windows", func(f *Forger) {
		sites(f, 1000)
		for i := uint64(1); f.Room(64); i++ {
			f.Entry(EntryTensors).Int(0).Uint(1, 2).Bool(i%2 == 0)
			f.Moment(second(1) + i)
		}
	}},
	{"keyframes of nonsense", func(f *Forger) {
		for i := uint64(0); f.Room(5000); i++ {
			if i%8 == 0 {
				f.Entry(EntryCut).Int(0)
			}
			f.Entry(EntryPart).Uint(i%8%5, 4096) // a part of the state, bytes
			for j := range uint64(4096) {
				f.Uint((i + j) & 127)
			}
			f.Bool(i%2 == 1)
		}
	}},
	{"moments over all times", func(f *Forger) {
		sites(f, 10_000)
		for i := uint64(1); f.Room(64); i++ {
			f.Moment(second(1) + i*40_000_000_000_000)
		}
	}},
	{"time at the end", func(f *Forger) {
		sites(f, 10)
		f.Moment(1 << 63).Moment(1<<64 - 1).Moment(1<<63 - 1)
		sites(f, 10)
	}},
	{"sweeps", func(f *Forger) {
		for i := uint64(1); i < 30_000 && f.Room(64); i++ {
			f.Stack(i, forgedProcess(1), 1, 1)
		}
		for i := 0; f.Room(64); i++ {
			f.Entry(EntrySweep).Bool(false)
		}
	}},
	{"cuts", func(f *Forger) {
		sites(f, 10_000)
		for f.Room(64) {
			f.Entry(EntryCut).Int(0)
		}
	}},
	{"failures", func(f *Forger) {
		sites(f, 20_000)
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(2 + 2*i), Proc: forgedProcess(1), Size: 1, Result: event.OutOfMemory, Stack: 1})
			f.Moment(second(3 + 2*i))
		}
	}},
	{"exits", func(f *Forger) {
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: forgedProcess(i), Addr: 2 * i, Size: 1, Stack: i})
			f.Event(event.Event{Op: event.OpExit, Time: second(1), Proc: forgedProcess(i), Name: "p"})
		}
	}},
	{"processes with a new PID", func(f *Forger) {
		const processes = 4000
		for i := uint64(1); f.Room(64); i++ {
			p := forgedProcess(i % processes)
			p.Start *= 1 + i/processes
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1) + i, Proc: p, Addr: 4096, Size: 512})
			f.Moment(second(1) + i)
		}
	}},
	{"devices and processes", func(f *Forger) {
		processesThatAllocate(f, 5000)
		for i := uint64(1); f.Room(40 << 10); i++ {
			f.Entry(EntryReading).Int(0).Uint(0, 300)
			for j := range 300 {
				f.Text(fmt.Sprint("u", j), fmt.Sprint("l", j), "n").Uint(1, 1).Int(0).Int(1).Int(1).Int(1).Bool(true).Bool(true).Uint(0)
			}
			f.Uint(0, 0).Moment(second(1) + 1000*i)
		}
	}},
	{"reports of processes", func(f *Forger) {
		processesThatAllocate(f, 15_000)
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: forgedProcess(1), Addr: 8192 * i, Size: 512})
			f.Entry(EntryReported)
		}
	}},
	{"forks", func(f *Forger) {
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpFork, Time: second(1), Proc: forgedProcess(1), Child: forgedProcess(i), Name: "p"})
		}
	}},
	{"resets", func(f *Forger) {
		for i := uint64(1); i < 50_000; i++ {
			f.Room(64)
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindHost, API: 1, Time: second(1), Proc: forgedProcess(1), Addr: 2 * i, Size: 1})
		}
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpPrimaryReset, Time: second(1), Proc: forgedProcess(1)})
		}
	}},
	{"contexts destroyed", func(f *Forger) {
		for i := uint64(1); i < 40_000; i++ {
			f.Room(64)
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: forgedProcess(1), Addr: 2 * i, Size: 1, Ctx: 1 + i&63})
		}
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpContextDestroy, Time: second(1), Proc: forgedProcess(1), Ctx: 1 << 40})
		}
	}},
	{"mappings", func(f *Forger) {
		p := forgedProcess(1)
		f.Event(event.Event{Op: event.OpHandleCreate, Kind: event.KindVMM, API: 1, Time: second(1), Proc: p, Handle: 7, Size: 1 << 40})
		for i := uint64(1); i < 60_000; i++ {
			f.Room(64)
			f.Event(event.Event{Op: event.OpMap, Time: second(1), Proc: p, Addr: 2 * i, Size: 1, Handle: 7})
		}
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpUnmap, Time: second(1), Proc: p, Addr: 1 << 50, Size: 1})
		}
	}},
	{"graphs", func(f *Forger) {
		p := forgedProcess(1)
		f.Event(event.Event{Op: event.OpCaptureBegin, Time: second(1), Proc: p, Handle: 9, Stream: 3})
		for i := uint64(1); i < 60_000; i++ {
			f.Room(64)
			f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindAsync, API: 1, Time: second(1), Proc: p, Addr: 2 * i, Size: 1, Stream: 3})
		}
		f.Event(event.Event{Op: event.OpCaptureEnd, Time: second(1), Proc: p, Handle: 9, Stream: 3})
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpGraphInstantiate, Time: second(1), Proc: p, Handle: 9})
			f.Event(event.Event{Op: event.OpGraphMove, Time: second(1), Proc: p, Handle: 9 + i, Part: 8 + i})
		}
	}},
	{"objects of the driver", func(f *Forger) {
		p := forgedProcess(1)
		f.Event(event.Event{Op: event.OpClient, Time: second(1), Proc: p, Handle: 7 << 32, Addr: 3})
		f.Event(event.Event{Op: event.OpObjectDevice, Time: second(1), Proc: p, Handle: 7<<32 | 1, Part: 7 << 32})
		for i := uint64(2); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpObjectMemory, Kind: event.KindDriver, Time: second(1), Proc: p, Handle: 7<<32 | i, Part: 7<<32 | 1, Size: 1, Stack: i})
		}
	}},
	{"a chain of the driver's objects", func(f *Forger) {
		p := forgedProcess(1)
		f.Event(event.Event{Op: event.OpClient, Time: second(1), Proc: p, Handle: 7 << 32, Addr: 3})
		for i := uint64(1); f.Room(64); i++ {
			f.Event(event.Event{Op: event.OpObject, Time: second(1), Proc: p, Handle: 7<<32 | i, Part: 7<<32 | (i - 1)})
			f.Event(event.Event{Op: event.OpObjectMemory, Kind: event.KindDriver, Time: second(1), Proc: p, Handle: 7<<32 | 1<<31 | i, Part: 7<<32 | i, Size: 1})
		}
	}},
	{"notes", func(f *Forger) {
		for f.Room(61 << 10) {
			f.Entry(EntryNote).Text(strings.Repeat("x", 60<<10) + string(rune('a'+len(f.file)%26)))
		}
	}},
	{"empty blocks", func(f *Forger) {
		for f.Room(64) {
			f.Entry(EntryReported)
			f.Block()
		}
	}},
	{"heaps", func(f *Forger) {
		for i := uint64(1); f.Room(40 << 10); i++ {
			f.Process(forgedProcess(i%3000), "python")
			f.Entry(EntryHeap).Uint(i%3000, forgedProcess(i%3000).Start).Bool(i%2 == 0).Text("", "", "").Int(0).Uint(5, 1<<60, 2000)
			for range 2000 { // all else least: 15 bytes
				f.Uint(1).Uint(1<<7-1).Int(int64(i%64)).Uint(i%6).Bool(false).Bool(false).Text("").Uint(0, 1, 1, 0).Text("", "", "", "")
			}
			f.Uint(0, 0, 0)
			f.Moment(second(1))
		}
	}},
	{"blocks of an allocator", func(f *Forger) {
		for i := uint64(1); f.Room(40 << 10); i++ {
			f.Process(forgedProcess(i%3000), "python")
			f.Entry(EntryHeap).Uint(i%3000, forgedProcess(i%3000).Start).Bool(false).Text("", "", "").Int(0).Uint(5, 1, 0, 0, 0, 0)
			f.Entry(EntryBlocks).Uint(i%3000, forgedProcess(i%3000).Start).Int(0).Uint(0).Int(0).Bool(false).Uint(2000)
			for range 2000 {
				f.Int(512).Uint(512, 1, 1, 1).Bool(true)
			}
			f.Moment(second(1))
		}
	}},
	{"paths of a heap", func(f *Forger) {
		sites(f, 1000)
		for i := uint64(1); f.Room(100 << 10); i++ {
			more := f.Room(200 << 10)
			f.Entry(EntryHeap).Uint(1, forgedProcess(1).Start).Bool(more).Text("", "", "").Int(0).Uint(5, 1, 40)
			for j := range uint64(40) {
				f.Uint(2, 1).Int(0).Uint(j%6).Bool(false).Bool(false).Text(strings.Repeat("[1", 1000)+fmt.Sprint(i, j)).Uint(0, 1, 1, 0).Text("", "", "", "")
			}
			f.Uint(0, 0, 0)
		}
		f.Moment(second(2))
	}},
}

func second(n uint64) uint64 { return 10_000_000_000 + n*1_000_000_000 }

func forgedProcess(i uint64) event.Process {
	return event.Process{PID: uint32(i), Start: event.StartUnit}
}

// processesThatAllocate makes so many processes, of one live allocation each.
func processesThatAllocate(f *Forger, n uint64) {
	for i := uint64(1); i <= n; i++ {
		f.Room(64)
		f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: forgedProcess(i), Addr: 4096, Size: 512})
	}
}

// sites makes so many call sites, of one live allocation each.
func sites(f *Forger, n uint64) {
	for i := uint64(1); i <= n; i++ {
		f.Room(64)
		f.Event(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: second(1), Proc: forgedProcess(1), Addr: 2 * i, Size: 1, Stack: i})
	}
}
