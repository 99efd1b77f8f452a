"""Holds arrays of a stand-in for Numba: classes with the names and attributes of numba.cuda. It prints what is where, then waits."""
import collections
import ctypes
import gc
import json
import os
import sys
import weakref

import words


class float32:
    pass


class dtype:
    __slots__ = ("type",)

    def __init__(self, t):
        self.type = t


class Device:
    id = None


class Context:
    def __init__(self, device):
        self.device, self.allocations = device, {}


class MemoryPointer:
    def __init__(self, context, pointer, size):
        self.context, self.device_pointer, self.size = context, pointer, size


class OwnedPointer:
    def __init__(self, memory, view=None):
        self._mem, self._view = memory, view or memory


class DeviceNDArray:
    __module__ = "numba.cuda.cudadrv.devicearray"

    def __init__(self, shape, gpu_data):
        self.shape, self.dtype, self.gpu_data = shape, dtype(float32), gpu_data


context = Context(Device())
context.device.id = 1
truth = {}


def allocate(address, size):
    context.allocations[address] = MemoryPointer(weakref.proxy(context), ctypes.c_size_t(address), size)
    return OwnedPointer(weakref.proxy(context.allocations[address]))


def says(path, array, address, bytes, shape):
    truth[path] = dict(address=address, bytes=bytes, shape=shape, klass="DeviceNDArray", device=1)
    return array


batches = [says("batches[%d]" % i, DeviceNDArray((100, 7), allocate(0x7f0000000000 + i * 4096, 2800)), 0x7f0000000000 + i * 4096, 2800, [100, 7])
           for i in range(3)]
whole = says("whole", DeviceNDArray((1000,), allocate(0x7f0000100000, 4000)), 0x7f0000100000, 4000, [1000])
part = DeviceNDArray((10,), OwnedPointer(whole.gpu_data._mem, MemoryPointer(whole.gpu_data._mem.context, ctypes.c_size_t(0x7f0000100100), 40)))
external = says("external", DeviceNDArray((3,), MemoryPointer(context, ctypes.c_size_t(0x7f0000200000), 16)), 0x7f0000200000, 16, [3])
Pointer = words.type("cuda.bindings.driver.CUdeviceptr", 2, 0, 0)  # its value, and the value's address
bound = Pointer()
words.fill(bound, 0x7f0000280000, id(bound) + 16)
truth["binding"] = dict(address=0x7f0000280000, bytes=12, shape=[3], klass="DeviceNDArray", device=1)
binding = DeviceNDArray((3,), MemoryPointer(context, bound, 12))
large = DeviceNDArray((1000,), allocate(0x7f0000300000, 400))  # larger than its memory
strange = [DeviceNDArray((3,), None), DeviceNDArray((3,), allocate(0, 400)), DeviceNDArray([3], allocate(0x7f0000400000, 12))]


class _PendingDeallocs:
    def __init__(self):
        self._cons, self._size = collections.deque(), 0

    def add_item(self, dtor, handle, size=0):
        self._cons.append((dtor, handle, size))
        self._size += int(size)


class BaseCUDAMemoryManager:
    __module__ = "numba.cuda.cudadrv.driver"


class HostOnlyCUDAMemoryManager(BaseCUDAMemoryManager):
    def __init__(self, context):
        self.context, self.deallocations = context, _PendingDeallocs()


class _SizeNotSet(int):
    pass


def cuMemFree_v2(handle):
    pass


def cuMemFreeHost(handle):
    pass


def cuModuleUnload(handle):
    pass


manager, liar = HostOnlyCUDAMemoryManager(context), HostOnlyCUDAMemoryManager(context)
for i in range(100):
    manager.deallocations.add_item(cuMemFree_v2, ctypes.c_uint64(0x7f0000600000 + 4096 * i), 4096)
manager.deallocations.add_item(cuMemFreeHost, ctypes.c_void_p(0x7e0000000000), 4096)
manager.deallocations.add_item(cuModuleUnload, ctypes.c_void_p(0x7e0000001000), _SizeNotSet(0))
liar.deallocations.add_item(cuMemFree_v2, ctypes.c_uint64(0x7f0000700000), 4096)
liar.deallocations._size = 8192


class DeviceNDArray:  # of somebody else
    def __init__(self, gpu_data):
        self.shape, self.dtype, self.gpu_data = (3,), dtype(float32), gpu_data


other = DeviceNDArray(allocate(0x7f0000500000, 12))
print(json.dumps({"pid": os.getpid(), "objects": len(gc.get_objects()), "truth": truth}), flush=True)
sys.stdin.readline()
