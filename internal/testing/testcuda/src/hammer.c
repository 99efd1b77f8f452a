// hammer allocates and frees as fast as it can, in N threads for S seconds,
// and prints the driver's ledger as JSON.
//
//   hammer [-threads N] [-seconds S] [-wait]
//
// -wait prints "ready" and starts on a line on stdin. Seven of eight rounds are
// cuMemAlloc_v2, one is cuMemAllocAsync.
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_abi.h"
#include "testcuda.h"

CUresult cuInit(unsigned int), cuDevicePrimaryCtxRetain(CUcontext *, CUdevice), cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t), cuMemFree_v2(CUdeviceptr);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream), cuMemFreeAsync(CUdeviceptr, CUstream);

enum { LIVE = 64 }; // allocations that each thread holds

static int threads = 2;
static double seconds = 1;
static atomic_bool stop;
static CUcontext ctx;

static void must(CUresult result)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "hammer: result %d\n", result);
		exit(3);
	}
}

__attribute__((noinline)) static void turn(CUdeviceptr *slot, size_t i)
{
	bool async = i % 8 == 7;
	if (*slot)
		must(async ? cuMemFreeAsync(*slot, NULL) : cuMemFree_v2(*slot));
	size_t size = 512 + (i * 2654435761u) % (1 << 20);
	must(async ? cuMemAllocAsync(slot, size, NULL) : cuMemAlloc_v2(slot, size));
}

static void *hammer(void *arg)
{
	CUdeviceptr slots[LIVE] = {0};
	must(cuCtxSetCurrent(ctx));
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		for (int i = 0; i < LIVE; i++)
			turn(&slots[i], i);
	for (int i = 0; i < LIVE; i++)
		if (slots[i])
			must(i % 8 == 7 ? cuMemFreeAsync(slots[i], NULL) : cuMemFree_v2(slots[i]));
	return NULL;
}

int main(int argc, char **argv)
{
	bool wait = false;
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "-wait") == 0)
			wait = true;
		else if (i + 1 < argc && strcmp(argv[i], "-threads") == 0)
			threads = atoi(argv[++i]);
		else if (i + 1 < argc && strcmp(argv[i], "-seconds") == 0)
			seconds = atof(argv[++i]);
		else
			return fprintf(stderr, "usage: hammer [-threads N] [-seconds S] [-wait]\n"), 2;
	}
	must(cuInit(0));
	must(cuDevicePrimaryCtxRetain(&ctx, 0));
	if (wait) {
		puts("ready");
		fflush(stdout);
		getchar();
	}
	pthread_t ids[threads];
	for (int i = 0; i < threads; i++)
		pthread_create(&ids[i], NULL, hammer, NULL);
	struct timespec left = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
	nanosleep(&left, NULL);
	atomic_store(&stop, true);
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	return testcuda_print_stats();
}
