"""Holds arrays of a stand-in for Numba: classes with the names and attributes of numba.cuda. It prints what is where, then waits."""
import ctypes
import gc
import json
import os
import sys
import weakref


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
large = DeviceNDArray((1000,), allocate(0x7f0000300000, 400))  # larger than its memory
strange = [DeviceNDArray((3,), None), DeviceNDArray((3,), allocate(0, 400)), DeviceNDArray([3], allocate(0x7f0000400000, 12))]


class DeviceNDArray:  # of somebody else
    def __init__(self, gpu_data):
        self.shape, self.dtype, self.gpu_data = (3,), dtype(float32), gpu_data


other = DeviceNDArray(allocate(0x7f0000500000, 12))
print(json.dumps({"pid": os.getpid(), "objects": len(gc.get_objects()), "truth": truth}), flush=True)
sys.stdin.readline()
