"""CUDA's driver API call by call, through cuda-python.

At each checkpoint, want is the bytes of device memory that the program holds, where it
says so, and contexts the number of its contexts.
"""
import numpy as np
from cuda.bindings import driver as d
from cuda.bindings import nvrtc

from checkpoint import checkpoint

KIB, MIB = 1 << 10, 1 << 20
SOURCE = br'''
extern "C" __global__ void plain(int *p) { if (p) p[threadIdx.x] = 1; }
extern "C" __global__ void deep(int *p) {
    int a[1024], s = 0;
    for (int i = 0; i < 100; i++) a[i * 7 % 1024] = i + p[i % 8];
    for (int i = 0; i < 100; i++) s += a[i * 13 % 1024];
    p[0] = s;
}
extern "C" __global__ void prints() { printf("%d\n", threadIdx.x); }
extern "C" __global__ void mallocs(int **p) { *p = (int *)malloc(100); }
'''


def ok(result):
    """What a call returned beside its code."""
    if int(result[0]):
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) > 1 else None


def linear_memory():
    small = [ok(d.cuMemAlloc(KIB)) for _ in range(3)]
    checkpoint("3 of 1 KiB", want=3 * KIB)
    large = ok(d.cuMemAlloc(100 * MIB))
    odd = ok(d.cuMemAlloc(MIB + 5))
    middle = [ok(d.cuMemAlloc(300 * KIB)) for _ in range(10)]
    checkpoint("and larger ones", want=3003 * KIB + 101 * MIB + 5)
    for p in [*middle, odd, large]:
        ok(d.cuMemFree(p))
    checkpoint("larger ones freed", want=3 * KIB)
    for p in small:
        ok(d.cuMemFree(p))
    checkpoint("all freed", want=0)


def host_and_managed_memory():
    page = ok(d.cuMemHostAlloc(10 * MIB, 0))
    managed = ok(d.cuMemAllocManaged(8 * MIB, 1))
    checkpoint("host and managed memory", want=0)
    ok(d.cuMemsetD8(managed, 1, 8 * MIB))
    ok(d.cuCtxSynchronize())
    checkpoint("managed memory on the GPU", want=0)
    ok(d.cuMemFree(managed))
    ok(d.cuMemFreeHost(page))
    checkpoint("both freed", want=0)


def streams_and_events(target):
    streams = [ok(d.cuStreamCreate(0)) for _ in range(4)] + [ok(d.cuStreamCreateWithPriority(1, -1)) for _ in range(2)]
    checkpoint("6 streams")
    events = [ok(d.cuEventCreate(0)) for _ in range(2000)]
    checkpoint("2000 events")
    for s in streams:
        ok(d.cuMemsetD8Async(target, 1, KIB, s))
    ok(d.cuCtxSynchronize())
    checkpoint("streams used")
    for e in events:
        ok(d.cuEventDestroy(e))
    checkpoint("events destroyed")
    return streams


