// Addresses: handed out, found, ended, and handed out again, last freed first.
//
// An address says its area and shard, so that a free locks only the shard that
// handed it out: area base + shard * 1 TiB. Nothing is mapped there.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define AREA_BASE 0x200000000000ull
#define AREA_SIZE (SHARDS * SHARD_SIZE)
#define SHARD_SIZE (1ull << 40)
#define LOW_BASE 0x10000000ull // AREA_LOW: what fits a CUdeviceptr_v1
#define LOW_END 0xf0000000ull
#define CLASSES 256
#define CHUNK 256

struct chunk {
	struct chunk *next;
	struct block blocks[CHUNK];
};

static struct shard {
	_Alignas(128) pthread_mutex_t lock;
	struct block **buckets;
	size_t num_buckets, num_blocks;
	struct chunk *chunks; // the first has room for num_blocks % CHUNK
	uint64_t next[NUM_AREAS]; // bytes handed out so far
	struct block *free[NUM_AREAS][CLASSES];
} shards[SHARDS];

__attribute__((constructor)) static void init_locks(void)
{
	for (int s = 0; s < SHARDS; s++)
		pthread_mutex_init(&shards[s].lock, NULL);
}

void blocks_reset(void)
{
	memset(shards, 0, sizeof shards);
	init_locks();
}

static struct shard *shard_of(uint64_t addr)
{
	if (addr >= AREA_BASE && addr < AREA_BASE + AREA_LOW * AREA_SIZE)
		return &shards[addr / SHARD_SIZE % SHARDS];
	if (addr < LOW_END)
		return &shards[0];
	return &shards[(addr >> 12) % SHARDS]; // host memory
}

// size_class returns the class of a size and its room: eight classes for each
// power of two, 512 bytes the least and whole granules from 2 MiB on.
static unsigned size_class(uint64_t size, uint64_t *room)
{
	if (size <= 512) {
		*room = 512;
		return 0;
	}
	unsigned log = 63 - __builtin_clzll(size - 1);
	uint64_t step = 1ull << (log - 3);
	uint64_t eighths = (size - 1) / step + 1; // 9 to 16
	uint64_t align = size > GRANULE / 2 ? GRANULE : 512;
	*room = (eighths * step + align - 1) & ~(align - 1);
	return 1 + (log - 9) * 8 + (unsigned)(eighths - 9);
}

static size_t bucket(const struct shard *s, enum space space, uint64_t addr)
{
	return ((addr >> 4 ^ (uint64_t)space << 50) * 0x9e3779b97f4a7c15ull >> 32) & (s->num_buckets - 1);
}

static struct block *find(const struct shard *s, enum space space, uint64_t addr)
{
	if (s->num_buckets == 0)
		return NULL;
	struct block *b = s->buckets[bucket(s, space, addr)];
	while (b && (b->addr != addr || b->space != space))
		b = b->hash_next;
	return b;
}

static bool grow(struct shard *s)
{
	struct block **old = s->buckets;
	size_t num_old = s->num_buckets, n = num_old ? num_old * 2 : 1024;
	struct block **new = calloc(n, sizeof *new);
	if (!new)
		return false;
	s->buckets = new;
	s->num_buckets = n;
	for (size_t i = 0; i < num_old; i++) {
		for (struct block *b = old[i], *next; b; b = next) {
			size_t j = bucket(s, b->space, b->addr);
			next = b->hash_next;
			b->hash_next = new[j];
			new[j] = b;
		}
	}
	free(old);
	return true;
}

static struct block *insert(struct shard *s, enum space space, uint64_t addr)
{
	if (s->num_blocks >= s->num_buckets && !grow(s))
		return NULL;
	if (s->num_blocks % CHUNK == 0) {
		struct chunk *c = calloc(1, sizeof *c);
		if (!c)
			return NULL;
		c->next = s->chunks;
		s->chunks = c;
	}
	struct block *b = &s->chunks->blocks[s->num_blocks++ % CHUNK];
	size_t i = bucket(s, space, addr);
	b->addr = addr;
	b->space = space;
	b->hash_next = s->buckets[i];
	s->buckets[i] = b;
	return b;
}

static bool takes_device(enum kind kind)
{
	return kind == KIND_DEVICE || kind == KIND_ARRAY || kind == KIND_ASYNC;
}

// use_of returns NUM_USES for what lies in no object of the kernel driver's, or
// in one that its family takes.
static enum use use_of(const struct block *b)
{
	if (b->size == 0)
		return NUM_USES;
	switch (b->kind) {
	case KIND_DEVICE: return USE_LINEAR;
	case KIND_ARRAY: return USE_ARRAY;
	case KIND_HOST: case KIND_REGISTERED: return USE_HOST;
	}
	return NUM_USES;
}

static void end_accounts(const struct block *b)
{
	if (b->backing)
		backing_end(b->backing, b->size);
	if (takes_device(b->kind))
		device_give(b->device, b->size);
	count_live(b->kind, -1, -(int64_t)b->size);
}

static bool begin_accounts(struct block *b, uint64_t addr)
{
	if (takes_device(b->kind) && !device_take(b->device, b->size)) {
		if (b->backing)
			backing_end(b->backing, b->size);
		return false;
	}
	count_live(b->kind, 1, (int64_t)b->size);
	enum use use = use_of(b);
	if (use == NUM_USES || (b->backing = backing_new(use, b->ctx, b->device, addr, b->size)))
		return true;
	end_accounts(b);
	return false;
}

