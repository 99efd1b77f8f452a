package state

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// apis are the rows of the API table in tests.
var apis = []string{"", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemCreate", "cuDevicePrimaryCtxRetain",
	"cuModuleLoadData", "cuCtxSetLimit", "cuStreamCreate", "cuEventCreate", "cuGraphInstantiateWithFlags", "cuTexObjectCreate",
	"cuDevicePrimaryCtxReset_v2", "cuCtxDestroy_v2", "cuDevicePrimaryCtxRelease_v2"}

func api(name string) uint16 {
	i := slices.Index(apis, name)
	if i < 0 {
		panic("no API " + name)
	}
	return uint16(i)
}

// A kernel makes up the calls by which a process has the kernel driver hand out
// memory on one GPU.
type kernel struct {
	state  *State
	id     event.Process
	client uint64
	last   uint64 // object
}

// opened opens the GPU that the kernel driver calls gpu.
func opened(s *State, id event.Process, gpu uint32) *kernel {
	k := before(s, id, gpu)
	k.apply(&event.Event{Op: event.OpClient, Time: 1, Handle: k.client<<32 | k.client, Addr: 3})
	k.apply(&event.Event{Op: event.OpGPU, Time: 1, Addr: uint64(gpu), Part: uint64(gpu)})
	k.apply(&event.Event{Op: event.OpObjectDevice, Time: 1, Handle: k.device(), Part: k.client<<32 | k.client, Addr: uint64(gpu)})
	return k
}

// before is a GPU that was opened before the trace.
func before(s *State, id event.Process, gpu uint32) *kernel {
	return &kernel{state: s, id: id, client: 0xc1d00000 + uint64(id.PID)<<8 + uint64(gpu), last: 0x5c000001}
}

func (k *kernel) device() uint64 { return k.client<<32 | 0x5c000001 }

func (k *kernel) apply(e *event.Event) {
	e.Proc, e.TID = k.id, k.id.PID
	k.state.Apply(e)
}

// takes has the driver hand out memory inside a function, "" for none that is
// probed, under a stack.
func (k *kernel) takes(at uint64, function string, size, stack uint64) (object uint64) {
	return k.object(at, event.KindDriver, function, size, stack)
}

func (k *kernel) object(at uint64, kind event.Kind, function string, size, stack uint64) uint64 {
	k.last++
	object := k.client<<32 | k.last
	k.apply(&event.Event{Op: event.OpObjectMemory, Time: at, Kind: kind, Handle: object, Part: k.device(), Size: size, Outer: api(function), Stack: stack})
	return object
}

// backs is an allocation and the memory for it, which lies there from address on.
func (k *kernel) backs(at, address, size, backing uint64) (object uint64) {
	object = k.takes(at, "cuMemAlloc_v2", backing, 0)
	k.state.Apply(alloc(k.id, at, address, size))
	return object
}

func (k *kernel) frees(at, object uint64, function string) {
	k.apply(&event.Event{Op: event.OpObjectFree, Time: at, Handle: object, Outer: api(function)})
}

// moment says that all events up to a time were seen.
func moment(s *State, at uint64) { s.Apply(&record.Moment{Time: at, Drained: true}) }
