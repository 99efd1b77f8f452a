// The rows, what they set up first, and what they end after.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "cudart.h"
#include "ops.h"
#include "token.h"

// Host memory.

static void map_host(struct object *o)
{
	void *p = mmap(NULL, o->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		die("cannot map %zu bytes", o->size);
	o->addr = (uint64_t)p;
}

static void unmap_host(struct object *o)
{
	munmap((void *)o->addr, o->size);
}

// Virtual memory. `extra` is the physical handle under a mapping, and of a
// handle that was retained the mapping.

static void create_handle(struct object *o)
{
	SETUP("cuMemCreate", TO(o->extra), o->op->granular ? o->size : GRANULE, arg_value(PHYSICAL, o), 0);
}

static void reserve(struct object *o)
{
	SETUP("cuMemAddressReserve", TO(o->addr), o->size, 0, 0, 0);
	create_handle(o);
}

static void make_pool(struct object *o, unsigned int type, int id)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {type, id}};
	SETUP("cuMemPoolCreate", TO(o->extra), TO(props));
}

static void host_pool(struct object *o) { make_pool(o, CU_MEM_LOCATION_TYPE_HOST, 0); }
static void other_pool(struct object *o) { make_pool(o, CU_MEM_LOCATION_TYPE_DEVICE, 1 - current_device); }
static void end_pool(struct object *o) { SETUP("cuMemPoolDestroy", o->extra); }

static void unreserve(struct object *o)
{
	SETUP("cuMemRelease", o->extra);
	SETUP("cuMemAddressFree", o->addr, o->size);
}

static void map(struct object *o)
{
	reserve(o);
	SETUP("cuMemMap", o->addr, o->size, 0, o->extra, 0);
	SETUP("cuMemRelease", o->extra);
	o->extra = o->addr;
}

static void unmap(struct object *o)
{
	SETUP("cuMemUnmap", o->extra, o->size);
	SETUP("cuMemAddressFree", o->extra, o->size);
}

static void create_sparse(struct object *o)
{
	SETUP("cuArray3DCreate_v2", TO(o->addr), arg_value(SPARSE, o));
	create_handle(o);
}

static void end_sparse(struct object *o)
{
	SETUP("cuMemRelease", o->extra);
	SETUP("cuArrayDestroy", o->addr);
}

