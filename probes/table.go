package probes

import (
	"strings"

	"github.com/ianlancetaylor/demangle"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
)

// Level is the library that exports a row's symbols.
type Level uint8

const (
	Driver    Level = iota // libcuda, CUDA's driver API
	Runtime                // libcudart, CUDA's runtime API
	Torch                  // libc10, PyTorch's core
	TorchCUDA              // libc10_cuda, with PyTorch's caching allocator
	Vendor                 // NVIDIA's other libraries that call the kernel driver: OpenCL, graphics, video
	Kernel                 // no library: NVIDIA's kernel driver, which libraries call by ioctl
)

// A Row is one function of CUDA's API: the places of its pointer, size, handle, and device, and what it does to
// the ledger. Argument positions and structure offsets are those of cuda.h and cuda_runtime_api.h of CUDA 13 on
// 64-bit machines. They have been stable since CUDA introduced the symbol's version suffix.
type Row struct {
	// Symbols are the exported names that share this signature.
	Symbols []string
	Level   Level
	Op      event.Op
	Kind    event.Kind
	Space   event.Space

	// Escape is the ioctl of a row of level Kernel.
	Escape *escape

	// Values captured when the call returns. Absent ones are zero.
	Addr, Size, Handle, Ctx, Device, Stream value
	// Extra values for Fix, in order.
	Extra []value
	// Fix computes values of the event from the extra values, such as products and sums.
	Fix func(e *event.Event, extra []uint64)

	// class is what the kernel side does with the call, by default classEmit. Entries adds the
	// flags that follow from Op.
	class class
	flags rowFlags
	// stride of a list's elements; the argument that holds an extent's
	// address on arm64 (flagExtent), or a c10::Device (classTensor, 0: there is none).
	stride uint16

	plan *plan
}

// A value is the place of one number: an argument, or memory that an argument points to, which the kernel side
// reads after the call returned.
type value struct {
	present bool
	size    uint8 // 0 the argument itself, 4 or 8 bytes of memory
	output  bool  // the function writes it; it counts as 0 if the function failed
	arg     uint8
	off     uint16
}

func arg(n uint8) value               { return value{present: true, arg: n} }
func mem(n uint8, off uint16) value   { return value{present: true, size: 8, arg: n, off: off} }
func mem32(n uint8, off uint16) value { return value{present: true, size: 4, arg: n, off: off} }
func out(n uint8, off uint16) value {
	return value{present: true, size: 8, arg: n, off: off, output: true}
}
func out32(n uint8, off uint16) value {
	return value{present: true, size: 4, arg: n, off: off, output: true}
}

// class and rowFlags mirror bpf/table.h.
type class uint8

const (
	classOff class = iota
	classEmit
	classAround
	classCause
	classCtxSet
	classCtxPush
	classCtxPop
	classCtxDevice
	classDeviceSet
	classEscape
	classTensor
)

type rowFlags uint16

const (
	flagStack     rowFlags = 1 << iota // take a stack
	flagEntryTime                      // ordered at entry
	flagSkipNull                       // a first argument of 0 means nothing
	flagList                           // argument 0 is an array of argument 1 elements
	flagPushes                         // on success the context created becomes current
	flagName                           // argument 0 is a string
	flagExtent                         // a cudaExtent by value: arguments 4, 5, 6
	flagCtxArg                         // argument 1 names the context asked about, 0 the current one
	flagPops                           // argument 0 is a context that stops being current
	flagAllocates                      // calls inside it make no event of their own
	flagFrees                          // frees inside it make no event of their own
	flagKernel                         // a call of the kernel driver: Outer is the function that made it
	flagBacking                        // no stack inside a flagBacked function, whose event has that stack
	flagPointer                        // argument 6 is the pointer at argument 2 + stride
	flagBacked                         // its allocation lies in memory that the kernel driver hands out inside it
	flagFile                           // the first value is a file descriptor, which becomes the address of its file
)

