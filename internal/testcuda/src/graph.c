// Graphs, modules and libraries: handles, and the memory that graph nodes
// allocate. A graph's end does not end memory that no free node frees.
#include <stdlib.h>

#include "driver.h"

static CUresult new_object(void *out)
{
	return block_new(AREA_HANDLE, 1, (struct block){.space = SPACE_OBJECT}, out);
}

static CUresult end_object(const void *object)
{
	return block_end(SPACE_OBJECT, (uint64_t)object, 1u << KIND_NONE, NULL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

struct node {
	uint64_t handle;
	struct node *next;
};

static CUresult destroy(CUgraph graph)
{
	struct block was;
	if (!block_end(SPACE_OBJECT, (uint64_t)graph, 1u << KIND_NONE, &was))
		return CUDA_ERROR_INVALID_HANDLE;
	for (struct node *n = was.aux, *next; n; n = next) {
		next = n->next;
		block_end(SPACE_NODE, n->handle, 1u << KIND_NONE, NULL);
		free(n);
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	(void)flags;
	CALL(cuGraphCreate, 0, new_object(graph));
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
	CALL(cuGraphDestroy, 0, destroy(graph));
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CALL(cuGraphExecDestroy, 0, end_object(exec));
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	(void)image;
	CALL(cuModuleLoadData, 0, new_object(module));
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
	CALL(cuModuleUnload, 0, end_object(module));
}

#ifndef TESTCUDA_OLD
static CUresult link_node(struct block *graph, void *node)
{
	((struct node *)node)->next = graph->aux;
	graph->aux = node;
	return CUDA_SUCCESS;
}

static CUresult new_node(CUgraphNode *out, CUgraph graph)
{
	struct node *node = malloc(sizeof *node);
	if (!node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = block_new(AREA_HANDLE, 1, (struct block){.space = SPACE_NODE}, &node->handle);
	uint64_t handle = node->handle;
	if (result == CUDA_SUCCESS && !block_update(SPACE_OBJECT, (uint64_t)graph, link_node, node, &result)) {
		block_end(SPACE_NODE, handle, 1u << KIND_NONE, NULL);
		result = CUDA_ERROR_INVALID_HANDLE;
	}
	if (result == CUDA_SUCCESS)
		*out = (CUgraphNode)handle;
	else
		free(node);
	return result;
}

static CUresult add_alloc(CUgraphNode *node, CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	struct CUctx_st *ctx = NULL;
	uint64_t addr;
	int device = params->poolProps.location.id;
	if (params->bytesize == 0 || params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	ctx_current(&ctx);
	CUresult result = new_node(node, graph);
	if (result != CUDA_SUCCESS)
		return result;
	struct block init = {.space = SPACE_POINTER, .kind = KIND_GRAPH, .size = params->bytesize, .ctx = ctx, .device = device};
	result = block_new(AREA_DEVICE, params->bytesize, init, &addr);
	if (result == CUDA_SUCCESS)
		params->dptr = addr;
	return result;
}

static CUresult add_free(CUgraphNode *node, CUgraph graph, CUdeviceptr ptr, uint64_t *bytes)
{
	struct block b;
	if (!block_find(SPACE_POINTER, ptr, &b) || b.kind != KIND_GRAPH)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = new_node(node, graph);
	if (result != CUDA_SUCCESS)
		return result;
	if (!block_end(SPACE_POINTER, ptr, 1u << KIND_GRAPH, &b))
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = b.size;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	(void)deps, (void)n;
	CALL(cuGraphAddMemAllocNode, params->bytesize, add_alloc(node, graph, params));
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n, CUdeviceptr ptr)
{
	uint64_t bytes = 0;
	(void)deps, (void)n;
	CALL(cuGraphAddMemFreeNode, bytes, add_free(node, graph, ptr, &bytes));
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	(void)flags;
	CALL(cuGraphInstantiateWithFlags, 0, block_find(SPACE_OBJECT, (uint64_t)graph, NULL) ? new_object(exec) : CUDA_ERROR_INVALID_HANDLE);
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	CALL(cuDeviceGraphMemTrim, 0, device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, void *jit, void **jit_values, unsigned int num_jit, void *options, void **option_values, unsigned int num_options)
{
	(void)code, (void)jit, (void)jit_values, (void)num_jit, (void)options, (void)option_values, (void)num_options;
	CALL(cuLibraryLoadData, 0, new_object(library));
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
	CALL(cuLibraryUnload, 0, end_object(library));
}
#endif

// The other ways to load code and to instantiate a graph.

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *file)
{
	(void)file;
	CALL(cuModuleLoad, 0, new_object(module));
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n, int *options, void **values)
{
	(void)image, (void)n, (void)options, (void)values;
	CALL(cuModuleLoadDataEx, 0, new_object(module));
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *binary)
{
	(void)binary;
	CALL(cuModuleLoadFatBinary, 0, new_object(module));
}

#define INSTANTIATE(name, ...)                                                                    \
	EXPORT CUresult name(CUgraphExec *exec, CUgraph graph, __VA_ARGS__)                       \
	{                                                                                         \
		CALL(name, 0, block_find(SPACE_OBJECT, (uint64_t)graph, NULL) ? new_object(exec) : CUDA_ERROR_INVALID_HANDLE); \
	}

INSTANTIATE(cuGraphInstantiate, __attribute__((unused)) void *node, __attribute__((unused)) char *log, __attribute__((unused)) size_t size)
INSTANTIATE(cuGraphInstantiate_v2, __attribute__((unused)) void *node, __attribute__((unused)) char *log, __attribute__((unused)) size_t size)

#ifndef TESTCUDA_OLD
INSTANTIATE(cuGraphInstantiateWithParams, __attribute__((unused)) void *params)
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, __attribute__((unused)) void *params)

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *file, void *jit, void **jit_values, unsigned int num_jit, void *options, void **option_values, unsigned int num_options)
{
	(void)file, (void)jit, (void)jit_values, (void)num_jit, (void)options, (void)option_values, (void)num_options;
	CALL(cuLibraryLoadFromFile, 0, new_object(library));
}
#endif
