// Memory of other processes and other APIs: mapped here, owned elsewhere.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "driver.h"
#include "token.h"

// A handle that is open already gives the same address and one more reference.
// The block's tag is the address in the exporting process, its aux the pid.

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *opened; // addresses that were ever opened
static size_t num_opened, cap_opened;

static CUresult add_refs(struct block *b, void *n)
{
	if (b->kind != KIND_IMPORTED || b->refs + *(int *)n < 1)
		return CUDA_ERROR_INVALID_VALUE;
	b->refs += *(int *)n;
	return CUDA_SUCCESS;
}

static bool same(const struct block *b, struct CUctx_st *ctx, const struct token *t)
{
	return b->kind == KIND_IMPORTED && b->ctx == ctx && b->tag == t->addr && b->aux == (void *)t->pid;
}

static CUresult open_locked(CUdeviceptr *out, struct CUctx_st *ctx, const struct token *t)
{
	CUresult result;
	struct block b;
	uint64_t addr;
	int one = 1;
	for (size_t i = 0; i < num_opened; i++) {
		if (block_find(SPACE_POINTER, opened[i], &b) && same(&b, ctx, t)) {
			*out = opened[i];
			block_update(SPACE_POINTER, opened[i], add_refs, &one, &result);
			return result;
		}
	}
	if (num_opened == cap_opened) {
		size_t cap = cap_opened ? cap_opened * 2 : 64;
		uint64_t *grown = realloc(opened, cap * sizeof *grown);
		if (!grown)
			return CUDA_ERROR_OUT_OF_MEMORY;
		opened = grown;
		cap_opened = cap;
	}
	struct backing *shared = backing_of(ctx->device, kernel_share(ctx->device, t->client, t->object));
	struct block init = {.space = SPACE_POINTER, .kind = KIND_IMPORTED, .size = t->size, .ctx = ctx, .device = ctx->device, .tag = t->addr, .aux = (void *)t->pid, .backing = shared};
	result = block_new(AREA_DEVICE, t->size, init, &addr);
	if (result == CUDA_SUCCESS)
		*out = opened[num_opened++] = addr;
	return result;
}

static CUresult open_handle(CUdeviceptr *out, const CUipcMemHandle *handle, uint64_t *bytes)
{
	struct CUctx_st *ctx;
	struct token t;
	CUresult result = ctx_current(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (!token_unpack(handle, &t))
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = t.size;
	pthread_mutex_lock(&lock);
	result = open_locked(out, ctx, &t);
	pthread_mutex_unlock(&lock);
	return result;
}

static CUresult close_handle(CUdeviceptr ptr, uint64_t *bytes)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct block b;
	int less = -1;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < num_opened; i++) {
		if (opened[i] != ptr || !block_find(SPACE_POINTER, ptr, &b))
			continue;
		if (b.refs > 1) {
			block_update(SPACE_POINTER, ptr, add_refs, &less, &result);
		} else if (block_end(SPACE_POINTER, ptr, 1u << KIND_IMPORTED, &b)) {
			*bytes = b.size;
			opened[i] = opened[--num_opened];
			result = CUDA_SUCCESS;
		}
		break;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

static CUresult get_handle(CUipcMemHandle *out, CUdeviceptr ptr)
{
	struct block b;
	if (!out || !block_find(SPACE_POINTER, ptr, &b) || b.kind != KIND_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	token_write(out, &(struct token){TOKEN_MAGIC, (uint64_t)getpid(), ptr, b.size, kernel_client(), backing_object(b.backing)});
	return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	CALL(cuIpcGetMemHandle, 0, get_handle(handle, ptr));
}

// Unlike the real driver, this one also opens a handle in its own exporter.
EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	uint64_t bytes = 0;
	CALL(cuIpcOpenMemHandle_v2, bytes, open_handle(ptr, &handle, &bytes));
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags) ALIAS(cuIpcOpenMemHandle_v2);

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	uint64_t bytes = 0;
	CALL(cuIpcCloseMemHandle, bytes, close_handle(ptr, &bytes));
}

void ipc_reset(void)
{
	pthread_mutex_init(&lock, NULL);
	num_opened = 0;
}

// External memory. Its bytes count once, at the import: what is mapped from it
// is a view. The import owns the file descriptor.

#define OPAQUE_FD 1 // CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD

static CUresult import(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	struct CUctx_st *ctx;
	CUresult result = ctx_current(&ctx);
	if (result != CUDA_SUCCESS)
		return result;
	if (desc->type != OPAQUE_FD || desc->size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	struct block init = {.space = SPACE_EXTERNAL, .kind = KIND_IMPORTED, .size = desc->size, .ctx = ctx, .device = ctx->device};
	result = block_new(AREA_HANDLE, 1, init, (uint64_t *)out);
	if (result == CUDA_SUCCESS && desc->handle.fd >= 0)
		close(desc->handle.fd);
	return result;
}

static CUresult destroy(CUexternalMemory memory, uint64_t *bytes)
{
	struct block was;
	if (!block_end(SPACE_EXTERNAL, (uint64_t)memory, 1u << KIND_IMPORTED, &was))
		return CUDA_ERROR_INVALID_HANDLE;
	*bytes = was.size;
	return CUDA_SUCCESS;
}

static CUresult view(enum area area, enum space space, uint64_t *out, CUexternalMemory memory, uint64_t offset, uint64_t size)
{
	struct block b;
	if (!block_find(SPACE_EXTERNAL, (uint64_t)memory, &b))
		return CUDA_ERROR_INVALID_HANDLE;
	if (size == 0 || offset > b.size || size > b.size - offset)
		return CUDA_ERROR_INVALID_VALUE;
	struct block init = {.space = space, .kind = KIND_NONE, .size = size, .ctx = b.ctx, .device = b.device};
	return block_new(area, area == AREA_DEVICE ? size : 1, init, out);
}

EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	CALL(cuImportExternalMemory, desc->size, import(memory, desc));
}

EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	uint64_t bytes = 0;
	CALL(cuDestroyExternalMemory, bytes, destroy(memory, &bytes));
}

EXPORT CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *ptr, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc)
{
	CALL(cuExternalMemoryGetMappedBuffer, desc->size, view(AREA_DEVICE, SPACE_POINTER, (uint64_t *)ptr, memory, desc->offset, desc->size));
}

EXPORT CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *array, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc)
{
	CALL(cuExternalMemoryGetMappedMipmappedArray, 0, view(AREA_ARRAY, SPACE_MIPMAP, (uint64_t *)array, memory, desc->offset, 1));
}
