// The arguments of rows.
#define _GNU_SOURCE
#include <string.h>

#include "cudart.h"
#include "ops.h"
#include "token.h"

// A function may take fewer: each argument is a register or a word of the stack.
int invoke(void *function, const uint64_t a[8])
{
	return ((int (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t))function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
}

static __thread _Alignas(16) char structure[sizeof(CUgraphNodeParams)];

#define FILL(type, ...) return memcpy(structure, &(type){__VA_ARGS__}, sizeof(type))

// Arrays are `size` elements wide, and as high and deep as named.
static void *fill(int arg, const struct object *o)
{
	CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, current_device};
	CUmemPoolProps pool = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
	bool map = arg == MAP_PART;
	switch (arg) {
	case ARRAY_V1:
		FILL(CUDA_ARRAY_DESCRIPTOR_v1, (unsigned int)o->size, 3, CU_AD_FORMAT_UNSIGNED_INT8, 1);
	case ARRAY:
		FILL(CUDA_ARRAY_DESCRIPTOR, o->size, 3, CU_AD_FORMAT_HALF, 2);
	case ARRAY3D_V1:
		FILL(CUDA_ARRAY3D_DESCRIPTOR_v1, (unsigned int)o->size, 3, 5, CU_AD_FORMAT_FLOAT, 1, 0);
	case ARRAY3D:
		FILL(CUDA_ARRAY3D_DESCRIPTOR, o->size, 3, 5, CU_AD_FORMAT_FLOAT, 4, 0);
	case SPARSE:
		FILL(CUDA_ARRAY3D_DESCRIPTOR, o->size, 64, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE);
	case MIPMAP:
		FILL(CUDA_ARRAY3D_DESCRIPTOR, o->size, 4, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0);
	case FLOAT4:
		FILL(struct cudaChannelFormatDesc, 32, 32, 32, 32, 2);
	case PHYSICAL:
		FILL(CUmemAllocationProp, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, here);
	case MULTICAST:
		FILL(CUmulticastObjectProp, 2, o->size, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	case MAP_PART:
	case UNMAP_PART:
		FILL(CUarrayMapInfo, .resourceType = CU_RESOURCE_TYPE_ARRAY, .resource.array = (CUarray)o->addr,
		     .subresource.sparseLevel = {.extentWidth = 64, .extentHeight = 64, .extentDepth = 1},
		     .memOperationType = map ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP,
		     .memHandle = map ? o->extra : 0, .deviceBitMask = 1);
	case LOCATION:
		return memcpy(structure, &here, sizeof here);
	case POOL_PROPS:
		return memcpy(structure, &pool, sizeof pool);
	case POINTER_DATA:
		token_pack(structure, 0x1000, o->size);
		return structure;
	case EXTERNAL:
		FILL(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, .type = 1, .handle.fd = token_fd(0x1000, o->size), .size = o->size);
	case VIEW:
		FILL(CUDA_EXTERNAL_MEMORY_BUFFER_DESC, .size = o->size);
	case MIPMAP_VIEW:
		FILL(CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC, .arrayDesc = {o->size, 1, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, .numLevels = 1);
	case ALLOC_PARAMS:
		FILL(CUDA_MEM_ALLOC_NODE_PARAMS, .poolProps = pool, .bytesize = o->size);
	case ALLOC_NODE:
		FILL(CUgraphNodeParams, .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = {.poolProps = pool, .bytesize = o->size});
	}
	die("no such argument: %d", arg);
}

uint64_t arg_value(int arg, struct object *o)
{
	static __thread uint64_t scratch, value;
	if (arg >= 0)
		return (uint64_t)arg;
	switch (arg) {
	case ADDR: return o->addr;
	case EXTRA: return o->extra;
	case SIZE: return o->size;
	case TO_ADDR: return TO(o->addr);
	case TO_EXTRA: return TO(o->extra);
	case SCRATCH: return TO(scratch);
	case DEVICE: return (uint64_t)current_device;
	case POOL: SETUP("testcuda_default_pool", TO(value), current_device); return value;
	case CONTEXT: SETUP("cuCtxGetCurrent", TO(value)); return value;
	default: return (uint64_t)fill(arg, o);
	}
}

int call_with(void *function, const int8_t *args, size_t n, struct object *o)
{
	uint64_t a[8] = {0};
	for (size_t i = 0; i < n; i++)
		a[i] = arg_value(args[i], o);
	int result = invoke(function, a);
	if (args == o->op->args && o->op->out)
		memcpy(&o->addr, structure + o->op->out, sizeof o->addr);
	return result;
}
