// A caching allocator as PyTorch's: it takes segments from the driver, small ones for
// small requests alone, hands out blocks of them, merges what comes back, and tells
// libc10 of both. Where the driver refuses a segment it gives back what it can, and
// tries once more. A thread may have a private pool for a while, which has segments of
// its own: nothing else is handed out of them, and they are kept.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "c10_cuda.h"
#include "script.h"

#define MIB (1ull << 20)
#define ROUND 512ull

struct device {
	signed char type, index;
};

// A block of a segment. Blocks of one segment follow each other in the list.
struct block {
	uint64_t at, size;
	bool used, first; // first of its segment
	bool small;       // of a segment for requests up to 1 MiB
	struct pool_id pool;
	struct block *next;
};

static struct block *blocks;
static uint64_t allocated, reserved;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread struct pool_id mine; // that the thread's requests are for

static bool same(struct pool_id a, struct pool_id b)
{
	return a.first == b.first && a.second == b.second;
}

static const struct methods *allocator(void)
{
	static const struct methods *found;
	void *library;
	if (!found && (!(library = dlopen("libc10_cuda.so", RTLD_NOW)) || !(found = dlsym(library, "testcuda_allocator"))))
		die("%s", dlerror());
	return found;
}

static void *torch(const char *function)
{
	static void *library;
	if (!library && !(library = dlopen("libc10.so", RTLD_NOW)))
		die("%s", dlerror());
	return dlsym(library, function);
}

static struct device on(void)
{
	return (struct device){1, (signed char)current_device};
}

static void report(uint64_t at, long bytes)
{
	static void (*to)(void *, long, unsigned long, unsigned long, struct device);
	if (!to)
		to = torch("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
	to((void *)at, bytes, allocated, reserved, on());
}

static void give_up(uint64_t size)
{
	void (*to)(long, unsigned long, unsigned long, struct device) = torch("_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE");
	to((long)size, allocated, reserved, on());
}

static bool is_small(uint64_t size)
{
	return size <= MIB;
}

static struct block *fit(uint64_t size)
{
	for (struct block *b = blocks; b; b = b->next)
		if (!b->used && b->small == is_small(size) && same(b->pool, mine) && b->size >= size)
			return b;
	return NULL;
}

static uint64_t segment_for(uint64_t size)
{
	if (is_small(size))
		return 2 * MIB;
	if (size < 10 * MIB)
		return 20 * MIB;
	return (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

// grow returns the block that is all of a new segment, NULL if the driver refuses it.
static struct block *grow(uint64_t size)
{
	uint64_t at, bytes = segment_for(size);
	if (invoke(function_of("cuMemAlloc_v2"), (uint64_t[8]){TO(at), bytes}) != 0)
		return NULL;
	struct block *b = calloc(1, sizeof *b);
	*b = (struct block){.at = at, .size = bytes, .first = true, .small = is_small(size), .pool = mine, .next = blocks};
	reserved += bytes;
	return blocks = b;
}

// release gives whole free segments back that are of no private pool.
static void release(void)
{
	for (struct block **link = &blocks; *link;) {
		struct block *b = *link;
		if (b->used || !b->first || !same(b->pool, (struct pool_id){0, 0}) || (b->next && !b->next->first)) {
			link = &b->next;
			continue;
		}
		SETUP("cuMemFree_v2", b->at);
		reserved -= b->size;
		*link = b->next;
		free(b);
	}
}

// find returns a block of at least so many bytes, NULL if there is none to be had.
static struct block *find(uint64_t size)
{
	struct block *b = fit(size);
	if (!b)
		b = grow(size);
	if (!b) {
		release();
		b = grow(size);
	}
	return b;
}

// tensor returns 0, or 2 for want of memory.
int tensor(uint64_t size)
{
	size = (size + ROUND - 1) / ROUND * ROUND;
	pthread_mutex_lock(&lock);
	struct block *b = find(size);
	if (!b) {
		give_up(size);
		pthread_mutex_unlock(&lock);
		return 2;
	}
	if (b->size > size) {
		struct block *rest = calloc(1, sizeof *rest);
		*rest = (struct block){.at = b->at + size, .size = b->size - size, .small = b->small, .pool = b->pool, .next = b->next};
		b->size = size;
		b->next = rest;
	}
	b->used = true;
	allocated += size;
	report(b->at, (long)size);
	pthread_mutex_unlock(&lock);
	return 0;
}

// tensor_free takes back the nth block in use.
void tensor_free(uint64_t nth)
{
	pthread_mutex_lock(&lock);
	struct block *b = blocks, *before = NULL;
	for (;; before = b, b = b->next) {
		if (!b)
			die("there is no such tensor");
		if (b->used && nth-- == 0)
			break;
	}
	b->used = false;
	allocated -= b->size;
	report(b->at, -(long)b->size);
	struct block *next = b->next;
	if (next && !next->used && !next->first) {
		b->size += next->size;
		b->next = next->next;
		free(next);
	}
	if (before && !before->used && !b->first) {
		before->size += b->size;
		before->next = b->next;
		free(b);
	}
	pthread_mutex_unlock(&lock);
}

// pool has the thread's requests met from a private pool until unpool, and so from now on
// those of nobody else.
void pool(uint64_t first, uint64_t second)
{
	struct pool_id id = {first, second};
	allocator()->begin(NULL, (signed char)current_device, id, NULL);
	mine = id;
}

void unpool(void)
{
	allocator()->end(NULL, (signed char)current_device, mine);
	mine = (struct pool_id){0, 0};
}

void empty_cache(void)
{
	pthread_mutex_lock(&lock);
	release();
	pthread_mutex_unlock(&lock);
}

void print_tensors(void)
{
	printf("%llu %llu\n", (unsigned long long)allocated, (unsigned long long)reserved);
}

// print_segments prints, of a pool's small segments and then of its others: how many, their
// bytes, those in use, the free blocks, the largest of these, and the bytes of segments
// that are free.
void print_segments(uint64_t first, uint64_t second)
{
	for (int small = 1; small >= 0; small--) {
		uint64_t n = 0, bytes = 0, used = 0, unused = 0, largest = 0, whole = 0;
		for (struct block *b = blocks; b; b = b->next) {
			if (b->small != small || !same(b->pool, (struct pool_id){first, second}))
				continue;
			n += b->first;
			bytes += b->size;
			if (b->used) {
				used += b->size;
				continue;
			}
			unused++;
			if (b->size > largest)
				largest = b->size;
			if (b->first && (!b->next || b->next->first))
				whole += b->size;
		}
		printf("%lu %lu %lu %lu %lu %lu\n", n, bytes, used, unused, largest, whole);
	}
}
