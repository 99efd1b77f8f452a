// Linear memory: device, managed, pinned and registered.
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

#define PITCH 512
#define FREEABLE (1u << KIND_DEVICE | 1u << KIND_MANAGED | 1u << KIND_ASYNC | 1u << KIND_ASYNC_HOST | \
		  1u << KIND_IMPORTED | 1u << KIND_GRAPH | 1u << KIND_NONE)

static CUresult alloc(enum area area, enum kind kind, uint64_t size, uint64_t *addr)
{
	struct CUctx_st *ctx;
	CUresult result = ctx_current(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	return block_new(area, size, (struct block){.space = SPACE_POINTER, .kind = kind, .size = size, .ctx = ctx, .device = ctx->device}, addr);
}

static CUresult alloc64(enum kind kind, CUdeviceptr *out, size_t size)
{
	uint64_t addr;
	CUresult result = out ? alloc(AREA_DEVICE, kind, size, &addr) : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*out = addr;
	return result;
}

static CUresult alloc32(CUdeviceptr_v1 *out, size_t size)
{
	uint64_t addr;
	CUresult result = out ? alloc(AREA_LOW, KIND_DEVICE, size, &addr) : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*out = (CUdeviceptr_v1)addr;
	return result;
}

static CUresult free_pointer(CUdeviceptr ptr, uint64_t *bytes)
{
	struct block was;
	if (ptr == 0)
		return CUDA_SUCCESS;
	if (!block_end(SPACE_POINTER, ptr, FREEABLE, &was))
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = was.size;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *ptr, unsigned int size)
{
	CALL(cuMemAlloc, size, alloc32(ptr, size));
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
	CALL(cuMemAlloc_v2, size, alloc64(KIND_DEVICE, ptr, size));
}

static size_t pitch_of(size_t width)
{
	return (width + PITCH - 1) & ~(size_t)(PITCH - 1);
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *ptr, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element)
{
	*pitch = pitch_of(width);
	CALL(cuMemAllocPitch, (size_t)*pitch * height, alloc32(ptr, (size_t)*pitch * height));
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	*pitch = pitch_of(width);
	CALL(cuMemAllocPitch_v2, *pitch * height, alloc64(KIND_DEVICE, ptr, *pitch * height));
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags)
{
	CALL(cuMemAllocManaged, size, alloc64(KIND_MANAGED, ptr, size));
}

EXPORT CUresult cuMemFree(CUdeviceptr_v1 ptr)
{
	uint64_t bytes = 0;
	CALL(cuMemFree, bytes, free_pointer(ptr, &bytes));
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	uint64_t bytes = 0;
	CALL(cuMemFree_v2, bytes, free_pointer(ptr, &bytes));
}

// Host memory is real: programs write to it.

static CUresult alloc_host(void **out, size_t size)
{
	struct CUctx_st *ctx;
	CUresult result = ctx_current(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (!out || size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	void *ptr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (ptr == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = block_adopt((uint64_t)ptr, (struct block){.space = SPACE_POINTER, .kind = KIND_HOST, .size = size, .ctx = ctx, .device = ctx->device});
	if (result == CUDA_SUCCESS)
		*out = ptr;
	else
		munmap(ptr, size);
	return result;
}

void host_release(const struct block *was)
{
	munmap((void *)was->addr, was->size);
}

static CUresult free_host(void *ptr, uint64_t *bytes)
{
	struct block was;
	if (!ptr)
		return CUDA_SUCCESS;
	if (!block_end(SPACE_POINTER, (uint64_t)ptr, 1u << KIND_HOST, &was))
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = was.size;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocHost(void **ptr, unsigned int size)
{
	CALL(cuMemAllocHost, size, alloc_host(ptr, size));
}

EXPORT CUresult cuMemAllocHost_v2(void **ptr, size_t size)
{
	CALL(cuMemAllocHost_v2, size, alloc_host(ptr, size));
}

EXPORT CUresult cuMemHostAlloc(void **ptr, size_t size, unsigned int flags)
{
	CALL(cuMemHostAlloc, size, alloc_host(ptr, size));
}

EXPORT CUresult cuMemFreeHost(void *ptr)
{
	uint64_t bytes = 0;
	CALL(cuMemFreeHost, bytes, free_host(ptr, &bytes));
}

static CUresult register_host(void *ptr, size_t size)
{
	struct CUctx_st *ctx;
	CUresult result = ctx_current(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (!ptr || size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	return block_adopt((uint64_t)ptr, (struct block){.space = SPACE_REGISTERED, .kind = KIND_REGISTERED, .size = size, .ctx = ctx, .device = ctx->device});
}

EXPORT CUresult cuMemHostRegister(void *ptr, size_t size, unsigned int flags)
{
	CALL(cuMemHostRegister, size, register_host(ptr, size));
}

EXPORT CUresult cuMemHostRegister_v2(void *ptr, size_t size, unsigned int flags)
{
	CALL(cuMemHostRegister_v2, size, register_host(ptr, size));
}

static CUresult unregister_host(void *ptr, uint64_t *bytes)
{
	struct block was;
	if (!block_end(SPACE_REGISTERED, (uint64_t)ptr, 1u << KIND_REGISTERED, &was))
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	*bytes = was.size;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostUnregister(void *ptr)
{
	uint64_t bytes = 0;
	CALL(cuMemHostUnregister, bytes, unregister_host(ptr, &bytes));
}

static CUresult info(uint64_t *free, uint64_t *total)
{
	struct CUctx_st *ctx;
	CUresult result = ctx_current(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	*total = devices[ctx->device].total;
	*free = *total - (uint64_t)atomic_load(&devices[ctx->device].used);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	CALL(cuMemGetInfo_v2, 0, info(free, total));
}
