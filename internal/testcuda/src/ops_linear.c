// Calls on linear memory, host memory and arrays.
#define _GNU_SOURCE
#include <sys/mman.h>

#include "cudart.h"
#include "ops.h"

// Linear memory.

static int alloc(void *function, struct object *o)
{
	return AS((uint64_t *, size_t))(&o->addr, o->size);
}

static int alloc_v1(void *function, struct object *o)
{
	unsigned int addr = 0;
	int result = AS((unsigned int *, unsigned int))(&addr, (unsigned int)o->size);
	o->addr = addr;
	return result;
}

static int alloc_flags(void *function, struct object *o)
{
	return AS((uint64_t *, size_t, unsigned int))(&o->addr, o->size, 1);
}

// Pitched memory is `size` wide and three rows high.
static int alloc_pitch(void *function, struct object *o)
{
	size_t pitch;
	return AS((uint64_t *, size_t *, size_t, size_t, unsigned int))(&o->addr, &pitch, o->size, 3, 4);
}

static int alloc_pitch_v1(void *function, struct object *o)
{
	unsigned int addr = 0, pitch;
	int result = AS((unsigned int *, unsigned int *, unsigned int, unsigned int, unsigned int))(&addr, &pitch, (unsigned int)o->size, 3, 4);
	o->addr = addr;
	return result;
}

static int alloc_3d(void *function, struct object *o)
{
	struct cudaPitchedPtr p = {0};
	int result = AS((struct cudaPitchedPtr *, struct cudaExtent))(&p, (struct cudaExtent){o->size, 3, 2});
	o->addr = (uint64_t)p.ptr;
	return result;
}

static int register_host(void *function, struct object *o)
{
	void *p = mmap(NULL, o->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		die("cannot map %zu bytes", o->size);
	o->addr = (uint64_t)p;
	return AS((void *, size_t, unsigned int))(p, o->size, 0);
}

static void unmap_host(struct object *o)
{
	munmap((void *)o->addr, o->size);
}

static int alloc_async(void *function, struct object *o)
{
	return AS((uint64_t *, size_t, void *))(&o->addr, o->size, NULL);
}

static int alloc_from_pool(void *function, struct object *o)
{
	void *pool;
	SETUP(cuDeviceGetDefaultMemPool, (void **, int), &pool, current_device);
	return AS((uint64_t *, size_t, void *, void *))(&o->addr, o->size, pool, NULL);
}

static int alloc_from_pool_runtime(void *function, struct object *o)
{
	void *pool;
	must("cudaDeviceGetDefaultMemPool", ((int (*)(void **, int))runtime("cudaDeviceGetDefaultMemPool"))(&pool, current_device));
	return AS((uint64_t *, size_t, void *, void *))(&o->addr, o->size, pool, NULL);
}

static int free_null(void *function, struct object *o)
{
	(void)o;
	return AS((uint64_t))(0);
}

// Arrays of `size` one-byte elements wide, and as high and deep as named.

static int array_v1(void *function, struct object *o)
{
	CUDA_ARRAY_DESCRIPTOR_v1 d = {(unsigned int)o->size, 3, CU_AD_FORMAT_UNSIGNED_INT8, 1};
	return AS((uint64_t *, void *))(&o->addr, &d);
}

static int array(void *function, struct object *o)
{
	CUDA_ARRAY_DESCRIPTOR d = {o->size, 3, CU_AD_FORMAT_HALF, 2};
	return AS((uint64_t *, void *))(&o->addr, &d);
}

static int array3d_v1(void *function, struct object *o)
{
	CUDA_ARRAY3D_DESCRIPTOR_v1 d = {(unsigned int)o->size, 3, 5, CU_AD_FORMAT_FLOAT, 1, 0};
	return AS((uint64_t *, void *))(&o->addr, &d);
}

static int array3d(void *function, struct object *o)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {o->size, 3, 5, CU_AD_FORMAT_FLOAT, 4, 0};
	return AS((uint64_t *, void *))(&o->addr, &d);
}

