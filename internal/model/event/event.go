// Package event describes the calls and steps in a process's life that change its GPU
// memory, in the terms of CUDA's driver API. It is a leaf: it has no eBPF type and imports
// nothing of this module.
package event

import "cmp"

// A Process is one program image's identity. A PID alone is reused by the
// kernel; the start time tells two holders of one PID apart.
type Process struct {
	// Start is when it began, in nanoseconds since boot. It comes before PID, so that no gap lies between
	// the two fields. Go then hashes a map's key in one piece, which takes half the time.
	Start uint64
	PID   uint32 // thread group id in the tracer's PID namespace
}

// Compare orders processes by PID, and those of one PID by their start.
func (p Process) Compare(q Process) int {
	return cmp.Or(cmp.Compare(p.PID, q.PID), cmp.Compare(p.Start, q.Start))
}

// StartUnit is one clock tick, the unit of start times in /proc/PID/stat (USER_HZ is 100 on
// every architecture that CUDA runs on).
const StartUnit = 10_000_000

// Ticks returns when the process began, as in /proc/PID/stat.
func (p Process) Ticks() uint64 { return p.Start / StartUnit }

// Op is the effect of an event on the ledger.
type Op uint8

const (
	OpNone Op = iota

	OpAlloc // Size bytes became live at Addr
	OpFree  // the allocation at Addr ended, or one reference to what OpOpen brought
	OpOpen  // one more reference to another owner's memory at Addr, live from the first on

	OpHandleCreate  // physical memory: Handle has Size bytes and one reference
	OpHandleRetain  // one more reference to Handle
	OpHandleImport  // Handle refers to memory that another owner created; Size is unknown (0)
	OpHandleRelease // one reference to Handle less
	OpMap           // [Addr, Addr+Size) shows Handle's memory
	OpUnmap         // every mapping inside [Addr, Addr+Size) ended
	OpMapArray      // part Part of the sparse array Addr shows Handle's memory
	OpUnmapArray    // part Part of the sparse array Addr shows nothing

	// work on Stream becomes nodes of a graph: of Handle, or of a new one (0). Part is 1
	// where during the capture no thread may call a plain cuMemAlloc, but for a thread
	// that exempted itself (CU_STREAM_CAPTURE_MODE_GLOBAL)
	OpCaptureBegin
	OpCaptureEnd // that ended, and Handle is the graph

	OpGraphInstantiate // the graph Handle may run, and the driver may have taken memory for it
	OpGraphMove        // the graph Part became a part of the graph Handle
	OpGraphDestroy     // the graph Handle ended

	OpReserve   // address space [Addr, Addr+Size): never memory
	OpUnreserve // the end of such a range

	// Handle is a memory pool on Device, or of memory of Kind that is on none. Part is 0 for a
	// new pool, else PoolDefault or PoolCurrent.
	OpPoolCreate
	OpPoolDestroy // Handle's pool goes once its allocations are freed
	OpPoolTrim    // the pool Handle gave unused memory back, keeping at most Size

	OpContextCreate  // Ctx is a new context on Device
	OpContextSeen    // Ctx is a context on Device, which may be older than the trace; see ContextGreen, ContextAttached
	OpContextDestroy // Ctx and every allocation made in it ended, or with ContextDetached lost a reference
	OpPrimaryReset   // Device's primary context and every allocation in it ended
	OpPrimaryRelease // one reference to Device's primary context less

	OpFork // Proc forked the process Child: no memory is copied
	OpExec // Proc replaced its image: all its allocations ended
	OpExit // Proc's last thread ended, and with it all its allocations

	// OpOutOfMemory says that a framework's own allocator gave up: it wanted
	// Size bytes, had handed out Handle and held Part. The ledger has no part
	// in it.
	OpOutOfMemory

	// The next are calls of the kernel driver, which hands out memory as objects: a tree
	// under each of its clients. The name of an object is the number of its client in the
	// high half, and its own in the low one.

	OpClient          // Handle is a new client, made on the file descriptor Addr
	OpGPU             // the process was told that device instance Addr is the GPU Part; or, with a Handle, that object's GPU is Device
	OpObjectDevice    // the object Handle, under Part, is device instance Addr
	OpObject          // the object Handle, under Part, holds no memory itself
	OpObjectInstance  // the object Handle, under Part, stands for the GPU instance Addr of MIG
	OpObjectMemory    // the object Handle, under the device Part, is Size bytes of memory
	OpObjectShare     // the object Handle, under Part, is the memory of the object Addr
	OpObjectFree      // the object Handle ended, with all that is under it
	OpDescriptorClose // the file descriptor Addr was closed

	// The rest are calls of PyTorch's caching allocator. It takes segments from CUDA, and
	// hands tensors out of them.

	// These three also say what the allocator then has handed out on Device (Handle), and
	// what it holds there (Part), in bytes. Both are NoTotal where it does not report them.

	OpTensorAlloc // the tensor [Addr, Addr+Size) was handed out
	OpTensorFree  // the tensor at Addr, of Size bytes, was taken back
	_             // once a tensor without an event

	// On Device the allocator now takes segments for its private pool whose id is Handle and
	// Part, if a filter lets the request through. The filter is not known. Size is 1 where
	// a capture on the thread is such that the Part of its OpCaptureBegin is 1.
	OpPrivatePoolBegin
	OpPrivatePoolEnd    // that ended
	OpPrivatePoolMemory // [Addr, Addr+Size) is of the private pool Handle and Part, or with NoTotal twice may be of one

	// Two more calls of the kernel driver. One number stands for an open file and a place in it,
	// in all processes. Size is how many objects the call names, of which the event has the first.

	OpObjectExport // the place Handle of a file now has the memory of the object Addr, or none if Addr's own half is 0
	OpObjectImport // the object Handle, under Part, is the memory in the place Addr of a file
)

