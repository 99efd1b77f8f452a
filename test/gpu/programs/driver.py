"""CUDA's driver API through ctypes."""
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20


class Location(ctypes.Structure):  # CUmemLocation
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProp(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
                ("security", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


def call(name, *args):
    code = getattr(cuda, name)(*args)
    if code != 0:
        raise RuntimeError(f"{name}: {code}")


def retain(device):
    """Makes the device's primary context current."""
    call("cuInit", 0)
    ctx = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(ctx), device)
    call("cuCtxSetCurrent", ctx)
    return ctx


def device_memory(mib):
    p = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t(mib * MIB))
    return p
