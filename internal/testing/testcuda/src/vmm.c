// Virtual memory management: address ranges, physical memory behind handles,
// and the mappings between them. Physical memory ends when its last reference
// and its last mapping are gone.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "driver.h"
#include "token.h"
#include "vmm.h"

#define VMM_BASE 0x600000000000ull
#define VMM_END 0x700000000000ull
#define HANDLE_BASE 0x100000000ull
#define HANDLE_STEP 0x40

struct physical {
	uint64_t size;
	int refs, maps, device;
	enum kind kind;
	bool alive, counted;
	uint32_t object; // of the kernel driver
	int next_free;   // index plus one
};

struct mapping {
	uint64_t addr, size;
	int physical;
};

struct range {
	uint64_t addr, size;
	bool live;
	struct mapping **granules; // of each granule, the mapping that covers it
	size_t mapped;             // granules
	struct range *next;
};

pthread_mutex_t vmm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct physical *physicals;
static int num_physicals, cap_physicals, free_physical;
static struct range *ranges; // newest first; dead ones keep their addresses
static uint64_t next_addr = VMM_BASE;

void vmm_reset(void)
{
	pthread_mutex_init(&vmm_lock, NULL);
	physicals = NULL;
	num_physicals = cap_physicals = free_physical = 0;
	ranges = NULL;
	sparse_reset();
	next_addr = VMM_BASE;
}

static bool aligned(uint64_t n)
{
	return n != 0 && n % GRANULE == 0;
}

// Address ranges.

static struct range *range_of(uint64_t addr, uint64_t size)
{
	for (struct range *r = ranges; r; r = r->next)
		if (r->live && addr >= r->addr && addr - r->addr < r->size)
			return size <= r->size - (addr - r->addr) ? r : NULL;
	return NULL;
}

static CUresult reserve(CUdeviceptr *out, size_t size, size_t alignment)
{
	if (!aligned(size) || (alignment & (alignment - 1)))
		return CUDA_ERROR_INVALID_VALUE;
	if (alignment < GRANULE)
		alignment = GRANULE;
	struct range *r = ranges;
	while (r && (r->live || r->size != size || r->addr % alignment))
		r = r->next;
	if (!r) {
		uint64_t addr = (next_addr + alignment - 1) & ~(uint64_t)(alignment - 1);
		if (size > VMM_END - VMM_BASE || addr + size > VMM_END)
			return CUDA_ERROR_OUT_OF_MEMORY;
		if (!(r = calloc(1, sizeof *r)))
			return CUDA_ERROR_OUT_OF_MEMORY;
		r->addr = addr;
		r->size = size;
		r->next = ranges;
		ranges = r;
		next_addr = addr + size;
	}
	if (!(r->granules = calloc(size / GRANULE, sizeof *r->granules)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	r->live = true;
	*out = r->addr;
	return CUDA_SUCCESS;
}

static CUresult unreserve(CUdeviceptr addr, size_t size)
{
	struct range *r = range_of(addr, size);
	if (!r || r->addr != addr || r->size != size || r->mapped)
		return CUDA_ERROR_INVALID_VALUE;
	free(r->granules);
	r->granules = NULL;
	r->live = false;
	// To the front: the range freed last is the first to be reused.
	for (struct range **link = &ranges; *link; link = &(*link)->next) {
		if (*link == r) {
			*link = r->next;
			break;
		}
	}
	r->next = ranges;
	ranges = r;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
	CALL(cuMemAddressReserve, size, LOCKED(reserve(ptr, size, alignment)));
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	CALL(cuMemAddressFree, size, LOCKED(unreserve(ptr, size)));
}

// Physical memory.

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
	uint64_t i = (handle - HANDLE_BASE) / HANDLE_STEP;
	if (handle < HANDLE_BASE || (handle - HANDLE_BASE) % HANDLE_STEP || i >= (uint64_t)num_physicals)
		return NULL;
	return physicals[i].alive && physicals[i].refs > 0 ? &physicals[i] : NULL;
}

static CUmemGenericAllocationHandle handle_of(const struct physical *p)
{
	return HANDLE_BASE + (uint64_t)(p - physicals) * HANDLE_STEP;
}

static CUresult new_physical(CUmemGenericAllocationHandle *out, struct physical init)
{
	if (!free_physical && num_physicals == cap_physicals) {
		int cap = cap_physicals ? cap_physicals * 2 : 256;
		struct physical *grown = realloc(physicals, cap * sizeof *grown);
		if (!grown)
			return CUDA_ERROR_OUT_OF_MEMORY;
		physicals = grown;
		cap_physicals = cap;
	}
	struct physical *p;
	if (free_physical) {
		p = &physicals[free_physical - 1];
		free_physical = p->next_free;
	} else {
		p = &physicals[num_physicals++];
	}
	*p = init;
	p->refs = 1;
	p->alive = true;
	*out = handle_of(p);
	return CUDA_SUCCESS;
}

// Imported memory counts from its first mapping on: before, its importer
// cannot know its size.
static void count(struct physical *p)
{
	if (!p->counted)
		count_live(p->kind, 1, (int64_t)p->size);
	p->counted = true;
}

static void end_if_unused(struct physical *p)
{
	if (p->refs > 0 || p->maps > 0)
		return;
	if (p->counted)
		count_live(p->kind, -1, -(int64_t)p->size);
	if (p->kind == KIND_VMM) {
		device_give(p->device, p->size);
		kernel_free(p->device, p->object);
	}
	p->alive = false;
	p->next_free = free_physical;
	free_physical = (int)(p - physicals) + 1;
}

static CUresult create(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop)
{
	if (!out || !prop || !aligned(size) || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	int device = prop->location.id;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!device_take(device, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	uint32_t object = kernel_memory(device, size);
	CUresult result = object ? new_physical(out, (struct physical){.size = size, .kind = KIND_VMM, .device = device, .object = object}) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS) {
		count(physical_of(*out));
		return result;
	}
	device_give(device, size);
	if (object)
		kernel_free(device, object);
	return result;
}

// A multicast object has no memory of its own, and any number of mappings.
static CUresult multicast(CUmemGenericAllocationHandle *out, const CUmulticastObjectProp *prop)
{
	if (!out || !prop || prop->numDevices == 0 || !aligned(prop->size))
		return CUDA_ERROR_INVALID_VALUE;
	return new_physical(out, (struct physical){.size = prop->size, .kind = KIND_NONE, .device = -1});
}

static CUresult release(CUmemGenericAllocationHandle handle, uint64_t *bytes)
{
	struct physical *p = physical_of(handle);
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	p->refs--;
	end_if_unused(p);
	if (!p->alive)
		*bytes = p->size;
	return CUDA_SUCCESS;
}

static CUresult retain(CUmemGenericAllocationHandle *out, uint64_t addr)
{
	struct range *r = range_of(addr, 1);
	struct mapping *m = r ? r->granules[(addr - r->addr) / GRANULE] : NULL;
	if (!m)
		return CUDA_ERROR_INVALID_VALUE;
	physicals[m->physical].refs++;
	*out = handle_of(&physicals[m->physical]);
	return CUDA_SUCCESS;
}

static CUresult import(CUmemGenericAllocationHandle *out, void *os_handle, unsigned int type)
{
	struct token t;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !token_read((int)(intptr_t)os_handle, &t))
		return CUDA_ERROR_INVALID_VALUE;
	return new_physical(out, (struct physical){.size = t.size, .kind = KIND_IMPORTED, .device = -1});
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	CALL(cuMemCreate, size, LOCKED(create(handle, size, prop)));
}

EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
	CALL(cuMulticastCreate, 0, LOCKED(multicast(handle, prop)));
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	uint64_t bytes = 0;
	CALL(cuMemRelease, bytes, LOCKED(release(handle, &bytes)));
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	CALL(cuMemRetainAllocationHandle, 0, LOCKED(retain(handle, (uint64_t)addr)));
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, unsigned int type)
{
	CALL(cuMemImportFromShareableHandle, 0, LOCKED(import(handle, os_handle, type)));
}