def code(device, target):
    major, minor = (ok(d.cuDeviceGetAttribute(getattr(d.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_" + x), device))
                    for x in ("MAJOR", "MINOR"))
    program = ok(nvrtc.nvrtcCreateProgram(SOURCE, b"program.cu", 0, [], []))
    ok(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=sm_{major}{minor}".encode()]))
    cubin = b" " * ok(nvrtc.nvrtcGetCUBINSize(program))
    ok(nvrtc.nvrtcGetCUBIN(program, cubin))
    module = ok(d.cuModuleLoadData(cubin))
    checkpoint("module loaded")
    pointer = np.array([int(target)], dtype=np.uint64)
    argument = np.array([pointer.ctypes.data], dtype=np.uint64)

    def launch(name, at=""):
        function = ok(d.cuModuleGetFunction(module, name.encode()))
        ok(d.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, 0 if name == "prints" else argument.ctypes.data, 0))
        ok(d.cuCtxSynchronize())
        checkpoint(name + " launched" + at)

    for name in "plain", "deep", "prints", "mallocs":
        launch(name)
    for what, n in ("STACK_SIZE", 16 * KIB), ("MALLOC_HEAP_SIZE", 64 * MIB), ("PRINTF_FIFO_SIZE", 32 * MIB):
        d.cuCtxSetLimit(getattr(d.CUlimit, "CU_LIMIT_" + what), n)  # refused where a kernel has used it
    checkpoint("limits set")
    launch("deep", " again")
    ok(d.cuModuleUnload(module))
    checkpoint("module unloaded")


def pools(device, stream):
    a, b = ok(d.cuMemAllocAsync(5 * MIB, stream)), ok(d.cuMemAllocAsync(50 * MIB, stream))
    checkpoint("stream-ordered", want=56 * MIB)
    ok(d.cuMemFreeAsync(a, stream))
    ok(d.cuMemFreeAsync(b, stream))
    ok(d.cuCtxSynchronize())
    checkpoint("stream-ordered freed", want=MIB)
    ok(d.cuMemPoolTrimTo(ok(d.cuDeviceGetDefaultMemPool(device)), 0))
    props = d.CUmemPoolProps()
    props.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type, props.location.id = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, int(device)
    pool = ok(d.cuMemPoolCreate(props))
    a = ok(d.cuMemAllocFromPoolAsync(7 * MIB, pool, stream))
    checkpoint("from a pool", want=8 * MIB)
    ok(d.cuMemFreeAsync(a, stream))
    ok(d.cuMemPoolDestroy(pool))
    ok(d.cuCtxSynchronize())
    checkpoint("pool destroyed", want=MIB)


def virtual_memory(device):
    prop = d.CUmemAllocationProp()
    prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type, prop.location.id = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, int(device)
    size = 20 * MIB
    handle = ok(d.cuMemCreate(size, prop, 0))
    checkpoint("physical memory", want=21 * MIB)
    address = ok(d.cuMemAddressReserve(size, 0, 0, 0))
    ok(d.cuMemMap(address, size, 0, handle, 0))
    access = d.CUmemAccessDesc()
    access.location.type, access.location.id = prop.location.type, int(device)
    access.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(d.cuMemSetAccess(address, size, [access], 1))
    ok(d.cuMemRelease(handle))
    checkpoint("mapped, its handle released", want=21 * MIB)
    ok(d.cuMemUnmap(address, size))
    ok(d.cuMemAddressFree(address, size))
    checkpoint("unmapped", want=MIB)


def graph(ctx, target, stream):
    g = ok(d.cuGraphCreate(0))
    node = d.CUDA_MEMSET_NODE_PARAMS()
    node.dst, node.elementSize, node.width, node.height, node.value = target, 1, KIB, 1, 1
    for _ in range(50):
        ok(d.cuGraphAddMemsetNode(g, [], 0, node, ctx))
    ready = ok(d.cuGraphInstantiate(g, 0))
    checkpoint("graph instantiated")
    ok(d.cuGraphLaunch(ready, stream))
    ok(d.cuCtxSynchronize())
    checkpoint("graph launched")
    ok(d.cuGraphExecDestroy(ready))
    ok(d.cuGraphDestroy(g))
    checkpoint("graph destroyed")


def array():
    shape = d.CUDA_ARRAY_DESCRIPTOR()
    shape.Width, shape.Height, shape.NumChannels = 1024, 1024, 4
    shape.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT
    a = ok(d.cuArrayCreate(shape))
    checkpoint("array", want=17 * MIB)
    ok(d.cuArrayDestroy(a))
    checkpoint("array destroyed", want=MIB)


def second_context(device, first):
    try:
        other = ok(d.cuCtxCreate(None, 0, device))
    except TypeError:  # before CUDA 13
        other = ok(d.cuCtxCreate(0, device))
    checkpoint("second context", contexts=2)
    ok(d.cuMemAlloc(5 * MIB))
    checkpoint("5 MiB in it", want=6 * MIB, contexts=2)
    ok(d.cuCtxDestroy(other))
    ok(d.cuCtxSetCurrent(first))
    checkpoint("second context destroyed", want=MIB)


def main():
    checkpoint("ready")
    ok(d.cuInit(0))
    device = ok(d.cuDeviceGet(0))
    ctx = ok(d.cuDevicePrimaryCtxRetain(device))
    ok(d.cuCtxSetCurrent(ctx))
    checkpoint("context", want=0)
    linear_memory()
    host_and_managed_memory()
    target = ok(d.cuMemAlloc(MIB))
    streams = streams_and_events(target)
    code(device, target)
    pools(device, streams[0])
    virtual_memory(device)
    graph(ctx, target, streams[0])
    array()
    second_context(device, ctx)
    for s in streams:
        ok(d.cuStreamDestroy(s))
    checkpoint("streams destroyed", want=MIB)
    ok(d.cuDevicePrimaryCtxReset(device))
    checkpoint("reset", want=0)
    ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(device))))
    checkpoint("again", want=0)
    checkpoint("end")


main()
