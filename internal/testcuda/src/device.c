// Initialization, devices, errors and symbol lookup.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#ifdef TESTCUDA_OLD
#define DRIVER_VERSION 10010
#else
#define DRIVER_VERSION 13000
#endif

struct device devices[MAX_DEVICES];
int num_devices;

void devices_reset(void)
{
	const char *total = getenv("TESTCUDA_TOTAL"), *count = getenv("TESTCUDA_DEVICES");
	num_devices = count ? atoi(count) : 2;
	if (num_devices < 0 || num_devices > MAX_DEVICES)
		num_devices = MAX_DEVICES;
	for (int d = 0; d < MAX_DEVICES; d++) {
		devices[d].total = total ? strtoull(total, NULL, 0) : 80ull << 30;
		atomic_store(&devices[d].used, 0);
	}
}

bool device_valid(CUdevice device)
{
	return device >= 0 && device < num_devices;
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
	atomic_store(&initialized, true);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuInit(unsigned int flags)
{
	CALL_UNINITIALIZED(cuInit, init(flags));
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
	CALL_UNINITIALIZED(cuDriverGetVersion, version ? (*version = DRIVER_VERSION, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE);
}

static const struct {
	CUresult code;
	const char *name, *text;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
	{CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
	{CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
	{CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
	{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

static CUresult describe(CUresult error, const char **out, bool name)
{
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
		if (errors[i].code == error) {
			*out = name ? errors[i].name : errors[i].text;
			return CUDA_SUCCESS;
		}
	}
	*out = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
	CALL_UNINITIALIZED(cuGetErrorString, describe(error, text, false));
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
	CALL_UNINITIALIZED(cuGetErrorName, describe(error, name, true));
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
	CALL(cuDeviceGetCount, 0, (*count = num_devices, CUDA_SUCCESS));
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CALL(cuDeviceGet, 0, device_valid(ordinal) ? (*device = ordinal, CUDA_SUCCESS) : CUDA_ERROR_INVALID_DEVICE);
}

#define ON_DEVICE(device, expr) (device_valid(device) ? ((expr), CUDA_SUCCESS) : CUDA_ERROR_INVALID_DEVICE)

EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
	CALL(cuDeviceGetName, 0, ON_DEVICE(device, snprintf(name, len, "gpumemtrace stand-in GPU")));
}

static void uuid(CUuuid *out, CUdevice device)
{
	memcpy(out->bytes, "testcuda GPU 00", 16);
	out->bytes[14] += device;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device)
{
	CALL(cuDeviceGetUuid, 0, ON_DEVICE(device, uuid(out, device)));
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice device)
{
	CALL(cuDeviceGetUuid_v2, 0, ON_DEVICE(device, uuid(out, device)));
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice device)
{
	CALL(cuDeviceGetPCIBusId, 0, ON_DEVICE(device, snprintf(id, len, "0000:%02x:00.0", device + 1)));
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	(void)attribute;
	CALL(cuDeviceGetAttribute, 0, ON_DEVICE(device, *value = 1));
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CALL(cuDeviceTotalMem_v2, 0, ON_DEVICE(device, *bytes = devices[device].total));
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
