// Symbols, and the calls of rows.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
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

// Symbols.

static void *symbol_of(const char *library, void **loaded, const char *symbol)
{
	if (!*loaded && !(*loaded = dlopen(library, RTLD_NOW | RTLD_GLOBAL)))
		die("%s", dlerror());
	void *p = dlsym(*loaded, symbol);
	if (!p)
		die("%s has no %s", library, symbol);
	return p;
}

static void *driver(const char *symbol)
{
	static void *loaded;
	return symbol_of("libcuda.so.1", &loaded, symbol);
}

void load_driver(void)
{
	driver("cuInit");
}

static void *runtime(const char *symbol)
{
#ifdef LATE // nothing is linked: the runtime too comes by dlopen
	static void *loaded;
	return symbol_of("libcudart.so.13", &loaded, symbol);
#else
#define X(name)                         \
	if (strcmp(symbol, #name) == 0) \
		return (void *)name;
	X(cudaMalloc) X(cudaMallocManaged) X(cudaMallocPitch) X(cudaMalloc3D) X(cudaFree)
	X(cudaMallocHost) X(cudaHostAlloc) X(cudaFreeHost) X(cudaHostRegister) X(cudaHostUnregister)
	X(cudaMallocArray) X(cudaMalloc3DArray) X(cudaFreeArray)
	X(cudaMallocMipmappedArray) X(cudaFreeMipmappedArray)
	X(cudaMallocAsync) X(cudaMallocAsync_ptsz) X(cudaFreeAsync) X(cudaFreeAsync_ptsz)
	X(cudaMallocFromPoolAsync) X(cudaMallocFromPoolAsync_ptsz)
	X(cudaDeviceReset) X(cudaSetDevice) X(cudaDeviceSynchronize)
#undef X
	die("the runtime has no %s", symbol);
#endif
}

// What follows a "(" tells rows of one function apart. Each thread's last two
// symbols are looked up once.
void *function_of(const char *name)
{
	static __thread struct {
		char name[64];
		void *function;
	} cache[2];
	static __thread int oldest;
	for (int i = 0; i < 2; i++)
		if (strcmp(cache[i].name, name) == 0)
			return cache[i].function;
	char symbol[64];
	snprintf(symbol, sizeof symbol, "%.*s", (int)strcspn(name, "("), name);
	void *function = strncmp(symbol, "cuda", 4) == 0 ? runtime(symbol) : driver(symbol);
	int i = oldest;
	oldest = !oldest;
	snprintf(cache[i].name, sizeof cache[i].name, "%s", name);
	return cache[i].function = function;
}

// Rows.

static size_t stem(const char *name)
{
	const char *suffix = strrchr(name, '_');
	return suffix && (strcmp(suffix, "_v2") == 0 || strcmp(suffix, "_ptsz") == 0) ? (size_t)(suffix - name) : strlen(name);
}

// Versions of one function end each other's objects.
bool op_undoes(const struct op *op, const char *undo)
{
	size_t n = stem(undo);
	return op->undo && stem(op->undo) == n && strncmp(op->undo, undo, n) == 0;
}

const struct op *op_for(const char *name)
{
	const struct op *op, *found = NULL, *twin = NULL;
	for (op = ops; op->name && strcmp(op->name, name) != 0; op++) {
		if (!found && op->undo && strcmp(op->undo, name) == 0)
			found = op;
		if (!twin && op_undoes(op, name))
			twin = op;
	}
	return op->name ? op : found ? found : twin;
}

int op_call(const struct op *op, uint64_t base, uint64_t i, struct object *o)
{
	*o = (struct object){.op = op, .size = op->granular ? ((base + GRANULE - 1) / GRANULE + i) * GRANULE : base + i};
	if (op->setup)
		op->setup(o);
	void *function = function_of(op->name);
	int result = op->run ? op->run(function, o) : call_with(function, op->args, sizeof op->args, o);
	if (op->teardown && !op->undo)
		op->teardown(o);
	return result;
}

int op_undo(struct object *o, const char *undo)
{
	static const int8_t addr[] = {ADDR};
	void *function = function_of(undo);
	int result = o->op->end[0] ? call_with(function, o->op->end, sizeof o->op->end, o) : call_with(function, addr, sizeof addr, o);
	if (result == 0 && o->op->teardown)
		o->op->teardown(o);
	return result;
}