// Table has one row for each function, and for each call of the kernel driver. The coverage table of
// docs/functions.md, the probes and the stand-in's tests come from it. A name that ends in @plt is a function of
// the C library. Its probe is at the call in libcuda, or in a library of level Vendor, so that no other code runs
// into it.
var Table = append([]Row{
	// Linear device memory. CUDA Driver API, "Memory Management".
	{Symbols: []string{"cuMemAlloc_v2"}, Op: event.OpAlloc, Kind: event.KindDevice, Addr: out(0, 0), Size: arg(1)},
	// Without _v2: the 32-bit device pointers and sizes of CUDA before 3.2.
	{Symbols: []string{"cuMemAlloc"}, Op: event.OpAlloc, Kind: event.KindDevice, Addr: out32(0, 0), Extra: []value{arg(1)}, Fix: fixSize32},
	{Symbols: []string{"cuMemAllocPitch_v2"}, Op: event.OpAlloc, Kind: event.KindDevice, Addr: out(0, 0),
		Extra: []value{out(1, 0), arg(2), arg(3)}, Fix: fixPitch},
	{Symbols: []string{"cuMemAllocPitch"}, Op: event.OpAlloc, Kind: event.KindDevice, Addr: out32(0, 0),
		Extra: []value{out32(1, 0), arg(2), arg(3)}, Fix: fixPitch32},
	{Symbols: []string{"cuMemAllocManaged"}, Op: event.OpAlloc, Kind: event.KindManaged, Addr: out(0, 0), Size: arg(1)},
	{Symbols: []string{"cuMemFree_v2"}, Op: event.OpFree, Addr: arg(0), flags: flagSkipNull},
	{Symbols: []string{"cuMemFree"}, Op: event.OpFree, Extra: []value{arg(0)}, Fix: fixAddr32, flags: flagSkipNull},

	// Host memory.
	{Symbols: []string{"cuMemAllocHost_v2", "cuMemHostAlloc"}, Op: event.OpAlloc, Kind: event.KindHost, Addr: out(0, 0), Size: arg(1)},
	{Symbols: []string{"cuMemAllocHost"}, Op: event.OpAlloc, Kind: event.KindHost, Addr: out(0, 0), Extra: []value{arg(1)}, Fix: fixSize32},
	{Symbols: []string{"cuMemHostRegister_v2", "cuMemHostRegister"}, Op: event.OpAlloc, Kind: event.KindRegistered,
		Space: event.SpaceRegistered, Addr: arg(0), Size: arg(1)},
	{Symbols: []string{"cuMemFreeHost"}, Op: event.OpFree, Addr: arg(0), flags: flagSkipNull},
	{Symbols: []string{"cuMemHostUnregister"}, Op: event.OpFree, Space: event.SpaceRegistered, Addr: arg(0), flags: flagSkipNull},

	// Stream-ordered memory and pools. "Stream Ordered Memory Allocator".
	{Symbols: []string{"cuMemAllocAsync", "cuMemAllocAsync_ptsz"}, Op: event.OpAlloc, Kind: event.KindAsync, Addr: out(0, 0),
		Size: arg(1), Stream: arg(2)},
	{Symbols: []string{"cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"}, Op: event.OpAlloc, Kind: event.KindAsync,
		Addr: out(0, 0), Size: arg(1), Handle: arg(2), Stream: arg(3)},
	{Symbols: []string{"cuMemFreeAsync", "cuMemFreeAsync_ptsz"}, Op: event.OpFree, Addr: arg(0), flags: flagSkipNull},
	// CUmemPoolProps: type of allocation at 0, location at 8. A CUmemLocation is a type and an id.
	{Symbols: []string{"cuMemPoolCreate"}, Op: event.OpPoolCreate, Handle: out(0, 0), Extra: []value{mem32(1, 0), mem(1, 8)}, Fix: fixPool},
	{Symbols: []string{"cuMemGetDefaultMemPool"}, Op: event.OpPoolCreate, Handle: out(0, 0), Extra: []value{arg(2), mem(1, 0)}, Fix: fixDefaultPool},
	{Symbols: []string{"cuMemGetMemPool"}, Op: event.OpPoolCreate, Handle: out(0, 0), Extra: []value{arg(2), mem(1, 0)}, Fix: fixCurrentPool},
	{Symbols: []string{"cuMemSetMemPool"}, Op: event.OpPoolCreate, Handle: arg(2), Extra: []value{arg(1), mem(0, 0)}, Fix: fixCurrentPool},
	{Symbols: []string{"cuDeviceGetDefaultMemPool"}, Op: event.OpPoolCreate, Handle: out(0, 0), Device: arg(1), Fix: fixDefaultPool},
	{Symbols: []string{"cuDeviceGetMemPool"}, Op: event.OpPoolCreate, Handle: out(0, 0), Device: arg(1), Fix: fixCurrentPool},
	{Symbols: []string{"cuDeviceSetMemPool"}, Op: event.OpPoolCreate, Handle: arg(1), Device: arg(0), Fix: fixCurrentPool},
	{Symbols: []string{"cuMemPoolDestroy"}, Op: event.OpPoolDestroy, Handle: arg(0)},
	{Symbols: []string{"cuMemPoolTrimTo"}, Op: event.OpPoolTrim, Handle: arg(0), Size: arg(1)},
	// The exporter's allocation. The call does not show its size.
	{Symbols: []string{"cuMemPoolImportPointer"}, Op: event.OpAlloc, Kind: event.KindImported, Addr: out(0, 0), Handle: arg(1)},

	// Arrays.
	{Symbols: []string{"cuArrayCreate_v2"}, Op: event.OpAlloc, Kind: event.KindArray, Space: event.SpaceArray, Addr: out(0, 0),
		Extra: []value{mem(1, 0), mem(1, 8), mem(1, 16)}, Fix: fixArray2D},
	{Symbols: []string{"cuArrayCreate"}, Op: event.OpAlloc, Kind: event.KindArray, Space: event.SpaceArray, Addr: out(0, 0),
		Extra: []value{mem32(1, 0), mem32(1, 4), mem(1, 8)}, Fix: fixArray2D},
	{Symbols: []string{"cuArray3DCreate_v2"}, Op: event.OpAlloc, Kind: event.KindArray, Space: event.SpaceArray, Addr: out(0, 0),
		Extra: []value{mem(1, 0), mem(1, 8), mem(1, 16), mem(1, 24), mem32(1, 32)}, Fix: fixArray3D},
	{Symbols: []string{"cuArray3DCreate"}, Op: event.OpAlloc, Kind: event.KindArray, Space: event.SpaceArray, Addr: out(0, 0),
		Extra: []value{mem32(1, 0), mem32(1, 4), mem32(1, 8), mem(1, 12), mem32(1, 20)}, Fix: fixArray3D},
	{Symbols: []string{"cuMipmappedArrayCreate"}, Op: event.OpAlloc, Kind: event.KindArray, Space: event.SpaceArray, Addr: out(0, 0),
		Extra: []value{mem(1, 0), mem(1, 8), mem(1, 16), mem(1, 24), mem32(1, 32), arg(2)}, Fix: fixArray3D},
	{Symbols: []string{"cuArrayDestroy", "cuMipmappedArrayDestroy"}, Op: event.OpFree, Space: event.SpaceArray, Addr: arg(0),
		flags: flagSkipNull},

	// Virtual memory management. CUmemAllocationProp: location at 8.
	{Symbols: []string{"cuMemCreate"}, Op: event.OpHandleCreate, Kind: event.KindVMM, Handle: out(0, 0), Size: arg(1),
		Extra: []value{mem(2, 8)}, Fix: fixLocation},
	// A multicast object has no memory: memory that is bound to it counts at its own creation. Its
	// handle is mapped and released like one of physical memory.
	{Symbols: []string{"cuMulticastCreate"}, Op: event.OpHandleCreate, Kind: event.KindMulticast, Handle: out(0, 0)},
	{Symbols: []string{"cuMemRelease"}, Op: event.OpHandleRelease, Handle: arg(0)},
	{Symbols: []string{"cuMemRetainAllocationHandle"}, Op: event.OpHandleRetain, Handle: out(0, 0)},
	{Symbols: []string{"cuMemImportFromShareableHandle"}, Op: event.OpHandleImport, Kind: event.KindImported, Handle: out(0, 0)},
	{Symbols: []string{"cuMemMap"}, Op: event.OpMap, Addr: arg(0), Size: arg(1), Handle: arg(3)},
	{Symbols: []string{"cuMemUnmap"}, Op: event.OpUnmap, Addr: arg(0), Size: arg(1)},
	// CUarrayMapInfo, 96 bytes: resource 8, subresource 24, operation 56, handle 64.
	{Symbols: []string{"cuMemMapArrayAsync", "cuMemMapArrayAsync_ptsz"}, Op: event.OpMapArray, Addr: mem(0, 8), Handle: mem(0, 64),
		Extra: []value{mem32(0, 56), mem(0, 24), mem(0, 32), mem(0, 40)}, Fix: fixMapArray, flags: flagList, stride: 96},
	{Symbols: []string{"cuMemAddressReserve"}, Op: event.OpReserve, Addr: out(0, 0), Size: arg(1)},
	{Symbols: []string{"cuMemAddressFree"}, Op: event.OpUnreserve, Addr: arg(0), Size: arg(1)},

	// Memory of other processes and APIs. "CUDA IPC", "External Resource
	// Interoperability". An IPC handle does not show its size.
	{Symbols: []string{"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"}, Op: event.OpOpen, Kind: event.KindImported, Addr: out(0, 0)},
	{Symbols: []string{"cuIpcCloseMemHandle"}, Op: event.OpFree, Addr: arg(0), flags: flagSkipNull},
	// CUDA_EXTERNAL_MEMORY_HANDLE_DESC: size at 24.
	{Symbols: []string{"cuImportExternalMemory"}, Op: event.OpAlloc, Kind: event.KindImported, Space: event.SpaceExternal,
		Addr: out(0, 0), Size: mem(1, 24)},
	{Symbols: []string{"cuDestroyExternalMemory"}, Op: event.OpFree, Space: event.SpaceExternal, Addr: arg(0), flags: flagSkipNull},
	// Views of imported memory: their bytes count at the import.
	{Symbols: []string{"cuExternalMemoryGetMappedBuffer"}, Op: event.OpAlloc, Kind: event.KindImported, Addr: out(0, 0)},
	{Symbols: []string{"cuExternalMemoryGetMappedMipmappedArray"}, Op: event.OpAlloc, Kind: event.KindImported,
		Space: event.SpaceArray, Addr: out(0, 0)},

	// Graph memory nodes: address range that the graph backs when it runs.
	// CUDA_MEM_ALLOC_NODE_PARAMS: location 8, bytesize 104, dptr 112. A free
	// node ends the range's life inside the graph.
	{Symbols: []string{"cuGraphAddMemAllocNode"}, Op: event.OpAlloc, Kind: event.KindGraph, Addr: out(4, 112), Size: mem(4, 104),
		Handle: arg(1), Extra: []value{mem(4, 8)}, Fix: fixLocation},
	// CUgraphNodeParams: type 0, and from 16 the type's own parameters.
	{Symbols: []string{"cuGraphAddNode"}, Op: event.OpAlloc, Kind: event.KindGraph, Addr: out(4, 16+112), Size: mem(4, 16+104),
		Handle: arg(1), Extra: []value{mem32(4, 0), mem(4, 16), mem(4, 16+8)}, Fix: fixGraphNode},
	{Symbols: []string{"cuGraphAddNode_v2"}, Op: event.OpAlloc, Kind: event.KindGraph, Addr: out(5, 16+112), Size: mem(5, 16+104),
		Handle: arg(1), Extra: []value{mem32(5, 0), mem(5, 16), mem(5, 16+8)}, Fix: fixGraphNode},
	{Symbols: []string{"cuGraphAddMemFreeNode"}, Op: event.OpFree, Addr: arg(4)},
	{Symbols: []string{"cuGraphDestroy"}, Op: event.OpGraphDestroy, Handle: arg(0)},
	// A capture makes nodes of what is put on its stream. The first version
	// had no mode.
	{Symbols: []string{"cuStreamBeginCapture", "cuStreamBeginCapture_ptsz"}, Op: event.OpCaptureBegin, Stream: arg(0)},
	{Symbols: []string{"cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz"}, Op: event.OpCaptureBegin, Stream: arg(0),
		Extra: []value{arg(1)}, Fix: fixCaptureMode},
	{Symbols: []string{"cuStreamBeginCaptureToGraph", "cuStreamBeginCaptureToGraph_ptsz"}, Op: event.OpCaptureBegin, Stream: arg(0),
		Handle: arg(1)},
	{Symbols: []string{"cuStreamEndCapture", "cuStreamEndCapture_ptsz"}, Op: event.OpCaptureEnd, Stream: arg(0), Handle: out(1, 0)},
	{Symbols: []string{"cuDeviceGraphMemTrim"}, Op: event.OpNone, Device: arg(0)},

	// Contexts: life cycle, and which one is current, for device attribution.
	{Symbols: []string{"cuCtxCreate", "cuCtxCreate_v2"}, Op: event.OpContextCreate, Ctx: out(0, 0), Device: arg(2), flags: flagPushes},
	// For OpenGL, and for VDPAU with two more arguments.
	{Symbols: []string{"cuGLCtxCreate", "cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"}, Op: event.OpContextCreate,
		Ctx: out(0, 0), Device: arg(2), flags: flagPushes},
	{Symbols: []string{"cuCtxCreate_v3"}, Op: event.OpContextCreate, Ctx: out(0, 0), Device: arg(4), flags: flagPushes},
	{Symbols: []string{"cuCtxCreate_v4"}, Op: event.OpContextCreate, Ctx: out(0, 0), Device: arg(3), flags: flagPushes},
	{Symbols: []string{"cuCtxDestroy", "cuCtxDestroy_v2"}, Op: event.OpContextDestroy, Ctx: arg(0), flags: flagPops},
	{Symbols: []string{"cuCtxAttach"}, Op: event.OpContextSeen, Ctx: out(0, 0), Fix: fixPart(event.ContextAttached)},
	{Symbols: []string{"cuCtxDetach"}, Op: event.OpContextDestroy, Ctx: arg(0), Fix: fixPart(event.ContextDetached)},
	// A CUgreenCtx is the CUcontext of itself that cuCtxFromGreenCtx returns. What is allocated in it
	// outlives it.
	{Symbols: []string{"cuGreenCtxCreate"}, Op: event.OpContextSeen, Ctx: out(0, 0), Device: arg(2), Fix: fixPart(event.ContextGreen)},
	{Symbols: []string{"cuDevicePrimaryCtxRetain"}, Op: event.OpContextSeen, Ctx: out(0, 0), Device: arg(1)},
	{Symbols: []string{"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"}, Op: event.OpPrimaryRelease, Device: arg(0)},
	{Symbols: []string{"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"}, Op: event.OpPrimaryReset, Device: arg(0)},
	{Symbols: []string{"cuCtxSetCurrent"}, class: classCtxSet},
	{Symbols: []string{"cuCtxPushCurrent", "cuCtxPushCurrent_v2"}, class: classCtxPush},
	{Symbols: []string{"cuCtxPopCurrent", "cuCtxPopCurrent_v2"}, class: classCtxPop},
	{Symbols: []string{"cuCtxGetDevice"}, class: classCtxDevice},
	{Symbols: []string{"cuCtxGetDevice_v2"}, class: classCtxDevice, flags: flagCtxArg},

	{Symbols: []string{"cuGraphInstantiate", "cuGraphInstantiate_v2", "cuGraphInstantiateWithFlags",
		"cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"}, Op: event.OpGraphInstantiate, Handle: arg(1)},

	// Calls in which the kernel driver hands out, or takes back, memory that no function returns.
	{Symbols: []string{"cuInit", "cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuModuleUnload",
		"cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryUnload", "cuCtxSetLimit", "cuStreamCreate",
		"cuStreamCreateWithPriority", "cuStreamDestroy", "cuStreamDestroy_v2", "cuGraphExecDestroy", "cuGreenCtxDestroy", "cuGreenCtxStreamCreate"}, class: classCause},

	// For the guard: the address that a program got for a name. No event for the ledger.
	{Symbols: []string{"cuGetProcAddress", "cuGetProcAddress_v2"}, Op: opProcAddress, Addr: out(1, 0), flags: flagName},

	// The runtime, for --api runtime and both.
	{Level: Runtime, Symbols: []string{"cudaMalloc"}, Op: event.OpAlloc, Kind: event.KindDevice, Addr: out(0, 0), Size: arg(1)},
	{Level: Runtime, Symbols: []string{"cudaMallocManaged"}, Op: event.OpAlloc, Kind: event.KindManaged, Addr: out(0, 0), Size: arg(1)},
	{Level: Runtime, Symbols: []string{"cudaMallocHost", "cudaHostAlloc"}, Op: event.OpAlloc, Kind: event.KindHost, Addr: out(0, 0),
		Size: arg(1)},
	{Level: Runtime, Symbols: []string{"cudaHostRegister"}, Op: event.OpAlloc, Kind: event.KindRegistered,
		Space: event.SpaceRegistered, Addr: arg(0), Size: arg(1)},
	{Level: Runtime, Symbols: []string{"cudaHostUnregister"}, Op: event.OpFree, Space: event.SpaceRegistered, Addr: arg(0),
		flags: flagSkipNull},
	{Level: Runtime, Symbols: []string{"cudaFreeHost", "cudaFree"}, Op: event.OpFree, Addr: arg(0), flags: flagSkipNull},
	{Level: Runtime, Symbols: []string{"cudaMallocPitch"}, Op: event.OpAlloc, Kind: event.KindDevice, Addr: out(0, 0),
		Extra: []value{out(1, 0), arg(2), arg(3)}, Fix: fixPitch},
	// cudaPitchedPtr: ptr 0, pitch 8, ysize 24.
	{Level: Runtime, Symbols: []string{"cudaMalloc3D"}, Op: event.OpAlloc, Kind: event.KindDevice, Addr: out(0, 0),
		Extra: []value{out(0, 8), arg(4), arg(5), arg(6)}, Fix: fixPitch3D, flags: flagExtent, stride: 1},
	// cudaChannelFormatDesc: four ints of bits.
	{Level: Runtime, Symbols: []string{"cudaMallocArray"}, Op: event.OpAlloc, Kind: event.KindArray, Space: event.SpaceArray,
		Addr: out(0, 0), Extra: []value{mem(1, 0), mem(1, 8), arg(2), arg(3)}, Fix: fixChannels2D},
	{Level: Runtime, Symbols: []string{"cudaMalloc3DArray"}, Op: event.OpAlloc, Kind: event.KindArray, Space: event.SpaceArray,
		Addr: out(0, 0), Extra: []value{mem(1, 0), mem(1, 8), arg(4), arg(5), arg(6)}, Fix: fixChannels3D, flags: flagExtent, stride: 2},
	{Level: Runtime, Symbols: []string{"cudaMallocMipmappedArray"}, Op: event.OpAlloc, Kind: event.KindArray, Space: event.SpaceArray,
		Addr: out(0, 0), Extra: []value{mem(1, 0), mem(1, 8), arg(4), arg(5), arg(6), arg(2)}, Fix: fixChannels3D, flags: flagExtent,
		stride: 2},
	{Level: Runtime, Symbols: []string{"cudaFreeArray", "cudaFreeMipmappedArray"}, Op: event.OpFree, Space: event.SpaceArray,
		Addr: arg(0), flags: flagSkipNull},
	{Level: Runtime, Symbols: []string{"cudaMallocAsync", "cudaMallocAsync_ptsz"}, Op: event.OpAlloc, Kind: event.KindAsync,
		Addr: out(0, 0), Size: arg(1)},
	{Level: Runtime, Symbols: []string{"cudaMallocFromPoolAsync", "cudaMallocFromPoolAsync_ptsz"}, Op: event.OpAlloc,
		Kind: event.KindAsync, Addr: out(0, 0), Size: arg(1), Handle: arg(2)},
	{Level: Runtime, Symbols: []string{"cudaFreeAsync", "cudaFreeAsync_ptsz"}, Op: event.OpFree, Addr: arg(0), flags: flagSkipNull},
	{Level: Runtime, Symbols: []string{"cudaDeviceReset"}, Op: event.OpPrimaryReset},
	{Level: Runtime, Symbols: []string{"cudaSetDevice"}, class: classDeviceSet},

	// c10::reportOutOfMemoryToProfiler(int64_t, size_t, size_t, Device), before
	// PyTorch throws OutOfMemoryError; a memory fraction can run out without
	// any driver call. c10/core/Allocator.h; int64_t all through before 2.1.
	{Level: Torch, Symbols: []string{"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE", "_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE"},
		Op: event.OpOutOfMemory, Size: arg(0), Handle: arg(1), Extra: []value{arg(2), arg(3)}, Fix: fixTorchOutOfMemory,
		flags: flagStack},

	// c10::reportMemoryUsageToProfiler(void *, int64_t, size_t, size_t, Device): the caching
	// allocator handed memory out, or with a negative size took it back, and its totals after
	// that. c10/core/Allocator.h; only int64_t before 2.1, no totals before 1.10.
	{Level: Torch, Symbols: []string{tensorSymbol + "mmNS_6DeviceE", tensorSymbol + "llNS_6DeviceE"}, class: classTensor,
		Op: event.OpTensorAlloc, Kind: event.KindTensor, Addr: arg(0), Handle: arg(2),
		Extra: []value{arg(1), arg(4), arg(3)}, Fix: fixTensor, stride: 4},
	{Level: Torch, Symbols: []string{tensorSymbol + "NS_6DeviceE"}, class: classTensor,
		Op: event.OpTensorAlloc, Kind: event.KindTensor, Addr: arg(0),
		Extra: []value{arg(1), arg(2)}, Fix: fixTensor, stride: 2},

	// NativeCachingAllocator::beginAllocateToPool(DeviceIndex, MempoolId_t,
	// std::function<bool(cudaStream_t)>) and endAllocateToPool(DeviceIndex, MempoolId_t):
	// between them the memory that passes a filter is for a private pool, of a CUDA graph or
	// torch.cuda.MemPool. c10/cuda/CUDACachingAllocator.cpp. They are virtual, and not
	// exported: .symtab has them. Both may throw.
	{Level: TorchCUDA, Symbols: []string{allocatorSymbol + "19beginAllocateToPoolEaSt4pairIyyESt8functionIFbP11CUstream_stEE"}, class: classTensor,
		Op: event.OpPrivatePoolBegin, Handle: arg(2), Extra: []value{arg(3), arg(1)}, Fix: fixPrivatePool},
	{Level: TorchCUDA, Symbols: []string{allocatorSymbol + "17endAllocateToPoolEaSt4pairIyyE"}, class: classTensor,
		Op: event.OpPrivatePoolEnd, Handle: arg(2), Extra: []value{arg(3), arg(1)}, Fix: fixPrivatePool},

	// The calls of libcuda to the kernel driver.
	{Symbols: []string{"ioctl@plt"}, class: classEscape},
	{Symbols: []string{"close@plt"}, Op: event.OpDescriptorClose, Addr: arg(0), flags: flagKernel},
}, kernelTable...)

