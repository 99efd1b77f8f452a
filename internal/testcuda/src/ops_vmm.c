// Calls on virtual memory and pools.
#define _GNU_SOURCE
#include "cuda_abi.h"
#include "ops.h"
#include "token.h"

// Virtual memory management. `extra` is the physical handle under a mapping.

static CUmemAllocationProp device_memory(void)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, current_device},
	};
}

static uint64_t create_handle(size_t size)
{
	CUmemAllocationProp prop = device_memory();
	uint64_t handle;
	SETUP(cuMemCreate, (uint64_t *, size_t, void *, uint64_t), &handle, size, &prop, 0);
	return handle;
}

static uint64_t reserve_range(size_t size)
{
	uint64_t addr;
	SETUP(cuMemAddressReserve, (uint64_t *, size_t, size_t, uint64_t, uint64_t), &addr, size, 0, 0, 0);
	return addr;
}

static int reserve(void *function, struct object *o)
{
	return AS((uint64_t *, size_t, size_t, uint64_t, uint64_t))(&o->addr, o->size, 0, 0, 0);
}

static int create(void *function, struct object *o)
{
	CUmemAllocationProp prop = device_memory();
	return AS((uint64_t *, size_t, void *, uint64_t))(&o->addr, o->size, &prop, 0);
}

static int create_multicast(void *function, struct object *o)
{
	CUmulticastObjectProp prop = {.numDevices = 2, .size = o->size, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
	return AS((uint64_t *, void *))(&o->addr, &prop);
}

static int map(void *function, struct object *o)
{
	o->addr = reserve_range(o->size);
	o->extra = create_handle(o->size);
	return AS((uint64_t, size_t, size_t, uint64_t, uint64_t))(o->addr, o->size, 0, o->extra, 0);
}

static void unmapped(struct object *o)
{
	SETUP(cuMemRelease, (uint64_t), o->extra);
	SETUP(cuMemAddressFree, (uint64_t, size_t), o->addr, o->size);
}

static struct object mapped(size_t size)
{
	struct object m = {.size = size};
	must("cuMemMap", map(driver("cuMemMap"), &m));
	return m;
}

static void end_mapped(struct object *m)
{
	SETUP(cuMemUnmap, (uint64_t, size_t), m->addr, m->size);
	unmapped(m);
}

static int retain(void *function, struct object *o)
{
	struct object m = mapped(o->size);
	o->extra = m.addr;
	return AS((uint64_t *, uint64_t))(&o->addr, m.addr);
}

static void end_retained(struct object *o)
{
	struct object m = {.addr = o->extra, .extra = o->addr, .size = o->size};
	end_mapped(&m);
}

static int export(void *function, struct object *o)
{
	int fd;
	uint64_t handle = create_handle(o->size);
	int result = AS((int *, uint64_t, unsigned int, uint64_t))(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (result == 0)
		close(fd);
	SETUP(cuMemRelease, (uint64_t), handle);
	return result;
}

static int import(void *function, struct object *o)
{
	int fd = token_fd(0x1000, o->size);
	int result = AS((uint64_t *, uint64_t, unsigned int))(&o->addr, fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	close(fd);
	return result;
}

static int set_access(void *function, struct object *o)
{
	struct object m = mapped(o->size);
	CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, current_device}, 3};
	int result = AS((uint64_t, size_t, void *, size_t))(m.addr, m.size, &desc, 1);
	end_mapped(&m);
	return result;
}

static int granularity(void *function, struct object *o)
{
	CUmemAllocationProp prop = device_memory();
	return AS((uint64_t *, void *, unsigned int))(&o->extra, &prop, 0);
}

static CUarrayMapInfo part_of(struct object *o, unsigned int operation)
{
	return (CUarrayMapInfo){
		.resourceType = CU_RESOURCE_TYPE_ARRAY,
		.resource.array = (CUarray)o->addr,
		.subresource.sparseLevel = {.extentWidth = 64, .extentHeight = 64, .extentDepth = 1},
		.memOperationType = operation,
		.memHandle = operation == CU_MEM_OPERATION_TYPE_MAP ? o->extra : 0,
		.deviceBitMask = 1,
	};
}

static int map_array(void *function, struct object *o)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {o->size, 64, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE};
	SETUP(cuArray3DCreate_v2, (uint64_t *, void *), &o->addr, &d);
	o->extra = create_handle(GRANULE);
	CUarrayMapInfo part = part_of(o, CU_MEM_OPERATION_TYPE_MAP);
	return AS((void *, unsigned int, void *))(&part, 1, NULL);
}

