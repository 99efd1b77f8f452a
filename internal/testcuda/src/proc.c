// cuGetProcAddress: from a base name and a CUDA version to the exported symbol
// that the version's header means by that name. The versions are those of
// cudaTypedefs.h. A caller asks for base names only: "cuMemAlloc_v2" is not one.
#define _GNU_SOURCE
#include <string.h>

#include "driver.h"

#define API(name) extern void name(void);
#include "apis.h"
extern void cuIpcOpenMemHandle(void), cuDevicePrimaryCtxReset(void);

// Rows of one base name stand newest first. `stream` rows are for
// CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.
static const struct row {
	const char *base;
	int version;
	void (*symbol)(void);
	bool stream;
} rows[] = {
	{"cuInit", 2000, cuInit, false},
	{"cuDriverGetVersion", 2020, cuDriverGetVersion, false},
	{"cuGetErrorString", 6000, cuGetErrorString, false},
	{"cuGetErrorName", 6000, cuGetErrorName, false},
	{"cuGetProcAddress", 12000, cuGetProcAddress_v2, false},
	{"cuGetProcAddress", 11030, cuGetProcAddress, false},
	{"cuDeviceGet", 2000, cuDeviceGet, false},
	{"cuDeviceGetCount", 2000, cuDeviceGetCount, false},
	{"cuDeviceGetName", 2000, cuDeviceGetName, false},
	{"cuDeviceGetUuid", 11040, cuDeviceGetUuid_v2, false},
	{"cuDeviceGetUuid", 9020, cuDeviceGetUuid, false},
	{"cuDeviceGetPCIBusId", 4010, cuDeviceGetPCIBusId, false},
	{"cuDeviceGetAttribute", 2000, cuDeviceGetAttribute, false},
	{"cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2, false},
	{"cuCtxCreate", 12050, cuCtxCreate_v4, false},
	{"cuCtxCreate", 11040, cuCtxCreate_v3, false},
	{"cuCtxCreate", 3020, cuCtxCreate_v2, false},
	{"cuCtxCreate", 2000, cuCtxCreate, false},
	{"cuCtxDestroy", 4000, cuCtxDestroy_v2, false},
	{"cuCtxDestroy", 2000, cuCtxDestroy, false},
	{"cuCtxSetCurrent", 4000, cuCtxSetCurrent, false},
	{"cuCtxGetCurrent", 4000, cuCtxGetCurrent, false},
	{"cuCtxPushCurrent", 4000, cuCtxPushCurrent_v2, false},
	{"cuCtxPushCurrent", 2000, cuCtxPushCurrent, false},
	{"cuCtxPopCurrent", 4000, cuCtxPopCurrent_v2, false},
	{"cuCtxPopCurrent", 2000, cuCtxPopCurrent, false},
	{"cuCtxGetDevice", 13000, cuCtxGetDevice_v2, false},
	{"cuCtxGetDevice", 2000, cuCtxGetDevice, false},
	{"cuCtxSynchronize", 2000, cuCtxSynchronize, false},
	{"cuCtxSetLimit", 3010, cuCtxSetLimit, false},
	{"cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain, false},
	{"cuDevicePrimaryCtxRelease", 11000, cuDevicePrimaryCtxRelease_v2, false},
	{"cuDevicePrimaryCtxRelease", 7000, cuDevicePrimaryCtxRelease, false},
	{"cuDevicePrimaryCtxReset", 11000, cuDevicePrimaryCtxReset_v2, false},
	{"cuDevicePrimaryCtxReset", 7000, cuDevicePrimaryCtxReset, false},
	{"cuMemAlloc", 3020, cuMemAlloc_v2, false},
	{"cuMemAlloc", 2000, cuMemAlloc, false},
	{"cuMemAllocPitch", 3020, cuMemAllocPitch_v2, false},
	{"cuMemAllocPitch", 2000, cuMemAllocPitch, false},
	{"cuMemAllocManaged", 6000, cuMemAllocManaged, false},
	{"cuMemAllocHost", 3020, cuMemAllocHost_v2, false},
	{"cuMemAllocHost", 2000, cuMemAllocHost, false},
	{"cuMemHostAlloc", 2020, cuMemHostAlloc, false},
	{"cuMemHostRegister", 6050, cuMemHostRegister_v2, false},
	{"cuMemHostRegister", 4000, cuMemHostRegister, false},
	{"cuMemHostUnregister", 4000, cuMemHostUnregister, false},
	{"cuMemFree", 3020, cuMemFree_v2, false},
	{"cuMemFree", 2000, cuMemFree, false},
	{"cuMemFreeHost", 2000, cuMemFreeHost, false},
	{"cuMemGetInfo", 3020, cuMemGetInfo_v2, false},
	{"cuMemGetInfo", 2000, cuMemGetInfo, false},
	{"cuArrayCreate", 3020, cuArrayCreate_v2, false},
	{"cuArrayCreate", 2000, cuArrayCreate, false},
	{"cuArray3DCreate", 3020, cuArray3DCreate_v2, false},
	{"cuArray3DCreate", 2000, cuArray3DCreate, false},
	{"cuArrayDestroy", 2000, cuArrayDestroy, false},
	{"cuMipmappedArrayCreate", 5000, cuMipmappedArrayCreate, false},
	{"cuMipmappedArrayDestroy", 5000, cuMipmappedArrayDestroy, false},
	{"cuMemAddressReserve", 10020, cuMemAddressReserve, false},
	{"cuMemAddressFree", 10020, cuMemAddressFree, false},
	{"cuMemCreate", 10020, cuMemCreate, false},
	{"cuMulticastCreate", 12010, cuMulticastCreate, false},
	{"cuMemRelease", 10020, cuMemRelease, false},
	{"cuMemRetainAllocationHandle", 11000, cuMemRetainAllocationHandle, false},
	{"cuMemExportToShareableHandle", 10020, cuMemExportToShareableHandle, false},
	{"cuMemImportFromShareableHandle", 10020, cuMemImportFromShareableHandle, false},
	{"cuMemMap", 10020, cuMemMap, false},
	{"cuMemMapArrayAsync", 11010, cuMemMapArrayAsync_ptsz, true},
	{"cuMemMapArrayAsync", 11010, cuMemMapArrayAsync, false},
	{"cuMemUnmap", 10020, cuMemUnmap, false},
	{"cuMemSetAccess", 10020, cuMemSetAccess, false},
	{"cuMemGetAllocationGranularity", 10020, cuMemGetAllocationGranularity, false},
	{"cuMemAllocAsync", 11020, cuMemAllocAsync_ptsz, true},
	{"cuMemAllocAsync", 11020, cuMemAllocAsync, false},
	{"cuMemAllocFromPoolAsync", 11020, cuMemAllocFromPoolAsync_ptsz, true},
	{"cuMemAllocFromPoolAsync", 11020, cuMemAllocFromPoolAsync, false},
	{"cuMemFreeAsync", 11020, cuMemFreeAsync_ptsz, true},
	{"cuMemFreeAsync", 11020, cuMemFreeAsync, false},
	{"cuMemPoolCreate", 11020, cuMemPoolCreate, false},
	{"cuMemPoolDestroy", 11020, cuMemPoolDestroy, false},
	{"cuMemPoolTrimTo", 11020, cuMemPoolTrimTo, false},
	{"cuMemPoolExportPointer", 11020, cuMemPoolExportPointer, false},
	{"cuMemPoolImportPointer", 11020, cuMemPoolImportPointer, false},
	{"cuDeviceGetDefaultMemPool", 11020, cuDeviceGetDefaultMemPool, false},
	{"cuDeviceGetMemPool", 11020, cuDeviceGetMemPool, false},
	{"cuIpcGetMemHandle", 4010, cuIpcGetMemHandle, false},
	{"cuIpcOpenMemHandle", 11000, cuIpcOpenMemHandle_v2, false},
	{"cuIpcOpenMemHandle", 4010, cuIpcOpenMemHandle, false},
	{"cuIpcCloseMemHandle", 4010, cuIpcCloseMemHandle, false},
	{"cuImportExternalMemory", 10000, cuImportExternalMemory, false},
	{"cuDestroyExternalMemory", 10000, cuDestroyExternalMemory, false},
	{"cuExternalMemoryGetMappedBuffer", 10000, cuExternalMemoryGetMappedBuffer, false},
	{"cuExternalMemoryGetMappedMipmappedArray", 10000, cuExternalMemoryGetMappedMipmappedArray, false},
	{"cuGraphCreate", 10000, cuGraphCreate, false},
	{"cuGraphDestroy", 10000, cuGraphDestroy, false},
	{"cuGraphAddMemAllocNode", 11040, cuGraphAddMemAllocNode, false},
	{"cuGraphAddMemFreeNode", 11040, cuGraphAddMemFreeNode, false},
	{"cuGraphAddNode", 12030, cuGraphAddNode_v2, false},
	{"cuGraphAddNode", 12020, cuGraphAddNode, false},
	{"cuStreamBeginCapture", 10010, cuStreamBeginCapture_v2_ptsz, true},
	{"cuStreamBeginCapture", 10010, cuStreamBeginCapture_v2, false},
	{"cuStreamBeginCapture", 10000, cuStreamBeginCapture_ptsz, true},
	{"cuStreamBeginCapture", 10000, cuStreamBeginCapture, false},
	{"cuStreamBeginCaptureToGraph", 12030, cuStreamBeginCaptureToGraph_ptsz, true},
	{"cuStreamBeginCaptureToGraph", 12030, cuStreamBeginCaptureToGraph, false},
	{"cuStreamEndCapture", 10000, cuStreamEndCapture_ptsz, true},
	{"cuStreamEndCapture", 10000, cuStreamEndCapture, false},
	{"cuStreamIsCapturing", 10000, cuStreamIsCapturing_ptsz, true},
	{"cuStreamIsCapturing", 10000, cuStreamIsCapturing, false},
	{"cuGraphInstantiateWithFlags", 11040, cuGraphInstantiateWithFlags, false},
	{"cuGraphInstantiate", 12000, cuGraphInstantiateWithFlags, false},
	{"cuGraphExecDestroy", 10000, cuGraphExecDestroy, false},
	{"cuDeviceGraphMemTrim", 11040, cuDeviceGraphMemTrim, false},
	{"cuModuleLoadData", 2000, cuModuleLoadData, false},
	{"cuModuleUnload", 2000, cuModuleUnload, false},
	{"cuLibraryLoadData", 12000, cuLibraryLoadData, false},
	{"cuLibraryUnload", 12000, cuLibraryUnload, false},
};

CUresult proc_look_up(const char *base, void **out, int version, uint64_t flags, CUdriverProcAddressQueryResult *status)
{
	CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	if (!base || !out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	for (size_t i = 0; i < sizeof rows / sizeof *rows && !*out; i++) {
		if (strcmp(rows[i].base, base) != 0 || (rows[i].stream && !(flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)))
			continue;
		found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		if (rows[i].version <= version)
			*out = (void *)rows[i].symbol;
	}
	if (status)
		*status = *out ? CU_GET_PROC_ADDRESS_SUCCESS : found;
	return *out || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