static int mipmap(void *function, struct object *o)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {o->size, 4, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0};
	return AS((uint64_t *, void *, unsigned int))(&o->addr, &d, 3);
}

static const struct cudaChannelFormatDesc float4 = {32, 32, 32, 32, 2};

static int array_runtime(void *function, struct object *o)
{
	return AS((uint64_t *, const void *, size_t, size_t, unsigned int))(&o->addr, &float4, o->size, 3, 0);
}

static int array3d_runtime(void *function, struct object *o)
{
	return AS((uint64_t *, const void *, struct cudaExtent, unsigned int))(&o->addr, &float4, (struct cudaExtent){o->size, 3, 5}, 0);
}

static int mipmap_runtime(void *function, struct object *o)
{
	return AS((uint64_t *, const void *, struct cudaExtent, unsigned int, unsigned int))(&o->addr, &float4, (struct cudaExtent){o->size, 4, 0}, 3, 0);
}

const struct op linear_ops[] = {
	{"cuMemAlloc", "cuMemFree", alloc_v1},
	{"cuMemAlloc_v2", "cuMemFree_v2", alloc},
	{"cuMemAllocPitch", "cuMemFree", alloc_pitch_v1},
	{"cuMemAllocPitch_v2", "cuMemFree_v2", alloc_pitch},
	{"cuMemAllocManaged", "cuMemFree_v2", alloc_flags},
	{"cuMemAllocHost", "cuMemFreeHost", alloc},
	{"cuMemAllocHost_v2", "cuMemFreeHost", alloc},
	{"cuMemHostAlloc", "cuMemFreeHost", alloc_flags},
	{"cuMemHostRegister", "cuMemHostUnregister", register_host, .teardown = unmap_host},
	{"cuMemHostRegister_v2", "cuMemHostUnregister", register_host, .teardown = unmap_host},
	{"cuMemAllocAsync", "cuMemFreeAsync", alloc_async},
	{"cuMemAllocAsync_ptsz", "cuMemFreeAsync_ptsz", alloc_async},
	{"cuMemAllocFromPoolAsync", "cuMemFreeAsync", alloc_from_pool},
	{"cuMemAllocFromPoolAsync_ptsz", "cuMemFreeAsync_ptsz", alloc_from_pool},
	{"cuMemFree_v2(0)", NULL, free_null},
	{"cuArrayCreate", "cuArrayDestroy", array_v1},
	{"cuArrayCreate_v2", "cuArrayDestroy", array},
	{"cuArray3DCreate", "cuArrayDestroy", array3d_v1},
	{"cuArray3DCreate_v2", "cuArrayDestroy", array3d},
	{"cuMipmappedArrayCreate", "cuMipmappedArrayDestroy", mipmap},
	{"cudaMalloc", "cudaFree", alloc},
	{"cudaMallocManaged", "cudaFree", alloc_flags},
	{"cudaMallocPitch", "cudaFree", alloc_pitch},
	{"cudaMalloc3D", "cudaFree", alloc_3d},
	{"cudaMallocHost", "cudaFreeHost", alloc},
	{"cudaHostAlloc", "cudaFreeHost", alloc_flags},
	{"cudaHostRegister", "cudaHostUnregister", register_host, .teardown = unmap_host},
	{"cudaMallocArray", "cudaFreeArray", array_runtime},
	{"cudaMalloc3DArray", "cudaFreeArray", array3d_runtime},
	{"cudaMallocMipmappedArray", "cudaFreeMipmappedArray", mipmap_runtime},
	{"cudaMallocAsync", "cudaFreeAsync", alloc_async},
	{"cudaMallocAsync_ptsz", "cudaFreeAsync_ptsz", alloc_async},
	{"cudaMallocFromPoolAsync", "cudaFreeAsync", alloc_from_pool_runtime},
	{"cudaMallocFromPoolAsync_ptsz", "cudaFreeAsync_ptsz", alloc_from_pool_runtime},
	{0},
};
