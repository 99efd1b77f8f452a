"""Memory on the GPU from Vulkan, in a process that has a CUDA context too."""
import ctypes

from checkpoint import checkpoint

import driver

Pointer, U32, U64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
NVIDIA, DEVICE_LOCAL, SIZE = 0x10DE, 1, 256 << 20


class InstanceInfo(ctypes.Structure):  # VkInstanceCreateInfo
    _fields_ = [("type", U32), ("next", Pointer), ("flags", U32), ("application", Pointer),
                ("layers", U32), ("layer_names", Pointer), ("extensions", U32), ("extension_names", Pointer)]


class QueueInfo(ctypes.Structure):  # VkDeviceQueueCreateInfo
    _fields_ = [("type", U32), ("next", Pointer), ("flags", U32), ("family", U32), ("count", U32), ("priorities", Pointer)]


class DeviceInfo(ctypes.Structure):  # VkDeviceCreateInfo
    _fields_ = [("type", U32), ("next", Pointer), ("flags", U32), ("queues", U32), ("queue_infos", Pointer),
                ("layers", U32), ("layer_names", Pointer), ("extensions", U32), ("extension_names", Pointer), ("features", Pointer)]


class MemoryInfo(ctypes.Structure):  # VkMemoryAllocateInfo
    _fields_ = [("type", U32), ("next", Pointer), ("size", U64), ("index", U32)]


class MemoryTypes(ctypes.Structure):  # VkPhysicalDeviceMemoryProperties
    _fields_ = [("count", U32), ("types", U32 * 2 * 32), ("heaps", U32), ("heap", U64 * 2 * 16)]


class Missing(Exception):
    pass


def first_gpu():
    """A Vulkan device on the first GPU of NVIDIA's, and a memory type that is on it alone."""
    try:
        vk = ctypes.CDLL("libvulkan.so.1")
    except OSError as e:
        raise Missing(str(e)) from e

    def call(name, *args):
        if code := getattr(vk, name)(*args):
            raise Missing(f"{name}: {code}")

    instance, n = Pointer(), U32(8)
    call("vkCreateInstance", ctypes.byref(InstanceInfo(type=1)), None, ctypes.byref(instance))
    gpus = (Pointer * 8)()
    call("vkEnumeratePhysicalDevices", instance, ctypes.byref(n), gpus)
    for gpu in gpus[:n.value]:
        properties = (U32 * 512)()  # VkPhysicalDeviceProperties: apiVersion, driverVersion, vendorID
        vk.vkGetPhysicalDeviceProperties(Pointer(gpu), properties)
        if properties[2] == NVIDIA:
            break
    else:
        raise Missing("Vulkan shows no GPU of NVIDIA's")
    types = MemoryTypes()
    vk.vkGetPhysicalDeviceMemoryProperties(Pointer(gpu), ctypes.byref(types))
    index = next(i for i in range(types.count) if types.types[i][0] & DEVICE_LOCAL)
    priority = ctypes.c_float(1)
    queue = QueueInfo(type=2, count=1, priorities=ctypes.addressof(priority))
    info, device = DeviceInfo(type=3, queues=1, queue_infos=ctypes.addressof(queue)), Pointer()
    call("vkCreateDevice", Pointer(gpu), ctypes.byref(info), None, ctypes.byref(device))
    return call, device, index


def main():
    checkpoint("ready")
    driver.retain(0)
    try:
        call, device, index = first_gpu()
    except Missing as e:
        checkpoint("context", missing=str(e))
        return
    checkpoint("context", missing="")
    memory = U64()
    call("vkAllocateMemory", device, ctypes.byref(MemoryInfo(type=5, size=SIZE, index=index)), None, ctypes.byref(memory))
    checkpoint("allocated", bytes=SIZE)


main()
