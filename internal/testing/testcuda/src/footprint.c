// What a context takes from the kernel driver for itself, in the order, the
// sizes and the classes that driver 580 asks for on an H200.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "rm_abi.h"

#define STREAMS_IN_GROUP 4
#define MODULE_LOCAL 544         // bytes a thread, of what any module's code needs
#define THREADS (1ull << 18)     // that the arena has room for
#define ARENA 434110464ull       // of a context without code

// A channel has a page of the machine's memory, and engines under it.
static const struct {
	uint32_t class;
	int count;
	uint64_t size;
} steps[] = {
	{CLASS_MEMORY, 1, 6291456}, {CLASS_MEMORY, 4, GRANULE}, {CLASS_SYSTEM_MEMORY, 1, 58720256},
	{CLASS_COMPUTE, 8}, {CLASS_COPY, 4}, {CLASS_COPY, 4}, {CLASS_COPY, 4},
	{CLASS_SYSTEM_MEMORY, 1, GRANULE}, {CLASS_MEMORY, 2, GRANULE}, {CLASS_SYSTEM_MEMORY, 1, GRANULE},
	{CLASS_OS_MEMORY, 1, GRANULE}, {CLASS_MEMORY, 2, GRANULE}, {CLASS_OS_MEMORY, 1, GRANULE},
	{CLASS_MEMORY, 1, GRANULE}, {CLASS_OS_MEMORY, 1, GRANULE}, {CLASS_MEMORY, 3, GRANULE},
	{CLASS_SYSTEM_MEMORY, 2, GRANULE}, {CLASS_MEMORY, 1, GRANULE}, {CLASS_OS_MEMORY, 1, GRANULE},
	{CLASS_SYSTEM_MEMORY, 1, 6205440}, {CLASS_MEMORY, 1, 73400320}, {CLASS_MEMORY, 1, GRANULE},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void footprint_reset(void)
{
	pthread_mutex_init(&lock, NULL);
}

// keep is called under lock. It takes no object for one that was refused.
static void keep(struct CUctx_st *ctx, uint32_t object)
{
	struct footprint *f = &ctx->footprint;
	if (f->num_objects == f->cap_objects) {
		size_t cap = f->cap_objects ? f->cap_objects * 2 : 64;
		uint32_t *grown = realloc(f->objects, cap * sizeof *grown);
		if (!grown)
			return;
		f->objects = grown;
		f->cap_objects = cap;
	}
	if (object)
		f->objects[f->num_objects++] = object;
}

// Channels end with their group.
static void keep_group(struct CUctx_st *ctx, uint32_t engine, int channels)
{
	uint32_t group = kernel_object(ctx->device, 0, CLASS_GROUP);
	for (int i = 0; i < channels; i++) {
		keep(ctx, kernel_system_memory(ctx->device, 4096));
		uint32_t channel = kernel_object(ctx->device, group, CLASS_CHANNEL);
		kernel_object(ctx->device, channel, engine);
		if (engine != CLASS_COPY)
			kernel_object(ctx->device, channel, CLASS_COPY);
	}
	keep(ctx, group);
}

static void keep_step(struct CUctx_st *ctx, uint32_t class, uint64_t size)
{
	if (class == CLASS_MEMORY)
		keep(ctx, kernel_memory(ctx->device, size));
	else if (class == CLASS_SYSTEM_MEMORY)
		keep(ctx, kernel_system_memory(ctx->device, size));
	else
		keep(ctx, kernel_host(ctx->device, (uint64_t)ctx & ~4095ull, size));
}

bool footprint_begin(struct CUctx_st *ctx)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		if (steps[i].size == 0)
			keep_group(ctx, steps[i].class, steps[i].count);
		for (int n = 0; steps[i].size && n < steps[i].count; n++)
			keep_step(ctx, steps[i].class, steps[i].size);
	}
	ctx->footprint.arena = kernel_memory(ctx->device, ARENA);
	ctx->footprint.arena_bytes = ARENA;
	keep(ctx, ctx->footprint.arena);
	bool ok = ctx->footprint.arena != 0;
	pthread_mutex_unlock(&lock);
	if (!ok)
		footprint_end(ctx);
	return ok;
}

void footprint_end(struct CUctx_st *ctx)
{
	struct footprint *f = &ctx->footprint;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < f->num_objects; i++)
		kernel_free(ctx->device, f->objects[i]);
	free(f->objects);
	*f = (struct footprint){0};
	pthread_mutex_unlock(&lock);
}

static void grow_arena(struct CUctx_st *ctx, uint64_t local)
{
	struct footprint *f = &ctx->footprint;
	uint64_t bytes = ARENA + ((local * THREADS + GRANULE - 1) & ~(GRANULE - 1));
	if (local > 1 << 20 || bytes <= f->arena_bytes)
		return;
	if (kernel_resize(ctx->device, f->arena, f->arena_bytes, bytes))
		f->arena_bytes = bytes;
}

#define ALIVE(ctx, ...)                       \
	do {                                  \
		pthread_mutex_lock(&lock);    \
		if ((ctx)->footprint.arena) { \
			__VA_ARGS__;          \
		}                             \
		pthread_mutex_unlock(&lock);  \
	} while (0)

void footprint_local(struct CUctx_st *ctx, uint64_t bytes)
{
	ALIVE(ctx, grow_arena(ctx, bytes));
}

// The first module of a context needs more than its code.
static void first_module(struct CUctx_st *ctx)
{
	if (ctx->footprint.modules)
		return;
	ctx->footprint.modules = true;
	grow_arena(ctx, MODULE_LOCAL);
	keep_step(ctx, CLASS_OS_MEMORY, GRANULE);
	keep_step(ctx, CLASS_MEMORY, GRANULE);
}

void footprint_module(struct CUctx_st *ctx)
{
	ALIVE(ctx, first_module(ctx));
}

// Code that was not loaded with its module comes with the first launch.
static void launch(struct CUctx_st *ctx, uint64_t local)
{
	if (!ctx->footprint.launched)
		keep_step(ctx, CLASS_MEMORY, GRANULE);
	ctx->footprint.launched = true;
	grow_arena(ctx, local);
}

void footprint_launch(struct CUctx_st *ctx, uint64_t local)
{
	ALIVE(ctx, launch(ctx, local));
}

// Streams and executable graphs leave what they took to those after them.

static void stream(struct CUctx_st *ctx, bool priority, int n)
{
	struct footprint *f = &ctx->footprint;
	f->streams[priority] += n;
	if (f->streams[priority] <= f->stream_groups[priority] * STREAMS_IN_GROUP)
		return;
	f->stream_groups[priority]++;
	keep_step(ctx, CLASS_MEMORY, GRANULE);
}

void footprint_stream(struct CUctx_st *ctx, bool priority, int n)
{
	ALIVE(ctx, stream(ctx, priority, n));
}

static void graph(struct CUctx_st *ctx, int n, uint64_t bytes)
{
	struct footprint *f = &ctx->footprint;
	if (f->graphs + n >= 0) // else it was made in a context that ended before this one began
		f->graphs += n;
	if (f->graphs > f->most_graphs) {
		f->most_graphs = f->graphs;
		keep_step(ctx, CLASS_MEMORY, GRANULE);
		keep_step(ctx, CLASS_MEMORY, GRANULE);
	}
	if (bytes)
		keep_step(ctx, CLASS_MEMORY, (bytes + GRANULE - 1) & ~(GRANULE - 1));
}

void footprint_graph(struct CUctx_st *ctx, int n, uint64_t bytes)
{
	ALIVE(ctx, graph(ctx, n, bytes));
}
