// Calls on memory of other processes and APIs, and on graphs.
#define _GNU_SOURCE
#include "cuda_abi.h"
#include "ops.h"
#include "token.h"

// Interprocess and external memory.

static int ipc_get(void *function, struct object *o)
{
	CUipcMemHandle handle;
	uint64_t ptr;
	SETUP(cuMemAlloc_v2, (uint64_t *, size_t), &ptr, o->size);
	int result = AS((void *, uint64_t))(&handle, ptr);
	SETUP(cuMemFree_v2, (uint64_t), ptr);
	return result;
}

static int ipc_open(void *function, struct object *o)
{
	static uint64_t peer = 0x1000;
	CUipcMemHandle handle;
	token_pack(&handle, __atomic_add_fetch(&peer, 0x1000, __ATOMIC_RELAXED), o->size);
	return AS((uint64_t *, CUipcMemHandle, unsigned int))(&o->addr, handle, 1);
}

// The same block each time.
static int ipc_open_same(void *function, struct object *o)
{
	CUipcMemHandle handle;
	token_pack(&handle, 0x800, o->size);
	return AS((uint64_t *, CUipcMemHandle, unsigned int))(&o->addr, handle, 1);
}

static int import_external(void *function, struct object *o)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = 1, .handle.fd = token_fd(0x1000, o->size), .size = o->size};
	return AS((uint64_t *, void *))(&o->addr, &desc);
}

static uint64_t external(size_t size)
{
	struct object o = {.size = size};
	must("cuImportExternalMemory", import_external(driver("cuImportExternalMemory"), &o));
	return o.addr;
}

static void end_external(struct object *o)
{
	SETUP(cuDestroyExternalMemory, (uint64_t), o->extra);
}

static int map_external(void *function, struct object *o)
{
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC desc = {.size = o->size};
	o->extra = external(o->size);
	return AS((uint64_t *, uint64_t, void *))(&o->addr, o->extra, &desc);
}

static int mipmap_external(void *function, struct object *o)
{
	CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC desc = {.arrayDesc = {o->size, 1, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, .numLevels = 1};
	o->extra = external(o->size);
	return AS((uint64_t *, uint64_t, void *))(&o->addr, o->extra, &desc);
}

// Graphs. `extra` is the graph of a node.

static uint64_t graph(void)
{
	uint64_t handle;
	SETUP(cuGraphCreate, (uint64_t *, unsigned int), &handle, 0);
	return handle;
}

static void end_graph(struct object *o)
{
	SETUP(cuGraphDestroy, (uint64_t), o->extra);
}

static int graph_alloc(void *function, struct object *o)
{
	uint64_t node;
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, current_device}},
		.bytesize = o->size,
	};
	o->extra = graph();
	int result = AS((uint64_t *, uint64_t, void *, size_t, void *))(&node, o->extra, NULL, 0, &params);
	o->addr = params.dptr;
	return result;
}

static CUgraphNodeParams alloc_node(size_t size)
{
	return (CUgraphNodeParams){
		.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
		.alloc = {
			.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, current_device}},
			.bytesize = size,
		},
	};
}

static int graph_node(void *function, struct object *o)
{
	uint64_t node;
	CUgraphNodeParams params = alloc_node(o->size);
	o->extra = graph();
	int result = AS((uint64_t *, uint64_t, void *, size_t, void *))(&node, o->extra, NULL, 0, &params);
	o->addr = params.alloc.dptr;
	return result;
}

static int graph_node_v2(void *function, struct object *o)
{
	uint64_t node;
	CUgraphNodeParams params = alloc_node(o->size);
	o->extra = graph();
	int result = AS((uint64_t *, uint64_t, void *, void *, size_t, void *))(&node, o->extra, NULL, NULL, 0, &params);
	o->addr = params.alloc.dptr;
	return result;
}

// Captures. `addr` is the stream, `extra` the graph.

static uint64_t stream(void)
{
	static uint64_t last = 0x50000;
	return __atomic_add_fetch(&last, 0x10, __ATOMIC_RELAXED);
}

static int capture(void *function, struct object *o)
{
	o->addr = stream();
	return AS((uint64_t, int))(o->addr, 0);
}

static int capture_to_graph(void *function, struct object *o)
{
	o->addr = stream();
	return AS((uint64_t, uint64_t, void *, void *, size_t, int))(o->addr, graph(), NULL, NULL, 0, 0);
}