// imported ends the names of rows of the C library's functions.
const imported = "@plt"

func (r *Row) imported() bool { return strings.HasSuffix(r.Symbols[0], imported) }

// tensorSymbol begins the name of every version of c10::reportMemoryUsageToProfiler: their first arguments are
// the same.
const tensorSymbol = "_ZN3c1027reportMemoryUsageToProfilerEPvl"

// allocatorSymbol begins the names of methods of PyTorch's caching allocator.
const allocatorSymbol = "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator"

// ReportsTensors reports whether a symbol is PyTorch's function that reports tensors.
func ReportsTensors(symbol string) bool { return strings.HasPrefix(symbol, tensorSymbol) }

// opProcAddress is the operation of the guard's row. No Handler gets it.
const opProcAddress event.Op = 255

// An Entry is one symbol of one row. Its index in Entries is the row in the attach cookie, and
// event.Event.API.
type Entry struct {
	Symbol string
	*Row
}

// Entries is Table by symbol. Index 0 is unused.
var Entries = func() []Entry {
	out := []Entry{{Symbol: "", Row: &Row{class: classOff}}}
	for i := range Table {
		r := &Table[i]
		if r.class == classOff {
			r.class = classEmit
		}
		switch r.Op {
		case event.OpAlloc, event.OpOpen, event.OpHandleCreate, event.OpHandleImport:
			r.flags |= flagStack | flagAllocates
			if c := physical.Cause(r.Symbols[0]); c == event.KindBacking || c == event.KindPool {
				r.flags |= flagBacked
			}
		case event.OpTensorAlloc:
			r.flags |= flagStack
		case event.OpFree:
			r.flags |= flagEntryTime | flagFrees
		case event.OpHandleRelease, event.OpUnmap, event.OpUnreserve, event.OpPoolDestroy, event.OpGraphDestroy,
			event.OpContextDestroy, event.OpPrimaryRelease, event.OpPrimaryReset, event.OpObjectFree, event.OpDescriptorClose:
			r.flags |= flagEntryTime
		}
		if e := r.Escape; e != nil {
			r.flags |= flagKernel
			if e.pointer != 0 {
				r.flags |= flagPointer
				r.stride = e.pointer
			}
		}
		for _, s := range r.Symbols {
			out = append(out, Entry{Symbol: s, Row: r})
		}
	}
	return out
}()

// APINames returns the names of functions in their source, by event.Event.API and Outer.
func APINames() []string {
	out := make([]string, len(Entries))
	for i := range Entries {
		out[i] = demangle.Filter(Entries[i].Symbol, demangle.NoParams)
	}
	return out
}