static int end_part(void *function, struct object *o)
{
	CUarrayMapInfo part = part_of(o, CU_MEM_OPERATION_TYPE_UNMAP);
	return AS((void *, unsigned int, void *))(&part, 1, NULL);
}

static void end_map_array(struct object *o)
{
	SETUP(cuMemRelease, (uint64_t), o->extra);
	SETUP(cuArrayDestroy, (uint64_t), o->addr);
}

// Pools.

static int pool_create(void *function, struct object *o)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, current_device}};
	return AS((uint64_t *, void *))(&o->addr, &props);
}

static uint64_t default_pool(void)
{
	uint64_t pool;
	SETUP(cuDeviceGetDefaultMemPool, (uint64_t *, int), &pool, current_device);
	return pool;
}

static int pool_trim(void *function, struct object *o)
{
	return AS((uint64_t, size_t))(default_pool(), o->size);
}

static int pool_export(void *function, struct object *o)
{
	char data[64];
	uint64_t ptr;
	SETUP(cuMemAllocAsync, (uint64_t *, size_t, void *), &ptr, o->size, NULL);
	int result = AS((void *, uint64_t))(data, ptr);
	SETUP(cuMemFreeAsync, (uint64_t, void *), ptr, NULL);
	return result;
}

static int pool_import(void *function, struct object *o)
{
	char data[64];
	token_pack(data, 0x1000, o->size);
	return AS((uint64_t *, uint64_t, void *))(&o->addr, default_pool(), data);
}

static int get_pool(void *function, struct object *o)
{
	return AS((uint64_t *, int))(&o->extra, current_device);
}

static int end_range(void *function, struct object *o)
{
	return AS((uint64_t, size_t))(o->addr, o->size);
}

const struct op vmm_ops[] = {
	{"cuMemAddressReserve", "cuMemAddressFree", reserve, .end = end_range, .granular = true},
	{"cuMemCreate", "cuMemRelease", create, .granular = true},
	{"cuMulticastCreate", "cuMemRelease", create_multicast, .granular = true},
	{"cuMemRetainAllocationHandle", "cuMemRelease", retain, .teardown = end_retained, .granular = true},
	{"cuMemExportToShareableHandle", NULL, export, .granular = true},
	{"cuMemImportFromShareableHandle", "cuMemRelease", import, .granular = true},
	{"cuMemMap", "cuMemUnmap", map, .end = end_range, .teardown = unmapped, .granular = true},
	{"cuMemMapArrayAsync", "cuMemMapArrayAsync", map_array, .end = end_part, .teardown = end_map_array},
	{"cuMemMapArrayAsync_ptsz", "cuMemMapArrayAsync_ptsz", map_array, .end = end_part, .teardown = end_map_array},
	{"cuMemSetAccess", NULL, set_access, .granular = true},
	{"cuMemGetAllocationGranularity", NULL, granularity},
	{"cuMemPoolCreate", "cuMemPoolDestroy", pool_create},
	{"cuMemPoolTrimTo", NULL, pool_trim},
	{"cuMemPoolExportPointer", NULL, pool_export},
	{"cuMemPoolImportPointer", "cuMemFreeAsync", pool_import},
	{"cuDeviceGetDefaultMemPool", NULL, get_pool},
	{"cuDeviceGetMemPool", NULL, get_pool},
	{0},
};