static int import(void *function, struct object *o)
{
	int fd = token_fd(0x1000, o->size);
	int result = ((int (*)(uint64_t *, int, unsigned int))function)(&o->addr, fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	close(fd);
	return result;
}

// Memory of other processes and APIs. `extra` is the memory under a view. The
// row "(same)" opens one peer's block again and again.

static __thread CUipcMemHandle peer_handle;
static __thread bool has_peer;

void export_ipc(const char *path, const struct object *o)
{
	FILE *f = fopen(path, "w");
	SETUP("cuIpcGetMemHandle", TO(peer_handle), o->addr);
	if (!f || fwrite(&peer_handle, sizeof peer_handle, 1, f) != 1 || fclose(f) != 0)
		die("cannot write %s", path);
}

void import_ipc(const char *path)
{
	FILE *f = path ? fopen(path, "r") : NULL;
	has_peer = path != NULL;
	if (has_peer && (!f || fread(&peer_handle, sizeof peer_handle, 1, f) != 1 || fclose(f) != 0))
		die("cannot read %s", path);
}

static int open_ipc(void *function, struct object *o)
{
	static uint64_t last = 0x1000;
	CUipcMemHandle handle;
	if (has_peer)
		handle = peer_handle;
	else
		token_pack(&handle, strchr(o->op->name, '(') ? 0x800 : __atomic_add_fetch(&last, 0x1000, __ATOMIC_RELAXED), o->size);
	return ((int (*)(uint64_t *, CUipcMemHandle, unsigned int))function)(&o->addr, handle, 1);
}

static void import_external(struct object *o)
{
	SETUP("cuImportExternalMemory", TO(o->extra), arg_value(EXTERNAL, o));
}

static void end_external(struct object *o)
{
	SETUP("cuDestroyExternalMemory", o->extra);
}

// Graphs. `extra` is the graph of a node, an executable graph or a capture,
// whose `addr` is a stream of its own.

static void create_graph(struct object *o)
{
	SETUP("cuGraphCreate", TO(o->extra), 0);
}

static void end_graph(struct object *o)
{
	SETUP("cuGraphDestroy", o->extra);
}

static void new_stream(struct object *o)
{
	static uint64_t last = 0x50000;
	o->addr = __atomic_add_fetch(&last, 0x10, __ATOMIC_RELAXED);
}

static void new_stream_and_graph(struct object *o)
{
	new_stream(o);
	create_graph(o);
}

// Contexts and devices.

static void this_context(struct object *o)
{
	o->addr = arg_value(CONTEXT, o);
}

static void this_device(struct object *o)
{
	o->addr = (uint64_t)current_device;
}

static void set_device(struct object *o)
{
	current_device = (int)o->size;
}

// A reset leaves the thread with a context that is gone: bring it back.
static void retain_again(struct object *o)
{
	SETUP("cuDevicePrimaryCtxRetain", TO(o->extra), current_device);
}

// Runtime calls that take an extent by value.

static int malloc_3d(void *function, struct object *o)
{
	struct cudaPitchedPtr p = {0};
	int result = ((int (*)(struct cudaPitchedPtr *, struct cudaExtent))function)(&p, (struct cudaExtent){o->size, 3, 2});
	o->addr = (uint64_t)p.ptr;
	return result;
}

static int array_3d(void *function, struct object *o)
{
	return ((int (*)(uint64_t *, uint64_t, struct cudaExtent, unsigned int))function)(
		&o->addr, arg_value(FLOAT4, o), (struct cudaExtent){o->size, 3, 5}, 0);
}

static int mipmap(void *function, struct object *o)
{
	return ((int (*)(uint64_t *, uint64_t, struct cudaExtent, unsigned int, unsigned int))function)(
		&o->addr, arg_value(FLOAT4, o), (struct cudaExtent){o->size, 4, 0}, 3, 0);
}

#define HOST .setup = map_host, .teardown = unmap_host
#define ON_GRAPH .setup = create_graph, .teardown = end_graph
#define CAPTURE .setup = new_stream, .teardown = end_graph
#define CAPTURE_TO_GRAPH .setup = new_stream_and_graph, .teardown = end_graph
#define PART .setup = create_sparse, .teardown = end_sparse
#define ON_EXTERNAL .setup = import_external, .teardown = end_external

// Pitched memory is `size` wide and three rows high.
const struct op ops[] = {
	{"cuMemAlloc", "cuMemFree", {TO_ADDR, SIZE}},
	{"cuMemAlloc_v2", "cuMemFree_v2", {TO_ADDR, SIZE}},
	{"cuMemAllocPitch", "cuMemFree", {TO_ADDR, SCRATCH, SIZE, 3, 4}},
	{"cuMemAllocPitch_v2", "cuMemFree_v2", {TO_ADDR, SCRATCH, SIZE, 3, 4}},
	{"cuMemAllocManaged", "cuMemFree_v2", {TO_ADDR, SIZE, 1}},
	{"cuMemAllocHost", "cuMemFreeHost", {TO_ADDR, SIZE}},
	{"cuMemAllocHost_v2", "cuMemFreeHost", {TO_ADDR, SIZE}},
	{"cuMemHostAlloc", "cuMemFreeHost", {TO_ADDR, SIZE, 1}},
	{"cuMemHostRegister", "cuMemHostUnregister", {ADDR, SIZE, 0}, HOST},
	{"cuMemHostRegister_v2", "cuMemHostUnregister", {ADDR, SIZE, 0}, HOST},
	{"cuMemAllocAsync", "cuMemFreeAsync", {TO_ADDR, SIZE, 0}},
	{"cuMemAllocAsync_ptsz", "cuMemFreeAsync_ptsz", {TO_ADDR, SIZE, 0}},
	{"cuMemAllocFromPoolAsync", "cuMemFreeAsync", {TO_ADDR, SIZE, POOL, 0}},
	{"cuMemAllocFromPoolAsync(host)", "cuMemFreeAsync", {TO_ADDR, SIZE, EXTRA, 0}, .setup = host_pool, .teardown = end_pool},
	{"cuMemAllocFromPoolAsync(other)", "cuMemFreeAsync", {TO_ADDR, SIZE, EXTRA, 0}, .setup = other_pool, .teardown = end_pool},
	{"cuMemAllocFromPoolAsync_ptsz", "cuMemFreeAsync_ptsz", {TO_ADDR, SIZE, POOL, 0}},
	{"cuMemFree_v2(0)", NULL, {0}},
	{"cuArrayCreate", "cuArrayDestroy", {TO_ADDR, ARRAY_V1}},
	{"cuArrayCreate_v2", "cuArrayDestroy", {TO_ADDR, ARRAY}},
	{"cuArray3DCreate", "cuArrayDestroy", {TO_ADDR, ARRAY3D_V1}},
	{"cuArray3DCreate_v2", "cuArrayDestroy", {TO_ADDR, ARRAY3D}},
	{"cuMipmappedArrayCreate", "cuMipmappedArrayDestroy", {TO_ADDR, MIPMAP, 3}},

	{"cudaMalloc", "cudaFree", {TO_ADDR, SIZE}},
	{"cudaMallocManaged", "cudaFree", {TO_ADDR, SIZE, 1}},
	{"cudaMallocPitch", "cudaFree", {TO_ADDR, SCRATCH, SIZE, 3}},
	{"cudaMalloc3D", "cudaFree", .run = malloc_3d},
	{"cudaMallocHost", "cudaFreeHost", {TO_ADDR, SIZE}},
	{"cudaHostAlloc", "cudaFreeHost", {TO_ADDR, SIZE, 1}},
	{"cudaHostRegister", "cudaHostUnregister", {ADDR, SIZE, 0}, HOST},
	{"cudaMallocArray", "cudaFreeArray", {TO_ADDR, FLOAT4, SIZE, 3, 0}},
	{"cudaMalloc3DArray", "cudaFreeArray", .run = array_3d},
	{"cudaMallocMipmappedArray", "cudaFreeMipmappedArray", .run = mipmap},
	{"cudaMallocAsync", "cudaFreeAsync", {TO_ADDR, SIZE, 0}},
	{"cudaMallocAsync_ptsz", "cudaFreeAsync_ptsz", {TO_ADDR, SIZE, 0}},
	{"cudaMallocFromPoolAsync", "cudaFreeAsync", {TO_ADDR, SIZE, POOL, 0}},
	{"cudaMallocFromPoolAsync_ptsz", "cudaFreeAsync_ptsz", {TO_ADDR, SIZE, POOL, 0}},
	{"cudaSetDevice", NULL, {DEVICE}, .setup = set_device},
	{"cudaDeviceReset"},
	{"cudaDeviceSynchronize"},

	{"cuMemAddressReserve", "cuMemAddressFree", {TO_ADDR, SIZE, 0, 0, 0}, {ADDR, SIZE}, .granular = true},
	{"cuMemCreate", "cuMemRelease", {TO_ADDR, SIZE, PHYSICAL, 0}, .granular = true},
	{"cuMulticastCreate", "cuMemRelease", {TO_ADDR, MULTICAST}, .granular = true},
	{"cuMemRetainAllocationHandle", "cuMemRelease", {TO_ADDR, EXTRA}, .setup = map, .teardown = unmap, .granular = true},
	{"cuMemImportFromShareableHandle", "cuMemRelease", .run = import, .granular = true},
	{"cuMemMap", "cuMemUnmap", {ADDR, SIZE, 0, EXTRA, 0}, {ADDR, SIZE}, .setup = reserve, .teardown = unreserve, .granular = true},
	{"cuMemMapArrayAsync", "cuMemMapArrayAsync", {MAP_PART, 1, 0}, {UNMAP_PART, 1, 0}, PART},
	{"cuMemMapArrayAsync_ptsz", "cuMemMapArrayAsync_ptsz", {MAP_PART, 1, 0}, {UNMAP_PART, 1, 0}, PART},
	{"cuMemPoolCreate", "cuMemPoolDestroy", {TO_ADDR, POOL_PROPS}},
	{"cuMemPoolTrimTo", NULL, {POOL, SIZE}},
	{"cuDeviceGetDefaultMemPool", NULL, {SCRATCH, DEVICE}},
	{"cuDeviceGetMemPool", NULL, {SCRATCH, DEVICE}},
	{"cuDeviceSetMemPool", NULL, {DEVICE, POOL}},
	{"cuMemGetDefaultMemPool", NULL, {SCRATCH, LOCATION, 1}},
	{"cuMemGetMemPool", NULL, {SCRATCH, LOCATION, 1}},
	{"cuMemSetMemPool", NULL, {LOCATION, 1, POOL}},
	{"cuMemPoolImportPointer", "cuMemFreeAsync", {TO_ADDR, POOL, POINTER_DATA}},

	{"cuIpcOpenMemHandle", "cuIpcCloseMemHandle", .run = open_ipc},
	{"cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", .run = open_ipc},
	{"cuIpcOpenMemHandle_v2(same)", "cuIpcCloseMemHandle", .run = open_ipc},
	{"cuImportExternalMemory", "cuDestroyExternalMemory", {TO_ADDR, EXTERNAL}},
	{"cuExternalMemoryGetMappedBuffer", "cuMemFree_v2", {TO_ADDR, EXTRA, VIEW}, ON_EXTERNAL},
	{"cuExternalMemoryGetMappedMipmappedArray", "cuMipmappedArrayDestroy", {TO_ADDR, EXTRA, MIPMAP_VIEW}, ON_EXTERNAL},

	{"cuGraphCreate", "cuGraphDestroy", {TO_ADDR, 0}},
	{"cuGraphAddMemAllocNode", "cuGraphAddMemFreeNode", {SCRATCH, EXTRA, 0, 0, ALLOC_PARAMS}, {SCRATCH, EXTRA, 0, 0, ADDR}, ON_GRAPH,
	 .out = offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, dptr)},
	{"cuGraphAddNode", "cuGraphAddMemFreeNode", {SCRATCH, EXTRA, 0, 0, ALLOC_NODE}, {SCRATCH, EXTRA, 0, 0, ADDR}, ON_GRAPH,
	 .out = offsetof(CUgraphNodeParams, alloc.dptr)},
	{"cuGraphAddNode_v2", "cuGraphAddMemFreeNode", {SCRATCH, EXTRA, 0, 0, 0, ALLOC_NODE}, {SCRATCH, EXTRA, 0, 0, ADDR}, ON_GRAPH,
	 .out = offsetof(CUgraphNodeParams, alloc.dptr)},
	{"cuStreamBeginCapture", "cuStreamEndCapture", {ADDR}, {ADDR, TO_EXTRA}, CAPTURE},
	{"cuStreamBeginCapture_v2", "cuStreamEndCapture", {ADDR, 0}, {ADDR, TO_EXTRA}, CAPTURE},
	{"cuStreamBeginCaptureToGraph", "cuStreamEndCapture", {ADDR, EXTRA, 0, 0, 0, 0}, {ADDR, TO_EXTRA}, CAPTURE_TO_GRAPH},
	{"cuStreamBeginCapture_ptsz", "cuStreamEndCapture_ptsz", {ADDR}, {ADDR, TO_EXTRA}, CAPTURE},
	{"cuStreamBeginCapture_v2_ptsz", "cuStreamEndCapture_ptsz", {ADDR, 0}, {ADDR, TO_EXTRA}, CAPTURE},
	{"cuStreamBeginCaptureToGraph_ptsz", "cuStreamEndCapture_ptsz", {ADDR, EXTRA, 0, 0, 0, 0}, {ADDR, TO_EXTRA}, CAPTURE_TO_GRAPH},
	{"cuGraphInstantiateWithFlags", "cuGraphExecDestroy", {TO_ADDR, EXTRA, 0}, ON_GRAPH},
	{"cuGraphInstantiate", "cuGraphExecDestroy", {TO_ADDR, EXTRA, 0, 0, 0}, ON_GRAPH},
	{"cuGraphInstantiate_v2", "cuGraphExecDestroy", {TO_ADDR, EXTRA, 0, 0, 0}, ON_GRAPH},
	{"cuGraphInstantiateWithParams", "cuGraphExecDestroy", {TO_ADDR, EXTRA, 0}, ON_GRAPH},
	{"cuGraphInstantiateWithParams_ptsz", "cuGraphExecDestroy", {TO_ADDR, EXTRA, 0}, ON_GRAPH},
	{"cuDeviceGraphMemTrim", NULL, {DEVICE}},
	{"cuModuleLoadData", "cuModuleUnload", {TO_ADDR, SCRATCH}},
	{"cuModuleLoad", "cuModuleUnload", {TO_ADDR, SCRATCH}},
	{"cuModuleLoadDataEx", "cuModuleUnload", {TO_ADDR, SCRATCH, 0, 0, 0}},
	{"cuModuleLoadFatBinary", "cuModuleUnload", {TO_ADDR, SCRATCH}},
	{"cuLibraryLoadFromFile", "cuLibraryUnload", {TO_ADDR, SCRATCH, 0, 0, 0, 0, 0, 0}},
	{"cuLibraryLoadData", "cuLibraryUnload", {TO_ADDR, SCRATCH, 0, 0, 0, 0, 0, 0}},
	{"cuLaunchKernel", NULL, {SIZE, 1, 1, 1, 32, 1, 1, 0}},
	{"cuStreamCreate", "cuStreamDestroy", {TO_ADDR, 0}},
	{"cuStreamCreateWithPriority", "cuStreamDestroy_v2", {TO_ADDR, 1, 5}},
	{"cuGreenCtxCreate", "cuGreenCtxDestroy", {TO_ADDR, 0, DEVICE, 0}},
	{"cuGreenCtxStreamCreate", "cuStreamDestroy_v2", {TO_ADDR, 1, 1, 0}},

	{"cuCtxCreate", "cuCtxDestroy", {TO_ADDR, 0, DEVICE}},
	{"cuCtxCreate_v2", "cuCtxDestroy_v2", {TO_ADDR, 0, DEVICE}},
	{"cuCtxCreate_v3", "cuCtxDestroy_v2", {TO_ADDR, 0, 0, 0, DEVICE}},
	{"cuCtxCreate_v4", "cuCtxDestroy_v2", {TO_ADDR, 0, 0, DEVICE}},
	{"cuGLCtxCreate", "cuCtxDestroy", {TO_ADDR, 0, DEVICE}},
	{"cuGLCtxCreate_v2", "cuCtxDestroy_v2", {TO_ADDR, 0, DEVICE}},
	{"cuVDPAUCtxCreate", "cuCtxDestroy", {TO_ADDR, 0, DEVICE, 0, 0}},
	{"cuVDPAUCtxCreate_v2", "cuCtxDestroy_v2", {TO_ADDR, 0, DEVICE, 0, 0}},
	{"cuCtxCreate_v2(detach)", "cuCtxDetach", {TO_ADDR, 0, DEVICE}},
	{"cuCtxAttach", "cuCtxDetach", {TO_ADDR, 0}},
	{"cuCtxPushCurrent", "cuCtxPopCurrent", {ADDR}, {SCRATCH}, .setup = this_context},
	{"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", {ADDR}, {SCRATCH}, .setup = this_context},
	{"cuCtxSetCurrent", NULL, {CONTEXT}},
	{"cuCtxGetDevice", NULL, {SCRATCH}},
	{"cuCtxGetDevice_v2", NULL, {SCRATCH, CONTEXT}},
	{"cuCtxSetLimit", NULL, {0, SIZE}},
	{"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", {SCRATCH, ADDR}, .setup = this_device},
	{"cuDevicePrimaryCtxReset", NULL, {DEVICE}, .teardown = retain_again},
	{"cuDevicePrimaryCtxReset_v2", NULL, {DEVICE}, .teardown = retain_again},
	{0},
};
