// What the families of the stand-in driver share.
#ifndef DRIVER_H
#define DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "cuda_abi.h"
#include "kernel.h"

#define EXPORT __attribute__((visibility("default"), noinline))
#define ALIAS(target) __attribute__((visibility("default"), alias(#target)))

#define GRANULE (2ull << 20) // of physical memory and reserved addresses
#define DEVICES 2
#define SHARDS 8

enum api {
#define API(name, version) API_##name,
#include "apis.h"
	NUM_APIS
};

// The kinds and spaces of package event, without KindNone's meaning: a block
// of KIND_NONE is a view of memory that is counted elsewhere.
enum kind {
	KIND_NONE, KIND_DEVICE, KIND_ARRAY, KIND_ASYNC, KIND_VMM, KIND_MANAGED,
	KIND_HOST, KIND_REGISTERED, KIND_IMPORTED, KIND_GRAPH, KIND_ASYNC_HOST,
	NUM_KINDS
};
enum space {
	SPACE_POINTER, SPACE_ARRAY, SPACE_MIPMAP, SPACE_REGISTERED, SPACE_EXTERNAL,
	SPACE_NODE, SPACE_OBJECT // objects without memory: graphs, modules
};

// stats.c: every exported function is one CALL. `bytes` is evaluated after
// `expr`, so that a free can report what it ended.
#define CALL(name, bytes, expr) CALL_AFTER(enter, name, bytes, expr)
#define CALL_UNINITIALIZED(name, expr) CALL_AFTER(enter_uninitialized, name, 0, expr)
#define CALL_AFTER(enter, name, bytes, expr)                  \
	do {                                                  \
		CUresult result_ = enter(API_##name);         \
		if (result_ == CUDA_SUCCESS)                  \
			result_ = (expr);                     \
		return leave(API_##name, result_, (bytes));   \
	} while (0)

// ON_STREAM is a CALL and its twin, for which no stream means the thread's own.
// `expr` may set bytes.
#define ON_STREAM(name, params, n, expr)                                   \
	EXPORT CUresult name params                                        \
	{                                                                  \
		__attribute__((unused)) uint64_t bytes = 0;                \
		CALL(name, n, expr);                                       \
	}                                                                  \
	EXPORT CUresult name##_ptsz params                                 \
	{                                                                  \
		__attribute__((unused)) uint64_t bytes = 0;                \
		stream = stream ? stream : (CUstream)CU_STREAM_PER_THREAD; \
		CALL(name##_ptsz, n, expr);                                \
	}

extern atomic_bool initialized; // cuInit succeeded in this process
extern atomic_bool armed;       // a failure is injected

CUresult enter_armed(enum api api);
CUresult leave(enum api api, CUresult result, uint64_t bytes);
unsigned my_shard(void);
void count_live(enum kind kind, int64_t objects, int64_t bytes);
void stats_reset(void);

static inline CUresult enter_uninitialized(enum api api)
{
	return atomic_load_explicit(&armed, memory_order_relaxed) ? enter_armed(api) : CUDA_SUCCESS;
}

static inline CUresult enter(enum api api)
{
	CUresult result = enter_uninitialized(api);
	if (result != CUDA_SUCCESS)
		return result;
	return atomic_load_explicit(&initialized, memory_order_relaxed) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

// device.c
struct device {
	uint64_t total;
	_Atomic int64_t used;
};
extern struct device devices[DEVICES];
bool device_valid(CUdevice device);
bool device_take(int device, uint64_t bytes); // false when it would not fit
void device_give(int device, uint64_t bytes);
void devices_reset(void);

// ctx.c
struct CUctx_st {
	int device;
	bool primary;
	atomic_bool alive;
	int refs; // of a primary context, or attached to
	struct footprint footprint;
	struct CUctx_st *next;
};
CUresult ctx_current(struct CUctx_st **ctx);
void ctx_reset(void);

// block.c: a block is one address that was handed out. It outlives its free,
// so that its address is the next one handed out for its size class.
struct block {
	uint64_t addr;
	uint64_t size;       // what the ledger counts
	struct CUctx_st *ctx; // ends with it; NULL outlives all contexts
	struct block *hash_next, *free_next;
	void *aux;           // its family's own
	struct backing *backing; // what it lies in; ends with it
	uint64_t tag;        // its family's own
	int device, refs;
	uint8_t space, kind, class, area;
	bool live;
};
enum area { AREA_DEVICE, AREA_ARRAY, AREA_HANDLE, AREA_LOW, NUM_AREAS, AREA_NONE };

// block_new hands out an address from `area` with room for `span` bytes.
// `init` gives every field but addr. Takes device memory where its kind does,
// and what backs it unless `init` does. Either way that ends with the block.
CUresult block_new(enum area area, uint64_t span, struct block init, uint64_t *addr);
// block_adopt makes an address of the caller's own live.
CUresult block_adopt(uint64_t addr, struct block init);
// block_end ends the live block at addr if `kinds` (a set of 1<<KIND) has its
// kind. `was`, if not NULL, receives it.
bool block_end(enum space space, uint64_t addr, unsigned kinds, struct block *was);
// block_find copies the live block at addr.
bool block_find(enum space space, uint64_t addr, struct block *copy);
// block_update calls f on the live block at addr, under its lock.
bool block_update(enum space space, uint64_t addr, CUresult (*f)(struct block *, void *), void *arg, CUresult *result);
void blocks_end_context(struct CUctx_st *ctx);
void blocks_reset(void);

// mem.c
void host_release(const struct block *was); // the real memory behind host blocks

// ipc.c
void ipc_reset(void);

// vmm.c
void vmm_reset(void);
void vmm_array_ended(const struct block *was);

// graph.c: a memory node of a graph, as capture and the node functions make it.
CUresult graph_alloc(CUgraph graph, uint64_t size, int device, uint64_t *addr, CUgraphNode *node);
CUresult graph_free(CUgraph graph, CUdeviceptr ptr, uint64_t *bytes, CUgraphNode *node);
CUresult graph_new(CUgraph *graph);

// capture.c
// capture_graph returns the graph that the stream is captured into, or NULL.
CUgraph capture_graph(CUstream stream);
void capture_reset(void);

// proc.c
CUresult proc_look_up(const char *base, void **out, int version, uint64_t flags, CUdriverProcAddressQueryResult *status);

// pool.c
void pool_reset(void);
void pool_ended(const struct block *was);
void pool_synchronize(int device); // give back what no allocation lies in

#endif
