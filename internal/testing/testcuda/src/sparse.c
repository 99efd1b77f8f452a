// Sparse arrays: parts of them show the memory of a handle.
#include <stdlib.h>
#include <string.h>

#include "vmm.h"

// A part of a sparse array that shows a handle's memory.
struct part {
	uint64_t array;
	unsigned int type, subresource_type;
	CUarraySubresource subresource;
	int physical;
	struct part *next;
};

static struct part *parts;

void sparse_reset(void)
{
	parts = NULL;
}

static void end_part(struct part **link)
{
	struct part *part = *link;
	physical_unmap(part->physical);
	*link = part->next;
	free(part);
}

void vmm_array_ended(const struct block *was)
{
	if (!(was->tag & CUDA_ARRAY3D_SPARSE))
		return;
	unsigned int type = was->space == SPACE_ARRAY ? CU_RESOURCE_TYPE_ARRAY : CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
	pthread_mutex_lock(&vmm_lock);
	for (struct part **link = &parts; *link;) {
		if ((*link)->array == was->addr && (*link)->type == type)
			end_part(link);
		else
			link = &(*link)->next;
	}
	pthread_mutex_unlock(&vmm_lock);
}

static CUresult map_part(const CUarrayMapInfo *info)
{
	enum space space = info->resourceType == CU_RESOURCE_TYPE_ARRAY ? SPACE_ARRAY : SPACE_MIPMAP;
	uint64_t array = (uint64_t)info->resource.array;
	struct block b;
	if (!block_find(space, array, &b) || !(b.tag & CUDA_ARRAY3D_SPARSE))
		return CUDA_ERROR_INVALID_VALUE;
	struct part **link = &parts;
	while (*link && ((*link)->array != array || (*link)->type != info->resourceType || (*link)->subresource_type != info->subresourceType ||
			 memcmp(&(*link)->subresource, &info->subresource, sizeof info->subresource) != 0))
		link = &(*link)->next;
	if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) {
		if (!*link)
			return CUDA_ERROR_INVALID_VALUE;
		end_part(link);
		return CUDA_SUCCESS;
	}
	if (info->memOperationType != CU_MEM_OPERATION_TYPE_MAP || *link)
		return CUDA_ERROR_INVALID_VALUE;
	struct part *part = malloc(sizeof *part);
	if (!part)
		return CUDA_ERROR_OUT_OF_MEMORY;
	int physical = physical_map(info->memHandle);
	if (physical < 0) {
		free(part);
		return CUDA_ERROR_INVALID_VALUE;
	}
	*part = (struct part){array, info->resourceType, info->subresourceType, info->subresource, physical, parts};
	parts = part;
	return CUDA_SUCCESS;
}

static CUresult map_parts(const CUarrayMapInfo *list, unsigned int n)
{
	CUresult result = list && n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < n && result == CUDA_SUCCESS; i++)
		result = map_part(&list[i]);
	return result;
}

ON_STREAM(cuMemMapArrayAsync, (CUarrayMapInfo *list, unsigned int n, CUstream stream), 0, LOCKED(map_parts(list, n)))
