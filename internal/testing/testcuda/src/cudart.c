// The stand-in runtime, shared and static. Like the real one it knows the
// driver only through dlopen and cuGetProcAddress_v2, uses primary contexts,
// and sets one up when a thread first needs it.
#define _GNU_SOURCE
#include "cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#define RUNTIME_VERSION 13000
#define DEVICES 2
#define EXPORT __attribute__((visibility("default"), noinline))

// DRIVER(base name, its symbol at RUNTIME_VERSION, parameters). A driver
// without cuGetProcAddress is asked for the symbol, as older runtimes did.
#define DRIVERS                                                                                                          \
	DRIVER(cuInit, "cuInit", (unsigned int))                                                                         \
	DRIVER(cuGetErrorString, "cuGetErrorString", (CUresult, const char **))                                          \
	DRIVER(cuDeviceGetCount, "cuDeviceGetCount", (int *))                                                            \
	DRIVER(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                                          \
	DRIVER(cuCtxGetCurrent, "cuCtxGetCurrent", (CUcontext *))                                                        \
	DRIVER(cuCtxSynchronize, "cuCtxSynchronize", (void))                                                             \
	DRIVER(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                            \
	DRIVER(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset_v2", (CUdevice))                                        \
	DRIVER(cuMemGetInfo, "cuMemGetInfo_v2", (size_t *, size_t *))                                                    \
	DRIVER(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                                     \
	DRIVER(cuMemAllocManaged, "cuMemAllocManaged", (CUdeviceptr *, size_t, unsigned int))                            \
	DRIVER(cuMemAllocPitch, "cuMemAllocPitch_v2", (CUdeviceptr *, size_t *, size_t, size_t, unsigned int))           \
	DRIVER(cuMemFree, "cuMemFree_v2", (CUdeviceptr))                                                                 \
	DRIVER(cuMemHostAlloc, "cuMemHostAlloc", (void **, size_t, unsigned int))                                        \
	DRIVER(cuMemFreeHost, "cuMemFreeHost", (void *))                                                                 \
	DRIVER(cuMemHostRegister, "cuMemHostRegister_v2", (void *, size_t, unsigned int))                                \
	DRIVER(cuMemHostUnregister, "cuMemHostUnregister", (void *))                                                     \
	DRIVER(cuArray3DCreate, "cuArray3DCreate_v2", (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *))                      \
	DRIVER(cuArrayDestroy, "cuArrayDestroy", (CUarray))                                                              \
	DRIVER(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", (CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned int)) \
	DRIVER(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", (CUmipmappedArray))                                   \
	DRIVER(cuMemAllocAsync, "cuMemAllocAsync", (CUdeviceptr *, size_t, CUstream))                                    \
	DRIVER(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", (CUdeviceptr *, size_t, CUmemoryPool, CUstream))      \
	DRIVER(cuMemFreeAsync, "cuMemFreeAsync", (CUdeviceptr, CUstream))

static struct {
#define DRIVER(base, symbol, params) CUresult(*base) params;
	DRIVERS
#undef DRIVER
	CUresult (*cuMemAllocAsync_ptsz)(CUdeviceptr *, size_t, CUstream);
	CUresult (*cuMemAllocFromPoolAsync_ptsz)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
	CUresult (*cuMemFreeAsync_ptsz)(CUdeviceptr, CUstream);
} driver;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cudaError_t load_error;
static CUcontext primaries[DEVICES];
static atomic_uint generation = 1; // grows with each reset

static __thread int device;
static __thread unsigned int ready; // the generation in which ensure() last ran

static void load(void)
{
	load_error = cudaErrorInsufficientDriver;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!lib)
		return;
	CUresult (*look_up)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *) =
		(void *)dlsym(lib, "cuGetProcAddress_v2");
	CUdriverProcAddressQueryResult status;
	void *p;
#define LOOK_UP(base, flags) (p = NULL, look_up(base, &p, RUNTIME_VERSION, flags, &status), p)
#define DRIVER(base, symbol, params) driver.base = look_up ? LOOK_UP(#base, 0) : dlsym(lib, symbol);
	DRIVERS
#undef DRIVER
	if (look_up) {
		driver.cuMemAllocAsync_ptsz = LOOK_UP("cuMemAllocAsync", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
		driver.cuMemAllocFromPoolAsync_ptsz = LOOK_UP("cuMemAllocFromPoolAsync", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
		driver.cuMemFreeAsync_ptsz = LOOK_UP("cuMemFreeAsync", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
	}
	load_error = driver.cuInit ? (cudaError_t)driver.cuInit(0) : cudaErrorInsufficientDriver;
}

// ensure gives the thread the primary context of its device.
static cudaError_t ensure(void)
{
	pthread_once(&once, load);
	if (load_error)
		return load_error;
	unsigned int now = atomic_load(&generation);
	if (ready == now)
		return 0;
	pthread_mutex_lock(&lock);
	cudaError_t error = 0;
	if (!primaries[device])
		error = (cudaError_t)driver.cuDevicePrimaryCtxRetain(&primaries[device], device);
	CUcontext ctx = primaries[device];
	pthread_mutex_unlock(&lock);
	if (!error)
		error = (cudaError_t)driver.cuCtxSetCurrent(ctx);
	if (!error)
		ready = now;
	return error;
}

// CALL ends the runtime call with the driver's. A function that the driver
// lacks is CUDA_ERROR_NOT_SUPPORTED.
#define CALL(function, ...)                                                                          \
	do {                                                                                         \
		cudaError_t error_ = ensure();                                                       \
		if (!error_)                                                                         \
			error_ = driver.function ? (cudaError_t)driver.function(__VA_ARGS__)         \
						 : CUDA_ERROR_NOT_SUPPORTED;                         \
		return error_;                                                                       \
	} while (0)

// CALL_LAZY asks the driver first and sets up a context when it wants one, so
// that a first call fails with 201 inside a successful runtime call: the real
// runtime does so for stream-ordered allocations.
#define CALL_LAZY(function, ...)                                                                     \
	do {                                                                                         \
		pthread_once(&once, load);                                                           \
		if (load_error)                                                                      \
			return load_error;                                                           \
		if (!driver.function)                                                                \
			return CUDA_ERROR_NOT_SUPPORTED;                                             \
		cudaError_t error_ = (cudaError_t)driver.function(__VA_ARGS__);                      \
		if (error_ == CUDA_ERROR_INVALID_CONTEXT && !(error_ = ensure()))                    \
			error_ = (cudaError_t)driver.function(__VA_ARGS__);                          \
		return error_;                                                                       \
	} while (0)

EXPORT const char *cudaGetErrorString(cudaError_t error)
{
	const char *text = NULL;
	pthread_once(&once, load);
	if (driver.cuGetErrorString)
		driver.cuGetErrorString(error, &text);
	return text ? text : "unrecognized error code";
}

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
	pthread_once(&once, load);
	return load_error ? load_error : (cudaError_t)driver.cuDeviceGetCount(count);
}

EXPORT cudaError_t cudaSetDevice(int to)
{
	int count = 0;
	cudaError_t error = cudaGetDeviceCount(&count);
	if (error)
		return error;
	if (to < 0 || to >= count)
		return CUDA_ERROR_INVALID_DEVICE;
	device = to;
	ready = 0;
	return ensure();
}

EXPORT cudaError_t cudaDeviceReset(void)
{
	cudaError_t error = ensure();
	if (error)
		return error;
	pthread_mutex_lock(&lock);
	primaries[device] = NULL;
	atomic_fetch_add(&generation, 1);
	pthread_mutex_unlock(&lock);
	return (cudaError_t)driver.cuDevicePrimaryCtxReset(device);
}

EXPORT cudaError_t cudaDeviceSynchronize(void)
{
	CALL(cuCtxSynchronize);
}

EXPORT cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
	CALL(cuMemGetInfo, free, total);
}

EXPORT cudaError_t cudaMalloc(void **ptr, size_t size)
{
	CALL(cuMemAlloc, (CUdeviceptr *)ptr, size);
}

EXPORT cudaError_t cudaMallocManaged(void **ptr, size_t size, unsigned int flags)
{
	CALL(cuMemAllocManaged, (CUdeviceptr *)ptr, size, flags);
}

EXPORT cudaError_t cudaMallocPitch(void **ptr, size_t *pitch, size_t width, size_t height)
{
	CALL(cuMemAllocPitch, (CUdeviceptr *)ptr, pitch, width, height, 4);
}

EXPORT cudaError_t cudaMalloc3D(struct cudaPitchedPtr *out, struct cudaExtent extent)
{
	out->xsize = extent.width;
	out->ysize = extent.height;
	CALL(cuMemAllocPitch, (CUdeviceptr *)&out->ptr, &out->pitch, extent.width, extent.height * extent.depth, 4);
}

EXPORT cudaError_t cudaFree(void *ptr)
{
	CALL(cuMemFree, (CUdeviceptr)ptr);
}

EXPORT cudaError_t cudaMallocHost(void **ptr, size_t size)
{
	CALL(cuMemHostAlloc, ptr, size, 0);
}

EXPORT cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned int flags)
{
	CALL(cuMemHostAlloc, ptr, size, flags);
}

