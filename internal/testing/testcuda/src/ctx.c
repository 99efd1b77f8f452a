// Contexts: a stack of them per thread, one primary context per device.
#include <pthread.h>
#include <stdlib.h>

#include "driver.h"

#define MAX_DEPTH 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st primaries[DEVICES];
static struct CUctx_st *created, *destroyed; // linked by next
static __thread struct CUctx_st *stack[MAX_DEPTH];
static __thread int depth;

void ctx_reset(void)
{
	pthread_mutex_init(&lock, NULL);
	created = destroyed = NULL;
	depth = 0;
	for (int d = 0; d < DEVICES; d++)
		primaries[d] = (struct CUctx_st){.device = d, .primary = true};
}

CUresult ctx_current(struct CUctx_st **ctx)
{
	if (depth == 0 || !stack[depth - 1])
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!atomic_load_explicit(&stack[depth - 1]->alive, memory_order_relaxed))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*ctx = stack[depth - 1];
	return CUDA_SUCCESS;
}

static bool valid(CUcontext ctx) // under lock
{
	if (ctx >= primaries && ctx < primaries + DEVICES)
		return ctx->alive;
	struct CUctx_st *c = created;
	while (c && c != ctx)
		c = c->next;
	return c != NULL;
}

static CUresult push(CUcontext ctx)
{
	pthread_mutex_lock(&lock);
	bool ok = ctx && valid(ctx) && depth < MAX_DEPTH;
	pthread_mutex_unlock(&lock);
	if (!ok)
		return CUDA_ERROR_INVALID_CONTEXT;
	stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *ctx)
{
	if (depth == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (ctx)
		*ctx = stack[depth];
	return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext ctx)
{
	if (!ctx) {
		depth -= depth > 0;
		return CUDA_SUCCESS;
	}
	int before = depth;
	depth -= depth > 0;
	CUresult result = push(ctx);
	if (result != CUDA_SUCCESS)
		depth = before;
	return result;
}

static CUresult create(CUcontext *out, CUdevice device)
{
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (depth == MAX_DEPTH)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	struct CUctx_st *ctx = destroyed;
	if (ctx)
		destroyed = ctx->next;
	else
		ctx = malloc(sizeof *ctx);
	if (ctx) {
		*ctx = (struct CUctx_st){.device = device, .alive = true};
		struct CUctx_st **list = footprint_begin(ctx) ? &created : &destroyed;
		ctx->next = *list;
		*list = ctx;
		ctx = list == &created ? ctx : NULL;
	}
	pthread_mutex_unlock(&lock);
	if (!ctx)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

static void end(struct CUctx_st *ctx)
{
	blocks_end_context(ctx);
	footprint_end(ctx);
}

static CUresult destroy(CUcontext ctx)
{
	pthread_mutex_lock(&lock);
	struct CUctx_st **link = &created;
	while (*link && *link != ctx)
		link = &(*link)->next;
	bool ok = ctx && *link;
	if (ok) {
		*link = ctx->next;
		ctx->alive = false;
	}
	pthread_mutex_unlock(&lock);
	if (!ok)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (depth > 0 && stack[depth - 1] == ctx)
		depth--;
	end(ctx);
	pthread_mutex_lock(&lock);
	ctx->next = destroyed;
	destroyed = ctx;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

static CUresult attach(CUcontext *out)
{
	struct CUctx_st *ctx;
	CUresult result = out ? ctx_current(&ctx) : CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&lock);
	ctx->refs++;
	pthread_mutex_unlock(&lock);
	*out = ctx;
	return CUDA_SUCCESS;
}

static CUresult detach(CUcontext ctx)
{
	pthread_mutex_lock(&lock);
	bool more = ctx && valid(ctx) && ctx->refs > 0;
	if (more)
		ctx->refs--;
	pthread_mutex_unlock(&lock);
	return more ? CUDA_SUCCESS : destroy(ctx);
}

EXPORT CUresult cuCtxAttach(CUcontext *ctx, unsigned int flags)
{
	CALL(cuCtxAttach, 0, attach(ctx));
}

EXPORT CUresult cuCtxDetach(CUcontext ctx)
{
	CALL(cuCtxDetach, 0, detach(ctx));
}

EXPORT CUresult cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice device)
{
	CALL(cuCtxCreate, 0, create(ctx, device));
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice device)
{
	CALL(cuCtxCreate_v2, 0, create(ctx, device));
}

EXPORT CUresult cuGLCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice device)
{
	CALL(cuGLCtxCreate, 0, create(ctx, device));
}