static int end_capture(void *function, struct object *o)
{
	return AS((uint64_t, uint64_t *))(o->addr, &o->extra);
}

static int graph_instantiate(void *function, struct object *o)
{
	o->extra = graph();
	return AS((uint64_t *, uint64_t, uint64_t))(&o->addr, o->extra, 0);
}

static int create_flags(void *function, struct object *o)
{
	return AS((uint64_t *, unsigned int))(&o->addr, 0);
}

static int load_module(void *function, struct object *o)
{
	return AS((uint64_t *, const void *))(&o->addr, "image");
}

static int load_library(void *function, struct object *o)
{
	return AS((uint64_t *, const void *, void *, void *, int, void *, void *, int))(&o->addr, "image", NULL, NULL, 0, NULL, NULL, 0);
}

static int end_node(void *function, struct object *o)
{
	uint64_t node;
	return AS((uint64_t *, uint64_t, void *, size_t, uint64_t))(&node, o->extra, NULL, 0, o->addr);
}

const struct op share_ops[] = {
	{"cuIpcGetMemHandle", NULL, ipc_get},
	{"cuIpcOpenMemHandle", "cuIpcCloseMemHandle", ipc_open},
	{"cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", ipc_open},
	{"cuIpcOpenMemHandle_v2(same)", "cuIpcCloseMemHandle", ipc_open_same},
	{"cuImportExternalMemory", "cuDestroyExternalMemory", import_external},
	{"cuExternalMemoryGetMappedBuffer", "cuMemFree_v2", map_external, .teardown = end_external},
	{"cuExternalMemoryGetMappedMipmappedArray", "cuMipmappedArrayDestroy", mipmap_external, .teardown = end_external},
	{"cuGraphAddMemAllocNode", "cuGraphAddMemFreeNode", graph_alloc, .end = end_node, .teardown = end_graph},
	{"cuGraphAddNode", "cuGraphAddMemFreeNode", graph_node, .end = end_node, .teardown = end_graph},
	{"cuGraphAddNode_v2", "cuGraphAddMemFreeNode", graph_node_v2, .end = end_node, .teardown = end_graph},
	{"cuStreamBeginCapture", "cuStreamEndCapture", capture, .end = end_capture, .teardown = end_graph},
	{"cuStreamBeginCapture_v2", "cuStreamEndCapture", capture, .end = end_capture, .teardown = end_graph},
	{"cuStreamBeginCaptureToGraph", "cuStreamEndCapture", capture_to_graph, .end = end_capture, .teardown = end_graph},
	{"cuStreamBeginCapture_ptsz", "cuStreamEndCapture_ptsz", capture, .end = end_capture, .teardown = end_graph},
	{"cuStreamBeginCapture_v2_ptsz", "cuStreamEndCapture_ptsz", capture, .end = end_capture, .teardown = end_graph},
	{"cuStreamBeginCaptureToGraph_ptsz", "cuStreamEndCapture_ptsz", capture_to_graph, .end = end_capture, .teardown = end_graph},
	{"cuGraphInstantiateWithFlags", "cuGraphExecDestroy", graph_instantiate, .teardown = end_graph},
	{"cuGraphInstantiate", "cuGraphExecDestroy", graph_instantiate, .teardown = end_graph},
	{"cuGraphInstantiate_v2", "cuGraphExecDestroy", graph_instantiate, .teardown = end_graph},
	{"cuGraphInstantiateWithParams", "cuGraphExecDestroy", graph_instantiate, .teardown = end_graph},
	{"cuGraphInstantiateWithParams_ptsz", "cuGraphExecDestroy", graph_instantiate, .teardown = end_graph},
	{"cuGraphCreate", "cuGraphDestroy", create_flags},
	{"cuModuleLoadData", "cuModuleUnload", load_module},
	{"cuModuleLoad", "cuModuleUnload", load_module},
	{"cuModuleLoadDataEx", "cuModuleUnload", load_module},
	{"cuModuleLoadFatBinary", "cuModuleUnload", load_module},
	{"cuLibraryLoadFromFile", "cuLibraryUnload", load_library},
	{"cuLibraryLoadData", "cuLibraryUnload", load_library},
	{0},
};
