// What the driver layer's allocations lie in. An object of 2 MiB is shared by
// small ones of one context and use, and ends with the last of them.
#include <pthread.h>
#include <stdlib.h>

#include "driver.h"

#define STEP 512ull
#define LOOKED_AT 64 // shared objects, before a new one is made

struct backing {
	uint32_t object;
	int device, users;
	enum use use;
	struct CUctx_st *ctx;
	uint64_t room;                // of a shared one, what is left
	struct backing *next, **link; // among the shared ones with room
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct backing *shared[NUM_USES]; // used last first

void backing_reset(void)
{
	pthread_mutex_init(&lock, NULL);
	for (int use = 0; use < NUM_USES; use++)
		shared[use] = NULL;
}

static void unlist(struct backing *b)
{
	if (!b->link)
		return;
	*b->link = b->next;
	if (b->next)
		b->next->link = b->link;
	b->link = NULL;
}

static void list(struct backing *b)
{
	unlist(b);
	if (b->room < STEP)
		return;
	b->next = shared[b->use];
	b->link = &shared[b->use];
	if (b->next)
		b->next->link = &b->next;
	shared[b->use] = b;
}

struct backing *backing_of(int device, uint32_t object)
{
	struct backing *b = object ? calloc(1, sizeof *b) : NULL;
	if (b) {
		b->object = object;
		b->device = device;
		b->users = 1;
	}
	return b;
}

uint32_t backing_object(const struct backing *b)
{
	return b->object;
}

static struct backing *share(enum use use, struct CUctx_st *ctx, int device, uint64_t addr, uint64_t size)
{
	struct backing *b = shared[use];
	int left = LOOKED_AT;
	while (b && (b->ctx != ctx || b->room < size))
		b = --left ? b->next : NULL;
	if (b) {
		b->users++;
	} else {
		b = backing_of(device, use == USE_HOST ? kernel_host(device, addr, GRANULE) : kernel_memory(device, GRANULE));
		if (!b)
			return NULL;
		b->use = use;
		b->ctx = ctx;
		b->room = GRANULE;
	}
	b->room -= size;
	list(b);
	return b;
}

struct backing *backing_new(enum use use, struct CUctx_st *ctx, int device, uint64_t addr, uint64_t size)
{
	uint64_t step = size < GRANULE ? STEP : GRANULE;
	size = (size + step - 1) & ~(step - 1);
	if (size >= GRANULE)
		return backing_of(device, use == USE_HOST ? kernel_host(device, addr, size) : kernel_memory(device, size));
	pthread_mutex_lock(&lock);
	struct backing *b = share(use, ctx, device, addr, size);
	pthread_mutex_unlock(&lock);
	return b;
}

void backing_end(struct backing *b, uint64_t size)
{
	pthread_mutex_lock(&lock);
	bool last = --b->users == 0;
	if (last) {
		unlist(b);
	} else {
		b->room += (size + STEP - 1) & ~(STEP - 1);
		list(b);
	}
	if (last)
		kernel_free(b->device, b->object);
	pthread_mutex_unlock(&lock);
	if (last)
		free(b);
}