static void set(struct block *b, struct block init, enum area area, unsigned class)
{
	init.addr = b->addr;
	init.hash_next = b->hash_next;
	init.free_next = NULL;
	init.area = area;
	init.class = class;
	init.refs = 1;
	init.live = true;
	*b = init;
}

CUresult block_new(enum area area, uint64_t span, struct block init, uint64_t *addr)
{
	uint64_t room, base = LOW_BASE, limit = LOW_END - LOW_BASE;
	struct shard *s = &shards[0];
	if (span > SHARD_SIZE || !begin_accounts(&init, 0))
		return CUDA_ERROR_OUT_OF_MEMORY;
	unsigned class = size_class(span, &room);
	if (area != AREA_LOW) {
		unsigned shard = my_shard();
		s = &shards[shard];
		base = AREA_BASE + area * AREA_SIZE + shard * SHARD_SIZE;
		limit = SHARD_SIZE;
	}
	pthread_mutex_lock(&s->lock);
	struct block *b = s->free[area][class];
	if (b) {
		s->free[area][class] = b->free_next;
	} else {
		uint64_t align = room >= GRANULE ? GRANULE : 512;
		uint64_t start = (s->next[area] + align - 1) & ~(align - 1);
		if (start + room <= limit && (b = insert(s, init.space, base + start)))
			s->next[area] = start + room;
	}
	if (b) {
		set(b, init, area, class);
		*addr = b->addr;
	}
	pthread_mutex_unlock(&s->lock);
	if (b)
		return CUDA_SUCCESS;
	end_accounts(&init);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult block_adopt(uint64_t addr, struct block init)
{
	struct shard *s = shard_of(addr);
	CUresult result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	pthread_mutex_lock(&s->lock);
	struct block *b = find(s, init.space, addr);
	if (!b || !b->live) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
		if ((b || (b = insert(s, init.space, addr))) && begin_accounts(&init, addr)) {
			set(b, init, AREA_NONE, 0);
			result = CUDA_SUCCESS;
		}
	}
	pthread_mutex_unlock(&s->lock);
	return result;
}

// end is called under s->lock. It leaves the family's part to the caller.
static void end(struct shard *s, struct block *b)
{
	b->live = false;
	end_accounts(b);
	if (b->area != AREA_NONE) {
		b->free_next = s->free[b->area][b->class];
		s->free[b->area][b->class] = b;
	}
}

// released tells the families that a block ended. No shard is locked.
static void released(const struct block *was)
{
	if (was->kind == KIND_HOST)
		host_release(was);
#ifndef TESTCUDA_OLD
	else if (was->space == SPACE_ARRAY || was->space == SPACE_MIPMAP)
		vmm_array_ended(was);
	else if (was->kind == KIND_ASYNC || was->kind == KIND_ASYNC_HOST)
		pool_ended(was);
#endif
}

bool block_end(enum space space, uint64_t addr, unsigned kinds, struct block *was)
{
	struct shard *s = shard_of(addr);
	struct block copy;
	pthread_mutex_lock(&s->lock);
	struct block *b = find(s, space, addr);
	bool ok = b && b->live && kinds & 1u << b->kind;
	if (ok) {
		copy = *b;
		end(s, b);
	}
	pthread_mutex_unlock(&s->lock);
	if (ok) {
		released(&copy);
		if (was)
			*was = copy;
	}
	return ok;
}

bool block_find(enum space space, uint64_t addr, struct block *copy)
{
	struct shard *s = shard_of(addr);
	pthread_mutex_lock(&s->lock);
	struct block *b = find(s, space, addr);
	bool ok = b && b->live;
	if (ok && copy)
		*copy = *b;
	pthread_mutex_unlock(&s->lock);
	return ok;
}

bool block_update(enum space space, uint64_t addr, CUresult (*f)(struct block *, void *), void *arg, CUresult *result)
{
	struct shard *s = shard_of(addr);
	pthread_mutex_lock(&s->lock);
	struct block *b = find(s, space, addr);
	bool ok = b && b->live;
	if (ok)
		*result = f(b, arg);
	pthread_mutex_unlock(&s->lock);
	return ok;
}

void blocks_end_context(struct CUctx_st *ctx)
{
	for (struct shard *s = shards; s < shards + SHARDS; s++) {
		pthread_mutex_lock(&s->lock);
		struct block *ended = NULL; // copies, linked by free_next
		size_t n = s->num_blocks % CHUNK ? s->num_blocks % CHUNK : CHUNK;
		for (struct chunk *c = s->chunks; c; c = c->next, n = CHUNK) {
			for (struct block *b = c->blocks; b < c->blocks + n; b++) {
				if (!b->live || b->ctx != ctx)
					continue;
				struct block *copy = malloc(sizeof *copy);
				if (copy) {
					*copy = *b;
					copy->free_next = ended;
					ended = copy;
				}
				end(s, b);
			}
		}
		pthread_mutex_unlock(&s->lock);
		for (struct block *next; ended; ended = next) {
			next = ended->free_next;
			released(ended);
			free(ended);
		}
	}
}
