"""A training whose tensors are reported as PyTorch's allocator reports them on a GPU, at a hundred
steps a second. Each step holds most in its optimizer, together with a gradient and a loss, which it
made before that. Arguments: the stand-in's libcuda and libc10. It begins after a line of its input,
and ends with that.
"""
import ctypes
import sys
import threading
import time

import torch

cuda, c10 = (ctypes.CDLL(path) for path in sys.argv[1:3])
CUDA = 1  # c10::DeviceType
total, last = 0, 0x7f0000000000


def report(address, size):
    global total
    total += size
    c10._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(
        ctypes.c_void_p(address), ctypes.c_long(size), ctypes.c_ulong(total), ctypes.c_ulong(1 << 30), ctypes.c_short(CUDA))


def make(size):
    global last
    last += size
    report(last, size)
    return last, size


def free(tensor):
    report(tensor[0], -tensor[1])


class SGD(torch.optim.Optimizer):
    def __init__(self):
        super().__init__([torch.nn.Parameter(torch.zeros(8))], {})

    def step(self):
        free(make(12 << 20))


def forward():
    return [make(1 << 20) for _ in range(8)]


def loss():
    return make(4 << 20)


def backward():
    return make(2 << 20)


def train(optimizer, kept):
    """kept has the gradient and the loss of the step before, if there was one."""
    while len(kept) > 1:
        free(kept.pop())
    activations = forward()
    last = loss()
    while kept:
        free(kept.pop())
    for tensor in activations:
        free(tensor)
    kept += [last, backward()]
    optimizer.step()


def end():
    global running
    sys.stdin.read()
    running = False


pointer = ctypes.c_uint64()
for call in (lambda: cuda.cuInit(0), lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(pointer), 0), lambda: cuda.cuCtxSetCurrent(pointer),
             lambda: cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(20 << 20))):
    assert call() == 0
print("loaded", flush=True)
sys.stdin.readline()
parameters = make(100 << 20)
optimizer, running, kept = SGD(), True, []
threading.Thread(target=end).start()
print("ready", flush=True)
while running:
    train(optimizer, kept)
    time.sleep(0.01)
