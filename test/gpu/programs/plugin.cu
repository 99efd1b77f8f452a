// An allocator as CUDAPluggableAllocator loads it: each block is a cudaMalloc.
#include <atomic>
#include <cuda_runtime.h>
#include <sys/types.h>

static std::atomic<long> held;

extern "C" void *plugin_malloc(ssize_t size, int device, cudaStream_t stream)
{
	void *p = nullptr;
	if (cudaMalloc(&p, size) != cudaSuccess)
		return nullptr;
	held += size;
	return p;
}

extern "C" void plugin_free(void *p, ssize_t size, int device, cudaStream_t stream)
{
	held -= size;
	cudaFree(p);
}

extern "C" long plugin_held()
{
	return held;
}