EXPORT cudaError_t cudaFreeHost(void *ptr)
{
	CALL(cuMemFreeHost, ptr);
}

EXPORT cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags)
{
	CALL(cuMemHostRegister, ptr, size, flags);
}

EXPORT cudaError_t cudaHostUnregister(void *ptr)
{
	CALL(cuMemHostUnregister, ptr);
}

static CUDA_ARRAY3D_DESCRIPTOR describe(const struct cudaChannelFormatDesc *d, struct cudaExtent e, unsigned int flags)
{
	static const CUarray_format formats[3][3] = {
		{CU_AD_FORMAT_SIGNED_INT8, CU_AD_FORMAT_SIGNED_INT16, CU_AD_FORMAT_SIGNED_INT32},
		{CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_UNSIGNED_INT32},
		{0, CU_AD_FORMAT_HALF, CU_AD_FORMAT_FLOAT},
	};
	int width = d->x == 8 ? 0 : d->x == 16 ? 1 : 2;
	unsigned int channels = 1 + (d->y > 0) + (d->z > 0) + (d->w > 0);
	CUarray_format format = d->f >= 0 && d->f < 3 ? formats[d->f][width] : 0;
	return (CUDA_ARRAY3D_DESCRIPTOR){e.width, e.height, e.depth, format, channels, flags};
}

