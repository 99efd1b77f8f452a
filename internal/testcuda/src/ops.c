// Symbols, and the rows of all families.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cudart.h"
#include "ops.h"

int current_device;

void die(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fputs("workload: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	fflush(NULL);
	_exit(3);
}

void must(const char *what, int result)
{
	if (result != 0)
		die("%s: result %d", what, result);
}

// Symbols.

static void *libcuda;

void load_driver(void)
{
	if (!libcuda && !(libcuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)))
		die("%s", dlerror());
}

void *driver(const char *symbol)
{
	load_driver();
	void *p = dlsym(libcuda, symbol);
	if (!p)
		die("libcuda.so.1 has no %s", symbol);
	return p;
}

#ifdef LATE // nothing is linked: the runtime too comes by dlopen
void *runtime(const char *symbol)
{
	static void *lib;
	if (!lib && !(lib = dlopen("libcudart.so.13", RTLD_NOW | RTLD_GLOBAL)))
		die("%s", dlerror());
	void *p = dlsym(lib, symbol);
	if (!p)
		die("libcudart.so.13 has no %s", symbol);
	return p;
}
#else
#define RUNTIME(X)                                                                                       \
	X(cudaMalloc) X(cudaMallocManaged) X(cudaMallocPitch) X(cudaMalloc3D) X(cudaFree)                \
	X(cudaMallocHost) X(cudaHostAlloc) X(cudaFreeHost) X(cudaHostRegister) X(cudaHostUnregister)     \
	X(cudaMallocArray) X(cudaMalloc3DArray) X(cudaFreeArray)                                         \
	X(cudaMallocMipmappedArray) X(cudaFreeMipmappedArray)                                            \
	X(cudaMallocAsync) X(cudaMallocAsync_ptsz) X(cudaFreeAsync) X(cudaFreeAsync_ptsz)                \
	X(cudaMallocFromPoolAsync) X(cudaMallocFromPoolAsync_ptsz)                                       \
	X(cudaDeviceGetDefaultMemPool) X(cudaDeviceReset) X(cudaSetDevice) X(cudaGetLastError)           \
	X(cudaMemGetInfo) X(cudaDeviceSynchronize)

void *runtime(const char *symbol)
{
#define X(name)                          \
	if (strcmp(symbol, #name) == 0)  \
		return (void *)name;
	RUNTIME(X)
#undef X
	die("the runtime has no %s", symbol);
}
#endif

// Undos that are nobody's first choice, and the one that each stands in for.
static const char *const twins[][2] = {
	{"cuCtxDestroy", "cuCtxDestroy_v2"},
	{"cuCtxPopCurrent", "cuCtxPopCurrent_v2"},
	{"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"},
	{"cuMemFreeAsync_ptsz", "cuMemFreeAsync"},
	{"cudaFreeAsync_ptsz", "cudaFreeAsync"},
};

static bool is_twin(const char *a, const char *b)
{
	for (size_t i = 0; i < sizeof twins / sizeof *twins; i++)
		if ((strcmp(a, twins[i][0]) == 0 && strcmp(b, twins[i][1]) == 0) || (strcmp(a, twins[i][1]) == 0 && strcmp(b, twins[i][0]) == 0))
			return true;
	return false;
}

static const struct op *const families[] = {linear_ops, vmm_ops, share_ops, ctx_ops};

const struct op *op_at(size_t i)
{
	for (size_t f = 0; f < sizeof families / sizeof *families; f++)
		for (const struct op *op = families[f]; op->name; op++)
			if (i-- == 0)
				return op;
	return NULL;
}

const struct op *op_named(const char *name)
{
	const struct op *op;
	for (size_t i = 0; (op = op_at(i)) && strcmp(op->name, name) != 0; i++)
		;
	return op;
}

const struct op *op_undone_by(const char *undo)
{
	const struct op *op;
	for (size_t i = 0; (op = op_at(i)); i++)
		if (op->undo && strcmp(op->undo, undo) == 0)
			return op;
	for (size_t i = 0; (op = op_at(i)); i++)
		if (op->undo && is_twin(op->undo, undo))
			return op;
	return NULL;
}

static void *function_of(const char *name)
{
	char symbol[64];
	snprintf(symbol, sizeof symbol, "%.*s", (int)strcspn(name, "("), name);
	name = symbol;
	return strncmp(name, "cuda", 4) == 0 ? runtime(name) : driver(name);
}

// function_cached looks a symbol up once for each thread's run of equal names.
static void *function_cached(const char *name)
{
	static __thread struct {
		char name[64];
		void *function;
	} cache[2];
	static __thread int oldest;
	for (int i = 0; i < 2; i++)
		if (strcmp(cache[i].name, name) == 0)
			return cache[i].function;
	int i = oldest;
	oldest = !oldest;
	snprintf(cache[i].name, sizeof cache[i].name, "%s", name);
	return cache[i].function = function_of(name);
}

int op_call(const struct op *op, uint64_t base, uint64_t i, struct object *o)
{
	*o = (struct object){.op = op, .size = op->granular ? ((base + GRANULE - 1) / GRANULE + i) * GRANULE : base + i};
	return op->run(function_cached(op->name), o);
}

bool op_undoes(const struct object *o, const char *undo)
{
	return strcmp(o->op->undo, undo) == 0 || is_twin(o->op->undo, undo);
}

int op_undo(struct object *o, const char *undo)
{
	void *function = function_cached(undo);
	// Most undos take the pointer or handle, and perhaps a stream.
	int result = o->op->end ? o->op->end(function, o) : AS((uint64_t, void *))(o->addr, NULL);
	if (result == 0 && o->op->teardown)
		o->op->teardown(o);
	return result;
}
