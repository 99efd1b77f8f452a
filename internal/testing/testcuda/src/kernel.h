// What libcuda asks of the kernel driver, and what it keeps of the answers.
#ifndef KERNEL_H
#define KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct CUctx_st;

// kernel.c: objects of a GPU. Those that make one return its handle, or 0 when
// the kernel driver refused.
void kernel_open(void); // once: the client, and each GPU's device
uint32_t kernel_memory(int device, uint64_t size);        // on the GPU
uint32_t kernel_system_memory(int device, uint64_t size); // the machine's
uint32_t kernel_host(int device, uint64_t addr, uint64_t size); // of the program
uint32_t kernel_share(int device, uint32_t client, uint32_t object);
uint32_t kernel_object(int device, uint32_t parent, uint32_t class); // parent 0: the device
void kernel_free(int device, uint32_t object);
// kernel_resize frees memory and takes as much as asked for under its handle, or
// else as much as before.
bool kernel_resize(int device, uint32_t object, uint64_t before, uint64_t size);
uint32_t kernel_client(void);
void kernel_reset(void);

// backing.c: what the driver layer's allocations lie in. Sizes below 2 MiB
// share objects of 2 MiB; others have one of their own.
enum use { USE_LINEAR, USE_ARRAY, USE_HOST, NUM_USES };
struct backing *backing_new(enum use use, struct CUctx_st *ctx, int device, uint64_t addr, uint64_t size);
struct backing *backing_of(int device, uint32_t object); // NULL for object 0
uint32_t backing_object(const struct backing *b);
void backing_end(struct backing *b, uint64_t size);
void backing_reset(void);

// footprint.c: what a context takes for itself, until it ends.
struct footprint {
	uint32_t *objects;
	size_t num_objects, cap_objects;
	uint32_t arena; // the local memory of threads; 0 of a context that is not alive
	uint64_t arena_bytes;
	int streams[2], stream_groups[2]; // without a priority, and with one
	int graphs, most_graphs;
	bool modules, launched;
};
bool footprint_begin(struct CUctx_st *ctx); // false, having kept nothing, if it does not fit
void footprint_end(struct CUctx_st *ctx);
void footprint_module(struct CUctx_st *ctx);
void footprint_local(struct CUctx_st *ctx, uint64_t bytes);  // a thread needs as much local memory
void footprint_launch(struct CUctx_st *ctx, uint64_t local);
void footprint_stream(struct CUctx_st *ctx, bool priority, int n); // n: 1 more, -1 less
void footprint_graph(struct CUctx_st *ctx, int n, uint64_t bytes); // bytes: of its memory nodes
void footprint_reset(void);

#endif
