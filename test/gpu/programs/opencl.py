"""Memory from OpenCL, whose library asks the kernel driver itself."""
import ctypes
import os
import tempfile

from checkpoint import checkpoint

Pointer, U32, U64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
GPU, SIZE = 1 << 2, 256 << 20


class Missing(Exception):
    pass


def library():
    """The loader of OpenCL's libraries, made to find NVIDIA's."""
    vendors = tempfile.mkdtemp()
    with open(os.path.join(vendors, "nvidia.icd"), "w") as f:
        f.write("libnvidia-opencl.so.1\n")
    os.environ["OCL_ICD_VENDORS"] = vendors
    try:
        return ctypes.CDLL("libOpenCL.so.1")
    except OSError as e:
        raise Missing(str(e)) from e


def main():
    checkpoint("ready", vendor="")
    try:
        cl = library()

        def need(code, what):
            if code:
                raise Missing(f"{what}: {code}")

        def make(name, *args):
            function, code = getattr(cl, name), ctypes.c_int()
            function.restype = Pointer
            out = function(*args, ctypes.byref(code))
            need(code.value, name)
            return Pointer(out)

        platforms, device, n = (Pointer * 8)(), Pointer(), U32()
        need(cl.clGetPlatformIDs(8, platforms, ctypes.byref(n)), "clGetPlatformIDs")
        for platform in platforms[:n.value]:
            code = cl.clGetDeviceIDs(Pointer(platform), U64(GPU), 1, ctypes.byref(device), None)
            if not code:
                break
        need(code, "clGetDeviceIDs")
        context = make("clCreateContext", None, 1, ctypes.byref(device), None, None)
        queue = make("clCreateCommandQueue", context, device, U64(0))
    except Missing as e:
        checkpoint("context", missing=str(e), contexts=None)
        return
    with open("/proc/self/maps") as f:
        libcuda = "libcuda.so" in f.read()
    checkpoint("context", missing="", libcuda=libcuda, contexts=None)
    buffer = make("clCreateBuffer", context, U64(1), ctypes.c_size_t(SIZE), None)
    zero = U32(0)
    cl.clEnqueueFillBuffer(queue, buffer, ctypes.byref(zero), ctypes.c_size_t(4), ctypes.c_size_t(0), ctypes.c_size_t(SIZE), 0, None, None)
    cl.clFinish(queue)
    checkpoint("filled", bytes=SIZE, contexts=None)
    cl.clReleaseMemObject(buffer)
    checkpoint("released", contexts=None)


main()
