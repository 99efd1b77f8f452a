// Initialization, devices, errors and symbol lookup.
#include <stdlib.h>

#include "driver.h"

struct device devices[DEVICES];

void devices_reset(void)
{
	const char *total = getenv("TESTCUDA_TOTAL");
	for (int d = 0; d < DEVICES; d++) {
		devices[d].total = total ? strtoull(total, NULL, 0) : 80ull << 30;
		atomic_store(&devices[d].used, 0);
	}
}

bool device_valid(CUdevice device)
{
	return device >= 0 && device < DEVICES;
}

bool device_take(int device, uint64_t bytes)
{
	struct device *d = &devices[device];
	if (bytes > d->total)
		return false;
	if ((uint64_t)atomic_fetch_add(&d->used, (int64_t)bytes) + bytes <= d->total)
		return true;
	atomic_fetch_sub(&d->used, (int64_t)bytes);
	return false;
}

void device_give(int device, uint64_t bytes)
{
	atomic_fetch_sub(&devices[device].used, (int64_t)bytes);
}

static CUresult init(unsigned int flags)
{
	if (flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	kernel_open();
	atomic_store(&initialized, true);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuInit(unsigned int flags)
{
	CALL_UNINITIALIZED(cuInit, init(flags));
}

static const struct {
	CUresult code;
	const char *text;
} errors[] = {
	{CUDA_SUCCESS, "no error"},
	{CUDA_ERROR_INVALID_VALUE, "invalid argument"},
	{CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
	{CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
	{CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
	{CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
	{CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"},
	{CUDA_ERROR_NOT_FOUND, "named symbol not found"},
	{CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"},
	{CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"},
	{CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"},
	{CUDA_ERROR_NOT_SUPPORTED, "operation not supported"},
};

static CUresult describe(CUresult error, const char **text)
{
	*text = NULL;
	for (size_t i = 0; i < sizeof errors / sizeof *errors && !*text; i++)
		if (errors[i].code == error)
			*text = errors[i].text;
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
	CALL_UNINITIALIZED(cuGetErrorString, describe(error, text));
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
	CALL(cuDeviceGetCount, 0, (*count = DEVICES, CUDA_SUCCESS));
}

#ifndef TESTCUDA_OLD
EXPORT CUresult cuGetProcAddress(const char *base, void **out, int version, uint64_t flags)
{
	CALL_UNINITIALIZED(cuGetProcAddress, proc_look_up(base, out, version, flags, NULL));
}

EXPORT CUresult cuGetProcAddress_v2(const char *base, void **out, int version, uint64_t flags, CUdriverProcAddressQueryResult *status)
{
	CALL_UNINITIALIZED(cuGetProcAddress_v2, proc_look_up(base, out, version, flags, status));
}
#endif
