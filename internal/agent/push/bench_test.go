package push

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/outbox"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

const (
	benchProcesses = 500
	benchLive      = 1_000_000
	benchStacks    = 20 // of each process
	benchDepth     = 40
)

// crowd is a world of many processes that hold many allocations.
func crowd() *world {
	w := newWorld()
	library := &snapshot.Mapping{Start: 0x7f0000000000, Limit: 0x7f0010000000, Path: "/usr/lib/libtorch_cuda.so", BuildID: "cd"}
	place := uint64(0)
	for pid := uint32(1); pid <= benchProcesses; pid++ {
		id := w.start(pid, fmt.Sprintf("worker%d", pid))
		places := map[uint64]*record.Place{} // a process has one of each address
		for stack := range uint64(benchStacks) {
			st := &record.Stack{ID: uint64(pid)<<32 | stack, Process: id}
			for depth := range uint64(benchDepth) {
				address := library.Start + (stack*7+depth*13)%500*64
				if places[address] == nil {
					place++
					places[address] = record.NewPlace(1<<40+place, address, &snapshot.Location{Address: address, Mapping: library,
						Lines: []snapshot.Line{{Function: fmt.Sprintf("at::native::function_%d", address/64), File: "native.cpp", Line: int(depth)}}}, nil)
				}
				st.Frames = append(st.Frames, places[address])
			}
			w.apply(st)
		}
		w.churn(id, benchLive/benchProcesses)
	}
	w.pass(time.Minute)
	return w
}

// churn makes so many allocations.
func (w *world) churn(id event.Process, n int) {
	for i := range n {
		w.next += 1 << 21
		w.now++
		w.apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Proc: id, TID: id.PID, Time: w.now, API: 1, Stack: uint64(id.PID)<<32 | uint64(i%benchStacks), Addr: w.next, Size: 1 << 20})
	}
}

// BenchmarkInterval is what an interval costs: a view of 500 processes with 1,000,000
// live allocations, and the requests. cpu-ms is of all threads.
func BenchmarkInterval(b *testing.B) {
	w := crowd()
	p, err := New(Options{Source: w, Targets: []string{"http://localhost"}})
	if err != nil {
		b.Fatal(err)
	}
	p.requests(func(*outbox.Message) {}) // how stacks look is kept from one interval to the next
	bytes, requests, profiles, cpu := 0, 0, 0, time.Duration(0)
	for b.Loop() {
		b.StopTimer()
		for pid := uint32(1); pid <= benchProcesses; pid++ {
			w.churn(event.Process{PID: pid, Start: uint64(time.Hour)}, 10)
		}
		w.pass(time.Minute)
		b.StartTimer()
		cpu -= used(b)
		p.requests(func(m *outbox.Message) {
			bytes += len(m.Body)
			requests++
			profiles += m.Parts
		})
		cpu += used(b)
	}
	if profiles != b.N*benchProcesses {
		b.Fatal(profiles)
	}
	lossless(b, p.Loss())
	b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(bytes)/float64(b.N)/1e6, "MB/op")
	b.ReportMetric(float64(requests)/float64(b.N), "requests/op")
}

// used is how long this process has used processors.
func used(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
