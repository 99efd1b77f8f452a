// Streams and green contexts: handles, and what their channels take.
#include "driver.h"

static CUresult create(CUstream *out, bool priority)
{
	struct CUctx_st *ctx;
	CUresult result = out ? ctx_current(&ctx) : CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return result;
	footprint_stream(ctx, priority, 1);
	return block_new(AREA_HANDLE, 1, (struct block){.space = SPACE_OBJECT, .ctx = ctx, .tag = priority}, (uint64_t *)out);
}

static CUresult destroy(CUstream stream)
{
	struct block was;
	if (!block_end(SPACE_OBJECT, (uint64_t)stream, 1u << KIND_NONE, &was))
		return CUDA_ERROR_INVALID_HANDLE;
	if (was.ctx)
		footprint_stream(was.ctx, was.tag, -1);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	CALL(cuStreamCreate, 0, create(stream, false));
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	CALL(cuStreamCreateWithPriority, 0, create(stream, priority != 0));
}

EXPORT CUresult cuStreamDestroy(CUstream stream)
{
	CALL(cuStreamDestroy, 0, destroy(stream));
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
	CALL(cuStreamDestroy_v2, 0, destroy(stream));
}

#ifndef TESTCUDA_OLD
// A green context's streams have a group of channels of their own.
static CUresult create_green(CUgreenCtx *out, CUdevice device)
{
	struct CUctx_st *ctx;
	CUresult result = out ? ctx_current(&ctx) : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS && !device_valid(device))
		result = CUDA_ERROR_INVALID_DEVICE;
	if (result != CUDA_SUCCESS)
		return result;
	struct block init = {.space = SPACE_OBJECT, .ctx = ctx, .device = device};
	init.backing = backing_of(device, kernel_memory(device, GRANULE));
	return block_new(AREA_HANDLE, 1, init, (uint64_t *)out);
}

static CUresult destroy_green(CUgreenCtx green)
{
	return block_end(SPACE_OBJECT, (uint64_t)green, 1u << KIND_NONE, NULL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice device, unsigned int flags)
{
	CALL(cuGreenCtxCreate, 0, create_green(green, device));
}

static CUresult create_in(CUstream *out, CUgreenCtx green)
{
	return green ? create(out, false) : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags, int priority)
{
	CALL(cuGreenCtxStreamCreate, 0, create_in(stream, green));
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	CALL(cuGreenCtxDestroy, 0, destroy_green(green));
}
#endif
