// A libcuda whose functions call each other in every way that a compiler or a
// program can arrange.
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default"), noinline))

jmp_buf away;
void (*inside)(void); // called within cuMemAllocManaged, with flags 7
static unsigned long next = 0x10000;

EXPORT int cuMemAlloc_v2(unsigned long *p, size_t size)
{
	if (size == 13)
		longjmp(away, 1);
	*p = next += 0x1000;
	return 0;
}

EXPORT int cuMemFree_v2(unsigned long p)
{
	__asm__ volatile("");
	return p == 1;
}

// A call inside a call.
EXPORT int cuMemAllocHost_v2(unsigned long *p, size_t size)
{
	int result = cuMemAlloc_v2(p, size);
	__asm__ volatile("");
	return result;
}

EXPORT int cuMemAllocManaged(unsigned long *p, size_t size, unsigned flags)
{
	__asm__ volatile("");
	if (flags == 7)
		inside();
	*p = next += 0x1000;
	return 0;
}

// A free inside a free.
EXPORT int cuMemFreeHost(unsigned long p)
{
	int result = cuMemFree_v2(p);
	__asm__ volatile("");
	return result;
}

// A call inside one that allocates nothing itself.
EXPORT int cuModuleLoadData(void **module, const void *image)
{
	unsigned long p;
	int result = cuMemAlloc_v2(&p, 600);
	*module = NULL;
	return result;
}

// A signal arrives inside a call.
EXPORT int cuMemPoolTrimTo(void *pool, size_t keep)
{
	int result = raise(SIGUSR1);
	__asm__ volatile("");
	return result;
}

// A call of the same function inside a call.
EXPORT int cuMemAllocPitch_v2(unsigned long *p, size_t *pitch, size_t width, size_t height, unsigned element)
{
	unsigned long inner;
	*pitch = width;
	if (height > 1)
		cuMemAllocPitch_v2(&inner, pitch, width, height - 1, element);
	*p = next += 0x1000;
	return 0;
}

// A tail call: the inner one returns for both.
EXPORT int cuMemHostAlloc(unsigned long *p, size_t size, unsigned flags)
{
	return cuMemAllocManaged(p, size, flags);
}

// Seven deep, where six are kept.
EXPORT int cuGraphDestroy(void *graph)
{
	__asm__ volatile("");
	return 0;
}

EXPORT int cuMemPoolDestroy(void *pool)
{
	int result = cuGraphDestroy(pool);
	__asm__ volatile("");
	return result;
}

EXPORT int cuImportExternalMemory(void **p, void *desc)
{
	int result = cuMemPoolDestroy(desc);
	*p = (void *)1;
	return result;
}

EXPORT int cuMemImportFromShareableHandle(unsigned long *h, void *os, int type)
{
	void *p;
	static char desc[64];
	return cuImportExternalMemory(&p, desc) + (*h = 0);
}

EXPORT int cuMemPoolCreate(void **pool, void *props)
{
	unsigned long h;
	return cuMemImportFromShareableHandle(&h, props, 0) + (*pool = NULL, 0);
}

EXPORT int cuMemAddressReserve(unsigned long *p, size_t size, size_t align, unsigned long at, unsigned long flags)
{
	void *pool;
	static char props[64];
	return cuMemPoolCreate(&pool, props) + (*p = 0x7000, 0);
}

EXPORT int cuMemCreate(unsigned long *h, size_t size, void *prop, unsigned long flags)
{
	unsigned long p;
	return cuMemAddressReserve(&p, size, 0, 0, 0) + (*h = 0x8000, 0);
}

static int hidden(unsigned long *p, size_t size)
{
	*p = size;
	return 0;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **p, int version, unsigned long flags, void *found)
{
	*p = strcmp(name, "cuMemAlloc") == 0 ? (void *)hidden : (void *)cuMemFree_v2;
	return 0;
}
