// Memory pools and stream-ordered memory. A pool takes objects of 32 MiB, and
// gives back what it does not use when it is trimmed, or its context waits.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "driver.h"
#include "token.h"

#define OBJECT (32ull << 20)

struct CUmemPoolHandle_st {
	int device;
	bool is_default, destroyed;
	bool elsewhere; // on no device
	uint64_t used;
	uint32_t *objects; // of the kernel driver
	size_t num_objects;
	size_t live; // allocations
	struct CUmemPoolHandle_st *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUmemPoolHandle_st defaults[DEVICES];
static struct CUmemPoolHandle_st *pools;
static CUmemoryPool current[DEVICES]; // NULL for the default pool

void pool_reset(void)
{
	pthread_mutex_init(&lock, NULL);
	pools = NULL;
	for (int d = 0; d < DEVICES; d++)
		current[d] = NULL, defaults[d] = (struct CUmemPoolHandle_st){.device = d, .is_default = true};
}

static bool valid(CUmemoryPool pool) // under lock
{
	if (pool >= defaults && pool < defaults + DEVICES)
		return true;
	CUmemoryPool p = pools;
	while (p && p != pool)
		p = p->next;
	return p && !p->destroyed;
}

// fit is called under lock. It returns whether the pool holds what it uses, or
// `keep` bytes where that is more.
static bool fit(CUmemoryPool pool, uint64_t keep)
{
	if (pool->elsewhere)
		return true;
	size_t n = ((keep > pool->used ? keep : pool->used) + OBJECT - 1) / OBJECT;
	while (pool->num_objects > n)
		kernel_free(pool->device, pool->objects[--pool->num_objects]);
	while (pool->num_objects < n) {
		uint32_t *grown = realloc(pool->objects, n * sizeof *grown);
		uint32_t object = grown ? kernel_memory(pool->device, OBJECT) : 0;
		if (grown)
			pool->objects = grown;
		if (!object)
			return false;
		pool->objects[pool->num_objects++] = object;
	}
	return true;
}

static void forget(CUmemoryPool pool) // under lock
{
	fit(pool, 0);
	free(pool->objects);
	CUmemoryPool *link = &pools;
	while (*link != pool)
		link = &(*link)->next;
	*link = pool->next;
	free(pool);
}

static CUmemoryPool default_pool(int device)
{
	defaults[device].device = device;
	defaults[device].is_default = true;
	return &defaults[device];
}

// Stream-ordered memory.

void pool_ended(const struct block *was)
{
	CUmemoryPool pool = was->aux;
	pthread_mutex_lock(&lock);
	pool->used -= was->size;
	if (--pool->live == 0 && pool->destroyed)
		forget(pool);
	pthread_mutex_unlock(&lock);
}

static CUresult alloc(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)
{
	struct CUctx_st *ctx;
	CUresult result = ctx_current(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (!out || size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!pool)
		pool = current[ctx->device] ? current[ctx->device] : default_pool(ctx->device);
	CUgraph graph = capture_graph(stream);
	if (graph) {
		CUgraphNode node;
		return graph_alloc(graph, size, ctx->device, (uint64_t *)out, &node);
	}
	pthread_mutex_lock(&lock);
	bool ok = valid(pool);
	if (ok) {
		pool->live++;
		pool->used += size;
	}
	pthread_mutex_unlock(&lock);
	if (!ok)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t addr;
	struct block init = {.space = SPACE_POINTER, .kind = pool->elsewhere ? KIND_ASYNC_HOST : KIND_ASYNC, .size = size, .ctx = ctx, .device = pool->device, .aux = pool};
	result = block_new(AREA_DEVICE, size, init, &addr);
	if (result != CUDA_SUCCESS) {
		pool_ended(&init);
		return result;
	}
	pthread_mutex_lock(&lock);
	ok = fit(pool, pool->num_objects * OBJECT);
	pthread_mutex_unlock(&lock);
	if (ok)
		*out = addr;
	else
		block_end(SPACE_POINTER, addr, 1u << init.kind, NULL);
	return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult free_async(CUdeviceptr ptr, uint64_t *bytes, CUstream stream)
{
	struct block was;
	CUgraph graph = capture_graph(stream);
	if (graph) {
		CUgraphNode node;
		return graph_free(graph, ptr, bytes, &node);
	}
	if (!block_end(SPACE_POINTER, ptr, 1u << KIND_ASYNC | 1u << KIND_ASYNC_HOST | 1u << KIND_IMPORTED | 1u << KIND_GRAPH, &was))
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = was.size;
	return CUDA_SUCCESS;
}

ON_STREAM(cuMemAllocAsync, (CUdeviceptr *ptr, size_t size, CUstream stream), size, alloc(ptr, size, NULL, stream))
ON_STREAM(cuMemAllocFromPoolAsync, (CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream),
	  size, pool ? alloc(ptr, size, pool, stream) : CUDA_ERROR_INVALID_VALUE)

ON_STREAM(cuMemFreeAsync, (CUdeviceptr ptr, CUstream stream), bytes, free_async(ptr, &bytes, stream))

// Pools.

static CUresult create(CUmemoryPool *out, const CUmemPoolProps *props)
{
	if (!out || !props || props->location.type < CU_MEM_LOCATION_TYPE_DEVICE || props->location.type > CU_MEM_LOCATION_TYPE_HOST_NUMA)
		return CUDA_ERROR_INVALID_VALUE;
	bool elsewhere = props->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
	if (!elsewhere && !device_valid(props->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	CUmemoryPool pool = calloc(1, sizeof *pool);
	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pool->device = elsewhere ? 0 : props->location.id;
	pool->elsewhere = elsewhere;
	pthread_mutex_lock(&lock);
	pool->next = pools;
	pools = pool;
	pthread_mutex_unlock(&lock);
	*out = pool;
	return CUDA_SUCCESS;
}

static CUresult destroy(CUmemoryPool pool)
{
	pthread_mutex_lock(&lock);
	bool ok = pool && valid(pool) && !pool->is_default;
	if (ok) {
		pool->destroyed = true;
		if (current[pool->device] == pool)
			current[pool->device] = NULL;
		if (pool->live == 0)
			forget(pool);
	}
	pthread_mutex_unlock(&lock);
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult trim(CUmemoryPool pool, uint64_t keep, uint64_t *bytes)
{
	pthread_mutex_lock(&lock);
	bool ok = valid(pool);
	size_t before = ok ? pool->num_objects : 0;
	if (ok && keep < before * OBJECT) {
		fit(pool, keep);
		*bytes = (before - pool->num_objects) * OBJECT;
	}
	pthread_mutex_unlock(&lock);
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void pool_synchronize(int device)
{
	pthread_mutex_lock(&lock);
	fit(default_pool(device), 0);
	for (CUmemoryPool p = pools; p; p = p->next)
		if (p->device == device)
			fit(p, 0);
	pthread_mutex_unlock(&lock);
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	CALL(cuMemPoolCreate, 0, create(pool, props));
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	CALL(cuMemPoolDestroy, 0, destroy(pool));
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	uint64_t bytes = 0;
	CALL(cuMemPoolTrimTo, bytes, trim(pool, keep, &bytes));
}

static CUresult get_pool(CUmemoryPool *pool, CUdevice device, bool now)
{
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*pool = now && current[device] ? current[device] : default_pool(device);
	return CUDA_SUCCESS;
}

// The workload's own way to a pool, which has no probe.
EXPORT CUresult testcuda_default_pool(CUmemoryPool *pool, CUdevice device)
{
	return get_pool(pool, device, false);
}

static CUresult set_pool(CUdevice device, CUmemoryPool pool)
{
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	bool ok = pool && valid(pool) && !pool->elsewhere && pool->device == device;
	if (ok)
		current[device] = pool;
	pthread_mutex_unlock(&lock);
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// on returns the device of a location, -1 for another place than a device.
static CUdevice on(const CUmemLocation *at, unsigned int type)
{
	return at->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED ? at->id : -1;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	CALL(cuDeviceGetDefaultMemPool, 0, get_pool(pool, device, false));
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	CALL(cuDeviceGetMemPool, 0, get_pool(pool, device, true));
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	CALL(cuDeviceSetMemPool, 0, set_pool(device, pool));
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *at, unsigned int type)
{
	CALL(cuMemGetDefaultMemPool, 0, get_pool(pool, on(at, type), false));
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *at, unsigned int type)
{
	CALL(cuMemGetMemPool, 0, get_pool(pool, on(at, type), true));
}

EXPORT CUresult cuMemSetMemPool(CUmemLocation *at, unsigned int type, CUmemoryPool pool)
{
	CALL(cuMemSetMemPool, 0, set_pool(on(at, type), pool));
}

// Sharing.

static CUresult import_pointer(CUdeviceptr *out, CUmemoryPool pool, const CUmemPoolPtrExportData *data, uint64_t *bytes)
{
	struct CUctx_st *ctx;
	struct token t;
	uint64_t addr;
	CUresult result = ctx_current(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&lock);
	bool ok = pool && valid(pool);
	pthread_mutex_unlock(&lock);
	if (!ok || !token_unpack(data, &t))
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = t.size;
	result = block_new(AREA_DEVICE, t.size, (struct block){.space = SPACE_POINTER, .kind = KIND_IMPORTED, .size = t.size, .ctx = ctx, .device = ctx->device}, &addr);
	if (result == CUDA_SUCCESS)
		*out = addr;
	return result;
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	uint64_t bytes = 0;
	CALL(cuMemPoolImportPointer, bytes, import_pointer(ptr, pool, data, &bytes));
}
