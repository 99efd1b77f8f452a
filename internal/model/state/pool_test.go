package state

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// A thread whose context is on GPU 3 takes memory of a pool on GPU 4, where the process has no context:
// NVML does not list it there, and the reader takes the one device that it uses for the one listed. What
// the kernel driver handed out shows better where the memory is.
func TestPoolOfAnotherGPU(t *testing.T) {
	s := watched()
	here, there := opened(s, prog, 6), opened(s, prog, 7)
	here.takes(10, "cuDevicePrimaryCtxRetain", 500*mib, 0)
	s.Apply(&event.Event{Op: event.OpPoolCreate, Proc: prog, TID: prog.PID, Time: 11, Handle: 99, Device: 1})
	there.takes(12, "cuMemAllocAsync", 256*mib, 0)
	s.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindAsync, Proc: prog, TID: prog.PID, Time: 12, Addr: 0x420000000, Size: 256 * mib, Handle: 99, Ctx: 5, Device: 0})
	r := held(20, 500*mib)
	r.Devices = append(r.Devices, record.Device{UUID: "GPU-b", Label: "4", GPU: 7, GPUKnown: true, Instance: -1, Listed: true})
	r.Ordinals = []record.Ordinal{{Process: prog, Ordinal: 1}}
	s.Apply(r)
	moment(s, 21)
	snap := driven(s)
	notNegative(t, snap)
	totals := map[string]int64{}
	for _, a := range snap.Accounts {
		totals[a.GPU] = a.Total
	}
	expect(t, "totals", map[string]int64{"3": 500 * mib, "4": 256 * mib}, totals)
	for _, x := range snap.Samples {
		if x.Kind == "async" && x.GPU != "4" {
			t.Errorf("%d bytes of the pool on GPU %s", x.InuseBytes, x.GPU)
		}
	}
}
