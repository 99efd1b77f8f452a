// Modules, libraries and launches: handles, and the memory that code takes in
// the current context.
#include "driver.h"

static CUresult load(void *out)
{
	struct block init = {.space = SPACE_OBJECT};
	if (ctx_current(&init.ctx) == CUDA_SUCCESS) {
		init.device = init.ctx->device;
		init.backing = backing_of(init.device, kernel_memory(init.device, GRANULE));
		if (!init.backing)
			return CUDA_ERROR_OUT_OF_MEMORY;
		footprint_module(init.ctx);
	}
	return block_new(AREA_HANDLE, 1, init, out);
}

static CUresult unload(const void *module)
{
	return block_end(SPACE_OBJECT, (uint64_t)module, 1u << KIND_NONE, NULL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// A function is the bytes of local memory that each of its threads needs.
static CUresult launch(uint64_t function)
{
	struct CUctx_st *ctx;
	CUresult result = ctx_current(&ctx);
	if (result == CUDA_SUCCESS)
		footprint_launch(ctx, function);
	return result;
}

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
			       unsigned int bz, unsigned int shared, CUstream stream, void **params, void **extra)
{
	CALL(cuLaunchKernel, 0, launch((uint64_t)f));
}

// What these take after their first arguments changes nothing here.

#define LOAD(name)                        \
	EXPORT CUresult name(void *out)   \
	{                                 \
		CALL(name, 0, load(out)); \
	}
#define UNLOAD(name)                              \
	EXPORT CUresult name(const void *module)  \
	{                                         \
		CALL(name, 0, unload(module));    \
	}

LOAD(cuModuleLoad)
LOAD(cuModuleLoadData)
LOAD(cuModuleLoadDataEx)
LOAD(cuModuleLoadFatBinary)
UNLOAD(cuModuleUnload)
#ifndef TESTCUDA_OLD
LOAD(cuLibraryLoadData)
LOAD(cuLibraryLoadFromFile)
UNLOAD(cuLibraryUnload)
#endif
