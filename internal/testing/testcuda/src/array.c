// CUDA arrays and mipmapped arrays. Their bytes are width x height x depth x
// channels x bytes of a channel, a zero extent counting as one.
#include "driver.h"

static uint64_t element(CUarray_format format, unsigned int channels)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return channels;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 2 * channels;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4 * channels;
	}
	return 0;
}

static uint64_t extent(size_t n, unsigned int level)
{
	return n >> level ? n >> level : 1;
}

// level_bytes returns 0 for an array that takes no memory of its own, and for
// one of an unknown format.
static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int level)
{
	if (d->Flags & CUDA_ARRAY3D_SPARSE)
		return 0;
	return extent(d->Width, level) * extent(d->Height, level) * extent(d->Depth, level) * element(d->Format, d->NumChannels);
}

static CUresult create(enum space space, uint64_t *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels, uint64_t *bytes)
{
	struct CUctx_st *ctx;
	CUresult result = ctx_current(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (d->Width == 0 || element(d->Format, d->NumChannels) == 0 || levels == 0 || levels > 32)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int level = 0; level < levels; level++)
		*bytes += level_bytes(d, level);
	struct block init = {.space = space, .kind = KIND_ARRAY, .size = *bytes, .ctx = ctx, .device = ctx->device, .tag = d->Flags};
	return block_new(AREA_ARRAY, 1, init, out);
}

static CUresult destroy(enum space space, uint64_t array, uint64_t *bytes)
{
	struct block was;
	if (!block_end(space, array, 1u << KIND_ARRAY | 1u << KIND_NONE, &was))
		return CUDA_ERROR_INVALID_HANDLE;
	*bytes = was.size;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
	uint64_t bytes = 0;
	CUDA_ARRAY3D_DESCRIPTOR wide = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
	CALL(cuArrayCreate, bytes, create(SPACE_ARRAY, (uint64_t *)array, &wide, 1, &bytes));
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d)
{
	uint64_t bytes = 0;
	CUDA_ARRAY3D_DESCRIPTOR wide = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
	CALL(cuArrayCreate_v2, bytes, create(SPACE_ARRAY, (uint64_t *)array, &wide, 1, &bytes));
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
	uint64_t bytes = 0;
	CUDA_ARRAY3D_DESCRIPTOR wide = {d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags};
	CALL(cuArray3DCreate, bytes, create(SPACE_ARRAY, (uint64_t *)array, &wide, 1, &bytes));
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	uint64_t bytes = 0;
	CALL(cuArray3DCreate_v2, bytes, create(SPACE_ARRAY, (uint64_t *)array, d, 1, &bytes));
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
	uint64_t bytes = 0;
	CALL(cuArrayDestroy, bytes, destroy(SPACE_ARRAY, (uint64_t)array, &bytes));
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
	uint64_t bytes = 0;
	CALL(cuMipmappedArrayCreate, bytes, create(SPACE_MIPMAP, (uint64_t *)array, d, levels, &bytes));
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	uint64_t bytes = 0;
	CALL(cuMipmappedArrayDestroy, bytes, destroy(SPACE_MIPMAP, (uint64_t)array, &bytes));
}
