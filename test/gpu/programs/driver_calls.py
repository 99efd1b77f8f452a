"""Calls of the driver's own, as a program makes them that manages contexts itself."""
import ctypes
import sys

from checkpoint import checkpoint
from driver import MIB, AllocationProp, Location, call, device_memory, retain


def pool_memory(mib):
    p = ctypes.c_uint64()
    call("cuMemAllocAsync", ctypes.byref(p), ctypes.c_size_t(mib * MIB), None)
    return p


def physical_memory(mib):
    handle, prop = ctypes.c_uint64(), AllocationProp(type=1, location=Location(1, 0))
    call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(mib * MIB), ctypes.byref(prop), ctypes.c_uint64(0))
    return handle


def empty():
    """A context on the device that is given, and no more."""
    retain(int(sys.argv[2]))
    checkpoint("empty")


def retained():
    """The same on device 0, traced, after cuInit if 'init' is given."""
    if "init" in sys.argv:
        call("cuInit", 0)
    checkpoint("ready")
    retain(0)
    checkpoint("retained")


def client():
    """As many MiB as are given, from a process that is traced before it is a client of MPS."""
    checkpoint("ready")
    retain(0)
    device_memory(int(sys.argv[2]))
    checkpoint("held")


def reset():
    """What a primary context's reset ends, and what it leaves. With 'late' the context, and
    some of the memory that allocations lie in, is older than the trace."""
    if "late" in sys.argv:
        retain(0)
        device_memory(1)
    checkpoint("ready")
    if "late" in sys.argv:
        device_memory(1)
    else:
        retain(0)
    device_memory(64)
    pool_memory(16)
    physical_memory(32)
    checkpoint("held")
    call("cuDevicePrimaryCtxReset_v2", 0)
    checkpoint("reset")


def contexts():
    """Another context comes and goes while the first one holds memory."""
    other = ctypes.c_void_p()
    retain(0)
    checkpoint("ready")
    device_memory(512)
    checkpoint("held")
    call("cuCtxCreate_v2", ctypes.byref(other), 0, 0)
    device_memory(8)
    call("cuCtxDestroy_v2", other)
    checkpoint("destroyed")


class PoolProps(ctypes.Structure):  # CUmemPoolProps
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location), ("security", ctypes.c_void_p),
                ("max_size", ctypes.c_size_t), ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 54)]


def from_pool(pool, mib):
    p = ctypes.c_uint64()
    call("cuMemAllocFromPoolAsync", ctypes.byref(p), ctypes.c_size_t(mib * MIB), pool, None)
    call("cuStreamSynchronize", None)
    return p


def pools():
    """Pools on the host, on a NUMA node, and on a GPU, which may be another than the thread's; the
    default pool by its handle and without; and one that is set."""
    place, number = (int(x) for x in sys.argv[2:4])
    checkpoint("ready")
    retain(0)
    pool, props = ctypes.c_uint64(), PoolProps(type=1, location=Location(place, number))
    call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(props))
    from_pool(pool, 256)
    checkpoint("pool")
    default = ctypes.c_uint64()
    call("cuDeviceGetDefaultMemPool", ctypes.byref(default), 0)
    pool_memory(64)
    from_pool(default, 64)
    checkpoint("default")
    if place == 1 and number == 0:
        call("cuDeviceSetMemPool", 0, pool)
        pool_memory(16)
        checkpoint("set")


def endings():
    """Contexts that end by a detach, that are attached to, and green ones."""
    checkpoint("ready")
    retain(0)
    other, same = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuCtxCreate_v2", ctypes.byref(other), 0, 0)
    device_memory(300)
    call("cuCtxAttach", ctypes.byref(same), 0)
    call("cuCtxDetach", other)
    checkpoint("attached", contexts=2)
    call("cuCtxDetach", other)
    device_memory(100)
    checkpoint("detached")
    resource, parts, n, desc, green = (ctypes.c_ubyte * 256)(), (ctypes.c_ubyte * 2048)(), ctypes.c_uint(2), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDeviceGetDevResource", 0, resource, 1)
    call("cuDevSmResourceSplitByCount", parts, ctypes.byref(n), resource, None, 0, 16)
    call("cuDevResourceGenerateDesc", ctypes.byref(desc), parts, 1)
    call("cuGreenCtxCreate", ctypes.byref(green), desc, 0, 1)
    ctx, stream = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuCtxFromGreenCtx", ctypes.byref(ctx), green)
    call("cuCtxSetCurrent", ctx)
    device_memory(50)
    call("cuGreenCtxStreamCreate", ctypes.byref(stream), green, 1, 0)
    checkpoint("green", contexts=None)
    call("cuGreenCtxDestroy", green)
    checkpoint("green destroyed", contexts=None)


{"pools": pools, "endings": endings, "empty": empty, "retain": retained, "client": client, "reset": reset, "contexts": contexts}[sys.argv[1]]()