// Kernel reports whether op is a call of the kernel driver.
func (op Op) Kernel() bool {
	return op >= OpClient && op <= OpDescriptorClose || op == OpObjectExport || op == OpObjectImport
}

// Tensor reports whether op is of the tensor layer.
func (op Op) Tensor() bool { return op >= OpTensorAlloc && op <= OpPrivatePoolMemory }

// Kind is what sort of memory an allocation is.
type Kind uint8

const (
	KindNone Kind = iota
	KindDevice
	KindArray
	KindAsync
	KindVMM
	KindManaged
	KindHost
	KindRegistered
	KindVMMHost
	KindImported
	KindGraph
	KindMulticast

	// Memory that the kernel driver handed out, by what it is for.
	KindDriver    // not known: the stack shows it
	KindBacking   // allocations of the driver layer lie in it
	KindPool      // stream-ordered allocations lie in it
	KindContext   // a CUDA context
	KindCode      // code, and what goes with it
	KindLocal     // local memory of threads: stacks and registers that spill
	KindStream    // streams
	KindEvent     // events
	KindGraphExec // graphs that were made ready to run
	KindShared    // allocated and shared by another process, which has freed it
	KindVideo     // decoding and encoding of video
	KindGraphics  // OpenGL, Vulkan, OptiX
	KindOpenCL    // OpenCL
	KindOther     // none of these
	KindSystem    // of the machine's memory, for the driver itself

	KindTensor // in the segments of a framework's caching allocator, and handed out
	KindCached // in its segments, and not handed out

	// Stream-ordered memory of a pool that is not on a GPU.
	KindAsyncHost
	KindAsyncManaged
	NumKinds
)

var kindNames = [NumKinds]string{
	"none", "device", "array", "async", "vmm", "managed",
	"host", "host_registered", "vmm_host", "imported", "graph", "multicast",
	"driver", "backing", "pool", "context", "code", "local_memory", "stream", "event", "graph_exec", "shared", "video", "graphics", "opencl", "other", "system",
	"tensor", "cached", "async_host", "async_managed",
}

// String returns the name that labels, tables and metrics use.
func (k Kind) String() string {
	if k < NumKinds {
		return kindNames[k]
	}
	return "invalid"
}

// Class groups kinds whose bytes may be added up.
type Class uint8

const (
	// ClassDevice is owned memory on a GPU: device, array, async, vmm.
	ClassDevice Class = iota
	// ClassManaged may live on the GPU or on the host, page by page.
	ClassManaged
	// ClassHost is pinned or registered host memory.
	ClassHost
	// ClassImported is mapped here and owned elsewhere: by another process or
	// API, or as the memory that is bound to a multicast object.
	ClassImported
	// ClassGraph is address range that a CUDA graph backs when it runs.
	ClassGraph
	// ClassDriver is memory on a GPU as the kernel driver handed it out: what
	// all of ClassDevice lies in, and more.
	ClassDriver
	// ClassTensor lies in memory of ClassDevice, and is counted there.
	ClassTensor
	NumClasses
)

var classNames = [NumClasses]string{"device", "managed", "host", "imported", "graph", "driver", "tensor"}

// String returns the class's name.
func (c Class) String() string {
	if c < NumClasses {
		return classNames[c]
	}
	return "invalid"
}

