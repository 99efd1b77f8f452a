// libc10_cuda has the methods of PyTorch's caching allocator between which it takes
// memory for a private pool (c10/cuda/CUDACachingAllocator.cpp), under their C++ names.
// They are virtual there, and not exported.
#include "c10_cuda.h"

#define METHOD(name) _ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator##name

__attribute__((visibility("hidden"))) void METHOD(19beginAllocateToPoolEaSt4pairIyyESt8functionIFbP11CUstream_stEE)(
	void *allocator, signed char device, struct pool_id id, void *filter)
{
	__asm__ volatile("" ::"r"(allocator), "r"(device), "r"(id.first), "r"(id.second), "r"(filter));
}

__attribute__((visibility("hidden"))) void METHOD(17endAllocateToPoolEaSt4pairIyyE)(void *allocator, signed char device, struct pool_id id)
{
	__asm__ volatile("" ::"r"(allocator), "r"(device), "r"(id.first), "r"(id.second));
}

__attribute__((visibility("default"))) const struct methods testcuda_allocator = {
	METHOD(19beginAllocateToPoolEaSt4pairIyyESt8functionIFbP11CUstream_stEE),
	METHOD(17endAllocateToPoolEaSt4pairIyyE),
};
