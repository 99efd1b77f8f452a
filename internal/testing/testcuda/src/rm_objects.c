// The kernel driver's tree: clients, what is under them, and the memory that
// they hold. A child ends with its parent, memory with its last object.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rm.h"
#include "rm_abi.h"

#define BUCKETS (1u << 16)
#define CLIENTS 0xc1d00000u // the lower 20 bits tell clients apart, on the whole machine
#define CHOSEN 0xcaf00000u

struct memory {
	uint64_t size;
	int gpu, objects;
};

struct object {
	uint32_t client, handle, class;
	int gpu, fd;           // a device's GPU, and of what is under it; a client's descriptor
	struct memory *memory; // on a GPU, or NULL
	struct object *parent, *children, *next, **link; // next and link: among siblings
	struct object *hash_next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *buckets[BUCKETS], *clients;
static uint64_t physical[GPUS], room; // bytes in use, and of each GPU

static struct object **bucket(uint32_t client, uint32_t handle)
{
	return &buckets[((client << 8 ^ handle) * 0x9e3779b1u) >> 16];
}

static struct object *find(uint32_t client, uint32_t handle)
{
	struct object *o = *bucket(client, handle);
	while (o && (o->client != client || o->handle != handle))
		o = o->hash_next;
	return o;
}

static struct object *insert(struct object init, struct object **siblings)
{
	struct object *o = malloc(sizeof *o), **b = bucket(init.client, init.handle);
	if (!o)
		return NULL;
	*o = init;
	o->next = *siblings;
	o->link = siblings;
	if (o->next)
		o->next->link = &o->next;
	*siblings = o;
	o->hash_next = *b;
	return *b = o;
}

static void drop(struct memory *m)
{
	if (!m || --m->objects > 0)
		return;
	physical[m->gpu] -= m->size;
	free(m);
}

static void end_leaf(struct object *o)
{
	struct object **b = bucket(o->client, o->handle);
	while (*b != o)
		b = &(*b)->hash_next;
	*b = o->hash_next;
	*o->link = o->next;
	if (o->next)
		o->next->link = o->link;
	drop(o->memory);
	free(o);
}

// end goes down and up again by the links: a tree may be deeper than a stack.
static void end(struct object *o)
{
	struct object *at = o, *parent;
	bool last;
	do {
		while (at->children)
			at = at->children;
		last = at == o;
		parent = at->parent;
		end_leaf(at);
		at = parent;
	} while (!last);
}

uint32_t rm_client_new(int fd, uint32_t *client)
{
	pthread_mutex_lock(&lock);
	uint32_t handle = *client, n = (uint32_t)getpid() << 4, status = NV_OK;
	while (!handle || (!*client && find(handle, handle)))
		handle = CLIENTS | (n++ & 0xfffff);
	if (find(handle, handle))
		status = NV_ERR_INSERT_DUPLICATE_NAME;
	else if (!insert((struct object){.client = handle, .handle = handle, .class = CLASS_CLIENT, .fd = fd, .gpu = -1}, &clients))
		status = NV_ERR_NO_MEMORY;
	pthread_mutex_unlock(&lock);
	*client = handle;
	return status;
}

// parent_class returns the class that an object must be under, 0 for any, or
// -1 for an unknown class.
static int64_t parent_class(uint32_t class)
{
	switch (class) {
	case CLASS_DEVICE:
		return CLASS_CLIENT;
	case CLASS_SUBDEVICE:
	case CLASS_MEMORY:
	case CLASS_SYSTEM_MEMORY:
	case CLASS_OS_MEMORY:
		return CLASS_DEVICE;
	case CLASS_GPU_INSTANCE:
		return CLASS_SUBDEVICE;
	case CLASS_CONFIDENTIAL:
	case CLASS_DEBUGGER:
	case CLASS_GROUP:
	case CLASS_SHARE:
	case CLASS_CHANNEL:
	case CLASS_COMPUTE:
	case CLASS_COPY:
	case CLASS_EVENT:
		return 0;
	}
	return -1;
}

static uint32_t place(const struct rm_new *new, struct object **parent)
{
	int64_t under = parent_class(new->class);
	*parent = find(new->client, new->parent);
	if (!find(new->client, new->client))
		return NV_ERR_INVALID_CLIENT;
	if (under < 0)
		return NV_ERR_INVALID_CLASS;
	if (!*parent || (under > 0 && (*parent)->class != under))
		return NV_ERR_INVALID_OBJECT_PARENT;
	if (new->object && find(new->client, new->object))
		return NV_ERR_INSERT_DUPLICATE_NAME;
	return NV_OK;
}

// add is called under lock, once `place` has found the parent. It takes over
// one reference to the memory.
static uint32_t add(struct rm_new *new, struct object *parent, struct memory *memory)
{
	static uint32_t chosen = CHOSEN;
	while (!new->object || find(new->client, new->object) != NULL)
		new->object = chosen++;
	int gpu = new->class == CLASS_DEVICE ? new->gpu : parent->gpu;
	struct object init = {.client = new->client, .handle = new->object, .class = new->class, .gpu = gpu, .fd = -1, .memory = memory, .parent = parent};
	if (insert(init, &parent->children))
		return NV_OK;
	drop(memory);
	return NV_ERR_NO_MEMORY;
}

uint32_t rm_object_new(struct rm_new *new)
{
	struct object *parent;
	struct memory *memory = NULL;
	pthread_mutex_lock(&lock);
	uint32_t status = place(new, &parent);
	if (status == NV_OK && new->class == CLASS_MEMORY) {
		if (new->size > room - physical[parent->gpu] || !(memory = malloc(sizeof *memory))) {
			status = NV_ERR_NO_MEMORY;
		} else {
			*memory = (struct memory){new->size, parent->gpu, 1};
			physical[parent->gpu] += new->size;
		}
	}
	if (status == NV_OK)
		status = add(new, parent, memory);
	pthread_mutex_unlock(&lock);
	return status;
}

// What a client of another process holds is counted there.
uint32_t rm_object_share(struct rm_new *new, uint32_t client, uint32_t object)
{
	struct object *parent, *source;
	pthread_mutex_lock(&lock);
	source = find(client, object);
	new->class = source ? source->class : CLASS_MEMORY;
	uint32_t status = place(new, &parent);
	if (status == NV_OK && !source && find(client, client))
		status = NV_ERR_OBJECT_NOT_FOUND;
	if (status == NV_OK) {
		struct memory *memory = source ? source->memory : NULL;
		if (memory)
			memory->objects++;
		status = add(new, parent, memory);
	}
	pthread_mutex_unlock(&lock);
	return status;
}

// An object that a client does not have is free already.
uint32_t rm_object_free(uint32_t client, uint32_t object)
{
	pthread_mutex_lock(&lock);
	struct object *o = find(client, object);
	uint32_t status = find(client, client) ? NV_OK : NV_ERR_INVALID_CLIENT;
	if (o)
		end(o);
	pthread_mutex_unlock(&lock);
	return status;
}

bool rm_live(uint32_t client, uint32_t object)
{
	pthread_mutex_lock(&lock);
	bool live = find(client, object) != NULL;
	pthread_mutex_unlock(&lock);
	return live;
}

void rm_descriptor_closed(int fd)
{
	pthread_mutex_lock(&lock);
	for (struct object *c = clients, *next; c; c = next) {
		next = c->next;
		if (c->fd == fd)
			end(c);
	}
	pthread_mutex_unlock(&lock);
}

RM_EXPORT uint64_t testrm_physical(int gpu)
{
	pthread_mutex_lock(&lock);
	uint64_t bytes = physical[gpu];
	pthread_mutex_unlock(&lock);
	return bytes;
}

// A child has none of its parent's clients.
static void forked(void)
{
	pthread_mutex_init(&lock, NULL);
	memset(buckets, 0, sizeof buckets);
	memset(physical, 0, sizeof physical);
	clients = NULL;
}

__attribute__((constructor)) static void load(void)
{
	const char *bytes = getenv("TESTCUDA_PHYSICAL");
	room = bytes ? strtoull(bytes, NULL, 0) : GPU_BYTES;
	pthread_atfork(NULL, NULL, forked);
}