// Class returns the class of k.
func (k Kind) Class() Class {
	switch k {
	case KindManaged, KindAsyncManaged:
		return ClassManaged
	case KindHost, KindRegistered, KindVMMHost, KindSystem, KindAsyncHost:
		return ClassHost
	case KindImported, KindMulticast:
		return ClassImported
	case KindGraph:
		return ClassGraph
	case KindDriver, KindBacking, KindPool, KindContext, KindCode, KindLocal, KindStream, KindEvent, KindGraphExec, KindShared,
		KindVideo, KindGraphics, KindOpenCL, KindOther:
		return ClassDriver
	case KindTensor, KindCached:
		return ClassTensor
	}
	return ClassDevice
}

// Space is the set of names in which an address is unique. CUDA's unified
// addressing puts device, managed, async and pinned pointers in one space;
// array handles are host pointers of the driver's own, and a registered host
// range may coincide with any of them.
type Space uint8

const (
	SpacePointer Space = iota
	SpaceArray
	SpaceRegistered
	SpaceExternal // external memory objects (cuImportExternalMemory)
	NumSpaces
)

// What an OpPoolCreate says in Part of a pool that may be older than the trace.
const (
	PoolDefault = 1 // it is Device's default pool
	PoolCurrent = 2 // it is the one from which Device's plain stream-ordered allocations come
)

// What an OpContextSeen or an OpContextDestroy says in Part.
const (
	ContextGreen    = 1 // it is a part of Device's primary context, whose memory outlives it
	ContextAttached = 2 // it has one more reference
	ContextDetached = 3 // it has one reference less, and ends with the last
)

// Async reports whether memory of k comes from a pool.
func (k Kind) Async() bool { return k == KindAsync || k == KindAsyncHost || k == KindAsyncManaged }

// NoTotal is a total that a caching allocator does not report.
const NoTotal = ^uint64(0)

// Handles reports whether what is unique in s are the driver's handles, which are
// no addresses of memory on a device.
func (s Space) Handles() bool { return s == SpaceArray || s == SpaceExternal }

// NoDevice is a Device that is not known, or memory that is on none.
const NoDevice int32 = -1

// Results of calls, of cuda.h's enum cudaError_enum.
const (
	Success     int32 = 0
	OutOfMemory int32 = 2

	InvalidValue       int32 = 1
	InvalidContext     int32 = 201
	ContextDestroyed   int32 = 709
	InvalidHandle      int32 = 400
	IllegalState       int32 = 401
	CaptureUnmatched   int32 = 903 // it did not begin on this stream
	CaptureWrongThread int32 = 908
)

// StreamPerThread is CU_STREAM_PER_THREAD (cuda.h): a stream of each thread.
const StreamPerThread uint64 = 2

// An Event is one call or one step in a process's life. Fields that an Op's
// comment does not name are zero, except Stack, which may be set on any.
type Event struct {
	// Time orders events, in nanoseconds of CLOCK_MONOTONIC: the return of
	// what brings memory (OpAlloc, OpHandleCreate, OpMap, ...), the entry of
	// what ends it (OpFree, OpUnmap, ...), because memory may be handed out
	// again while the call that freed it is still returning.
	Time uint64
	Proc Process
	// Child is the new process of an OpFork.
	Child Process
	// Name is the command name: of the child of an OpFork, of the process at
	// its OpExec and OpExit.
	Name string
	TID  uint32

	Op     Op
	Kind   Kind
	Space  Space
	API    uint16 // row of the API table (probes.Table)
	Outer  uint16 // row of the function around this call: of the runtime, or for the kernel driver's the innermost probed one; 0 for none
	Result int32  // the CUresult or cudaError_t; anything but 0 failed
	Device int32  // CUDA ordinal inside the process, or NoDevice

	Addr   uint64
	Size   uint64 // bytes
	Handle uint64
	Part   uint64
	Asked  uint64 // of the bytes of a tensor, those that the program asked for, 0 if not known
	Stream uint64 // CUstream of a capture, of a stream-ordered allocation, or of a tensor if known
	Ctx    uint64 // CUcontext current on the thread, 0 when not known
	Stack  uint64 // id of the call stack, 0 for none

	// Where an event enters decides these, and no recording has them.
	Tenant uint16 // whose process it is, as the tracer numbers them
	Bare   bool   // an allocation gets no row and no new call site
	Shut   bool   // an allocation gets no entry in any table, as if each were full
}

// Record marks an Event as a record of a trace (package record).
func (*Event) Record() {}