// Mappings.

int physical_map(CUmemGenericAllocationHandle handle)
{
	struct physical *p = physical_of(handle);
	if (!p)
		return -1;
	p->maps++;
	count(p);
	return (int)(p - physicals);
}

void physical_unmap(int physical)
{
	physicals[physical].maps--;
	end_if_unused(&physicals[physical]);
}

static CUresult map(CUdeviceptr addr, size_t size, size_t offset, CUmemGenericAllocationHandle handle)
{
	struct range *r = range_of(addr, size);
	struct physical *p = physical_of(handle);
	if (!r || !p || !aligned(size) || (addr - r->addr) % GRANULE || offset % GRANULE || offset > p->size || size > p->size - offset)
		return CUDA_ERROR_INVALID_VALUE;
	size_t first = (addr - r->addr) / GRANULE, n = size / GRANULE;
	for (size_t i = first; i < first + n; i++)
		if (r->granules[i])
			return CUDA_ERROR_INVALID_VALUE;
	struct mapping *m = malloc(sizeof *m);
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*m = (struct mapping){addr, size, physical_map(handle)};
	for (size_t i = first; i < first + n; i++)
		r->granules[i] = m;
	r->mapped += n;
	return CUDA_SUCCESS;
}

// One unmap may end many mappings: whole ones, without a gap.
static CUresult unmap(CUdeviceptr addr, size_t size)
{
	struct range *r = range_of(addr, size);
	if (!r || !aligned(size) || (addr - r->addr) % GRANULE)
		return CUDA_ERROR_INVALID_VALUE;
	size_t first = (addr - r->addr) / GRANULE, end = first + size / GRANULE;
	for (size_t i = first; i < end; i++)
		if (!r->granules[i] || r->granules[i]->addr < addr || r->granules[i]->addr + r->granules[i]->size > addr + size)
			return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = first; i < end;) {
		struct mapping *m = r->granules[i];
		for (size_t n = m->size / GRANULE; n > 0; n--)
			r->granules[i++] = NULL;
		physical_unmap(m->physical);
		free(m);
	}
	r->mapped -= end - first;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CALL(cuMemMap, size, LOCKED(map(ptr, size, offset, handle)));
}

EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CALL(cuMemUnmap, size, LOCKED(unmap(ptr, size)));
}
