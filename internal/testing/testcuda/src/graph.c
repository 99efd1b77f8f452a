// Graphs: handles, and the memory that their nodes allocate. The end of a graph that may have run ends none of it: what no free
// node frees is freed as any other memory.
#include <stdlib.h>

#include "driver.h"

struct node {
	uint64_t handle;
	uint64_t addr; // that it allocates, or 0
	uint64_t size;
	struct node *next;
};

// A graph that was never instantiated cannot have run: its address ranges end
// with it. Its block's tag says whether it was.
static CUresult destroy(CUgraph graph)
{
	struct block was;
	if (!block_end(SPACE_OBJECT, (uint64_t)graph, 1u << KIND_NONE, &was))
		return CUDA_ERROR_INVALID_HANDLE;
	for (struct node *n = was.aux, *next; n; n = next) {
		next = n->next;
		block_end(SPACE_NODE, n->handle, 1u << KIND_NONE, NULL);
		if (n->addr && !was.tag)
			block_end(SPACE_POINTER, n->addr, 1u << KIND_GRAPH, NULL);
		free(n);
	}
	return CUDA_SUCCESS;
}

// mark says that the graph may have run. It adds up what its nodes allocate.
static CUresult mark(struct block *graph, void *bytes)
{
	graph->tag = 1;
	for (struct node *n = graph->aux; n; n = n->next)
		*(uint64_t *)bytes += n->size;
	return CUDA_SUCCESS;
}

// An executable graph is of the context that was current.
static CUresult instantiate(CUgraphExec *exec, CUgraph graph)
{
	CUresult result = CUDA_ERROR_INVALID_HANDLE;
	struct CUctx_st *ctx = NULL;
	uint64_t bytes = 0;
	if (!block_update(SPACE_OBJECT, (uint64_t)graph, mark, &bytes, &result))
		return result;
	if (ctx_current(&ctx) == CUDA_SUCCESS)
		footprint_graph(ctx, 1, bytes);
	return block_new(AREA_HANDLE, 1, (struct block){.space = SPACE_OBJECT, .aux = ctx}, (uint64_t *)exec);
}

static CUresult end_exec(CUgraphExec exec)
{
	struct block was;
	if (!block_end(SPACE_OBJECT, (uint64_t)exec, 1u << KIND_NONE, &was))
		return CUDA_ERROR_INVALID_HANDLE;
	if (was.aux)
		footprint_graph(was.aux, -1, 0);
	return CUDA_SUCCESS;
}

CUresult graph_new(CUgraph *graph)
{
	return block_new(AREA_HANDLE, 1, (struct block){.space = SPACE_OBJECT}, (uint64_t *)graph);
}

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	CALL(cuGraphCreate, 0, graph_new(graph));
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
	CALL(cuGraphDestroy, 0, destroy(graph));
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CALL(cuGraphExecDestroy, 0, end_exec(exec));
}

#ifndef TESTCUDA_OLD
static CUresult link_node(struct block *graph, void *node)
{
	((struct node *)node)->next = graph->aux;
	graph->aux = node;
	return CUDA_SUCCESS;
}

static CUresult new_node(CUgraphNode *out, CUgraph graph, uint64_t addr, uint64_t size)
{
	struct node *node = malloc(sizeof *node);
	if (!node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->addr = addr;
	node->size = size;
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

CUresult graph_alloc(CUgraph graph, uint64_t size, int device, uint64_t *addr, CUgraphNode *node)
{
	struct block init = {.space = SPACE_POINTER, .kind = KIND_GRAPH, .size = size, .device = device};
	uint64_t range;
	CUresult result = block_new(AREA_DEVICE, size, init, &range);
	if (result != CUDA_SUCCESS)
		return result;
	result = new_node(node, graph, range, size);
	if (result == CUDA_SUCCESS)
		*addr = range;
	else
		block_end(SPACE_POINTER, range, 1u << KIND_GRAPH, NULL);
	return result;
}

CUresult graph_free(CUgraph graph, CUdeviceptr ptr, uint64_t *bytes, CUgraphNode *node)
{
	struct block b;
	if (!block_find(SPACE_POINTER, ptr, &b) || b.kind != KIND_GRAPH)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = new_node(node, graph, 0, 0);
	if (result != CUDA_SUCCESS)
		return result;
	if (!block_end(SPACE_POINTER, ptr, 1u << KIND_GRAPH, &b))
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = b.size;
	return CUDA_SUCCESS;
}

static CUresult add_alloc(CUgraphNode *node, CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	int device = params->poolProps.location.id;
	if (params->bytesize == 0 || params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	uint64_t addr;
	CUresult result = graph_alloc(graph, params->bytesize, device, &addr, node);
	if (result == CUDA_SUCCESS)
		params->dptr = addr;
	return result;
}

static CUresult add_generic(CUgraphNode *node, CUgraph graph, CUgraphNodeParams *params)
{
	return params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? add_alloc(node, graph, &params->alloc) : CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	CALL(cuGraphAddMemAllocNode, params->bytesize, add_alloc(node, graph, params));
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n, CUdeviceptr ptr)
{
	uint64_t bytes = 0;
	CALL(cuGraphAddMemFreeNode, bytes, graph_free(graph, ptr, &bytes, node));
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n, CUgraphNodeParams *params)
{
	CALL(cuGraphAddNode, params->alloc.bytesize, add_generic(node, graph, params));
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const void *edges, size_t n, CUgraphNodeParams *params)
{
	CALL(cuGraphAddNode_v2, params->alloc.bytesize, add_generic(node, graph, params));
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	CALL(cuDeviceGraphMemTrim, 0, device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

#endif

// What these take after their first arguments changes nothing here.

#define INSTANTIATE(name)                                       \
	EXPORT CUresult name(CUgraphExec *exec, CUgraph graph)  \
	{                                                       \
		CALL(name, 0, instantiate(exec, graph));        \
	}

INSTANTIATE(cuGraphInstantiate)
INSTANTIATE(cuGraphInstantiate_v2)
#ifndef TESTCUDA_OLD
INSTANTIATE(cuGraphInstantiateWithFlags)
INSTANTIATE(cuGraphInstantiateWithParams)
INSTANTIATE(cuGraphInstantiateWithParams_ptsz)
#endif
