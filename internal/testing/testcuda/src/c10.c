// libc10 exports what PyTorch's caching allocator calls when it has handed out or taken
// back memory, and when it gives up (c10/core/Allocator.h), under their C++ names.
struct device {
	signed char type, index; // 1 is CUDA
};

// Both ask first whether a profiler listens, and so begin as functions that call do.
static __attribute__((noinline)) void *profiler(void)
{
	void *none = 0;
	__asm__ volatile("" : "+r"(none));
	return none;
}

__attribute__((visibility("default"))) void
_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *at, long bytes, unsigned long allocated, unsigned long reserved,
						       struct device device)
{
	if (profiler())
		__asm__ volatile("" ::"r"(at), "r"(bytes), "r"(allocated), "r"(reserved), "r"(device.type));
}

__attribute__((visibility("default"))) void
_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE(long bytes, unsigned long allocated, unsigned long reserved,
						     struct device device)
{
	if (profiler())
		__asm__ volatile("" ::"r"(bytes), "r"(allocated), "r"(reserved), "r"(device.type));
}
