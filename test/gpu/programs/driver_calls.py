"""Calls of the driver's own, as a program makes them that manages contexts itself."""
import ctypes
import sys

from checkpoint import checkpoint
from driver import MIB, call, device_memory, retain


class Location(ctypes.Structure):  # CUmemLocation
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProp(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
                ("security", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


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


{"empty": empty, "retain": retained, "client": client, "reset": reset, "contexts": contexts}[sys.argv[1]]()