EXPORT CUresult cuGLCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice device)
{
	CALL(cuGLCtxCreate_v2, 0, create(ctx, device));
}

EXPORT CUresult cuVDPAUCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice device, uint32_t vdpau, void *proc)
{
	CALL(cuVDPAUCtxCreate, 0, create(ctx, device));
}

EXPORT CUresult cuVDPAUCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice device, uint32_t vdpau, void *proc)
{
	CALL(cuVDPAUCtxCreate_v2, 0, create(ctx, device));
}

#ifndef TESTCUDA_OLD
EXPORT CUresult cuCtxCreate_v3(CUcontext *ctx, void *affinity, int n, unsigned int flags, CUdevice device)
{
	CALL(cuCtxCreate_v3, 0, create(ctx, device));
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned int flags, CUdevice device)
{
	CALL(cuCtxCreate_v4, 0, create(ctx, device));
}
#endif

EXPORT CUresult cuCtxDestroy(CUcontext ctx)
{
	CALL(cuCtxDestroy, 0, destroy(ctx));
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	CALL(cuCtxDestroy_v2, 0, destroy(ctx));
}

EXPORT CUresult cuCtxSetCurrent(CUcontext ctx)
{
	CALL(cuCtxSetCurrent, 0, set_current(ctx));
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	CALL(cuCtxGetCurrent, 0, (*ctx = depth ? stack[depth - 1] : NULL, CUDA_SUCCESS));
}

EXPORT CUresult cuCtxPushCurrent(CUcontext ctx)
{
	CALL(cuCtxPushCurrent, 0, push(ctx));
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	CALL(cuCtxPushCurrent_v2, 0, push(ctx));
}

EXPORT CUresult cuCtxPopCurrent(CUcontext *ctx)
{
	CALL(cuCtxPopCurrent, 0, pop(ctx));
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
	CALL(cuCtxPopCurrent_v2, 0, pop(ctx));
}

static CUresult get_device(CUdevice *device, CUcontext ctx)
{
	CUresult result = CUDA_SUCCESS;
	if (!ctx)
		result = ctx_current(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&lock);
	if (valid(ctx))
		*device = ctx->device;
	else
		result = CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
	CALL(cuCtxGetDevice, 0, get_device(device, NULL));
}

#ifndef TESTCUDA_OLD
EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
	CALL(cuCtxGetDevice_v2, 0, get_device(device, ctx));
}
#endif

static CUresult synchronize(void)
{
	struct CUctx_st *ctx;
	CUresult result = ctx_current(&ctx);
#ifndef TESTCUDA_OLD
	if (result == CUDA_SUCCESS)
		pool_synchronize(ctx->device);
#endif
	return result;
}

static CUresult set_limit(int limit, uint64_t value)
{
	struct CUctx_st *ctx;
	CUresult result = ctx_current(&ctx);
	if (result == CUDA_SUCCESS && limit == CU_LIMIT_STACK_SIZE)
		footprint_local(ctx, value);
	return result;
}

EXPORT CUresult cuCtxSynchronize(void)
{
	CALL(cuCtxSynchronize, 0, synchronize());
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
	CALL(cuCtxSetLimit, 0, set_limit(limit, value));
}

// Primary contexts.

static CUresult retain(CUcontext *ctx, CUdevice device)
{
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	struct CUctx_st *p = &primaries[device];
	p->device = device;
	p->primary = true;
	p->alive = p->alive || footprint_begin(p);
	bool ok = p->alive;
	p->refs += ok;
	pthread_mutex_unlock(&lock);
	*ctx = p;
	return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult release(CUdevice device)
{
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	struct CUctx_st *p = &primaries[device];
	pthread_mutex_lock(&lock);
	bool ok = p->refs > 0, last = ok && --p->refs == 0;
	if (last)
		p->alive = false;
	pthread_mutex_unlock(&lock);
	if (last)
		end(p);
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

// A reset ends the context's memory and releases no reference.
static CUresult reset(CUdevice device)
{
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	struct CUctx_st *p = &primaries[device];
	pthread_mutex_lock(&lock);
	p->alive = false;
	pthread_mutex_unlock(&lock);
	end(p);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device)
{
	CALL(cuDevicePrimaryCtxRetain, 0, retain(ctx, device));
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	CALL(cuDevicePrimaryCtxRelease, 0, release(device));
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	CALL(cuDevicePrimaryCtxRelease_v2, 0, release(device));
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	CALL(cuDevicePrimaryCtxReset_v2, 0, reset(device));
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) ALIAS(cuDevicePrimaryCtxReset_v2);