EXPORT cudaError_t cudaMallocArray(cudaArray_t *array, const struct cudaChannelFormatDesc *desc, size_t width, size_t height, unsigned int flags)
{
	CUDA_ARRAY3D_DESCRIPTOR d = describe(desc, (struct cudaExtent){width, height, 0}, flags);
	CALL(cuArray3DCreate, array, &d);
}

EXPORT cudaError_t cudaMalloc3DArray(cudaArray_t *array, const struct cudaChannelFormatDesc *desc, struct cudaExtent extent, unsigned int flags)
{
	CUDA_ARRAY3D_DESCRIPTOR d = describe(desc, extent, flags);
	CALL(cuArray3DCreate, array, &d);
}

EXPORT cudaError_t cudaFreeArray(cudaArray_t array)
{
	CALL(cuArrayDestroy, array);
}

EXPORT cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t *array, const struct cudaChannelFormatDesc *desc, struct cudaExtent extent, unsigned int levels, unsigned int flags)
{
	CUDA_ARRAY3D_DESCRIPTOR d = describe(desc, extent, flags);
	CALL(cuMipmappedArrayCreate, array, &d, levels);
}

EXPORT cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t array)
{
	CALL(cuMipmappedArrayDestroy, array);
}

EXPORT cudaError_t cudaMallocAsync(void **ptr, size_t size, cudaStream_t stream)
{
	CALL_LAZY(cuMemAllocAsync, (CUdeviceptr *)ptr, size, stream);
}

EXPORT cudaError_t cudaMallocAsync_ptsz(void **ptr, size_t size, cudaStream_t stream)
{
	CALL_LAZY(cuMemAllocAsync_ptsz, (CUdeviceptr *)ptr, size, stream);
}

EXPORT cudaError_t cudaMallocFromPoolAsync(void **ptr, size_t size, cudaMemPool_t pool, cudaStream_t stream)
{
	CALL(cuMemAllocFromPoolAsync, (CUdeviceptr *)ptr, size, pool, stream);
}

EXPORT cudaError_t cudaMallocFromPoolAsync_ptsz(void **ptr, size_t size, cudaMemPool_t pool, cudaStream_t stream)
{
	CALL(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr *)ptr, size, pool, stream);
}

EXPORT cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
	CALL(cuMemFreeAsync, (CUdeviceptr)ptr, stream);
}

EXPORT cudaError_t cudaFreeAsync_ptsz(void *ptr, cudaStream_t stream)
{
	CALL(cuMemFreeAsync_ptsz, (CUdeviceptr)ptr, stream);
}

