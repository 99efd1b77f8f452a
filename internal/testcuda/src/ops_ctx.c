// Calls on contexts and devices.
#include "ops.h"

// Contexts and devices.

static int ctx_create(void *function, struct object *o)
{
	return AS((uint64_t *, unsigned int, int))(&o->addr, 0, current_device);
}

static int ctx_create_v3(void *function, struct object *o)
{
	return AS((uint64_t *, void *, int, unsigned int, int))(&o->addr, NULL, 0, 0, current_device);
}

static int ctx_create_v4(void *function, struct object *o)
{
	return AS((uint64_t *, void *, unsigned int, int))(&o->addr, NULL, 0, current_device);
}

static int primary_retain(void *function, struct object *o)
{
	uint64_t ctx;
	o->addr = (uint64_t)current_device;
	return AS((uint64_t *, int))(&ctx, current_device);
}

static int on_device(void *function, struct object *o)
{
	(void)o;
	return AS((int))(current_device);
}

// A reset leaves the thread with a context that is gone: bring it back.
static int primary_reset(void *function, struct object *o)
{
	uint64_t ctx;
	(void)o;
	int result = AS((int))(current_device);
	SETUP(cuDevicePrimaryCtxRetain, (uint64_t *, int), &ctx, current_device);
	return result;
}

static uint64_t current_ctx(void)
{
	uint64_t ctx;
	SETUP(cuCtxGetCurrent, (uint64_t *), &ctx);
	return ctx;
}

static int ctx_push(void *function, struct object *o)
{
	o->addr = current_ctx();
	return AS((uint64_t))(o->addr);
}

static int ctx_set(void *function, struct object *o)
{
	(void)o;
	return AS((uint64_t))(current_ctx());
}

static int get(void *function, struct object *o)
{
	return AS((uint64_t *))(&o->extra);
}

static int ctx_get_device_v2(void *function, struct object *o)
{
	return AS((uint64_t *, uint64_t))(&o->extra, current_ctx());
}

static int set_limit(void *function, struct object *o)
{
	return AS((int, size_t))(0, o->size);
}

static int get_info(void *function, struct object *o)
{
	uint64_t free, total;
	(void)o;
	return AS((uint64_t *, uint64_t *))(&free, &total);
}

static int set_device(void *function, struct object *o)
{
	current_device = (int)o->size;
	return AS((int))(current_device);
}

static int no_argument(void *function, struct object *o)
{
	(void)o;
	return AS((void))();
}

static int pop(void *function, struct object *o)
{
	uint64_t ctx;
	(void)o;
	return AS((uint64_t *))(&ctx);
}

const struct op ctx_ops[] = {
	{"cuDeviceGraphMemTrim", NULL, on_device},
	{"cuCtxCreate", "cuCtxDestroy", ctx_create},
	{"cuCtxCreate_v2", "cuCtxDestroy_v2", ctx_create},
	{"cuCtxCreate_v3", "cuCtxDestroy_v2", ctx_create_v3},
	{"cuCtxCreate_v4", "cuCtxDestroy_v2", ctx_create_v4},
	{"cuCtxPushCurrent", "cuCtxPopCurrent", ctx_push, .end = pop},
	{"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", ctx_push, .end = pop},
	{"cuCtxSetCurrent", NULL, ctx_set},
	{"cuCtxGetCurrent", NULL, get},
	{"cuCtxGetDevice", NULL, get},
	{"cuCtxGetDevice_v2", NULL, ctx_get_device_v2},
	{"cuCtxSetLimit", NULL, set_limit},
	{"cuCtxSynchronize", NULL, no_argument},
	{"cuMemGetInfo", NULL, get_info},
	{"cuMemGetInfo_v2", NULL, get_info},
	{"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", primary_retain},
	{"cuDevicePrimaryCtxReset", NULL, primary_reset},
	{"cuDevicePrimaryCtxReset_v2", NULL, primary_reset},
	{"cudaSetDevice", NULL, set_device},
	{"cudaDeviceReset", NULL, no_argument},
	{"cudaDeviceSynchronize", NULL, no_argument},
	{"cudaGetLastError", NULL, no_argument},
	{"cudaMemGetInfo", NULL, get_info},
	{0},
};
