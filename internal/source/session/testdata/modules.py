"""A model of PyTorch's modules whose forward reports tensors on a GPU, as PyTorch's allocator
does. Arguments: the stand-in's libcuda and libc10. Each line of input frees what the forward
before made, and runs another one.
"""
import ctypes
import sys

import torch

cuda, c10 = (ctypes.CDLL(path) for path in sys.argv[1:3])
CUDA = 1  # c10::DeviceType
live = []


def report(address, size):
    total = sum(n for _, n in live)
    c10._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(
        ctypes.c_void_p(address), ctypes.c_long(size), ctypes.c_ulong(total), ctypes.c_ulong(1 << 30), ctypes.c_short(CUDA))


def make(size):
    address = 0x7f0000000000 + (len(live) << 24)
    live.append((address, size))
    report(address, size)


def free():
    while live:
        address, size = live.pop()
        report(address, -size)


class Part(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.bias = size, torch.nn.Parameter(torch.zeros(8))

    def forward(self):
        make(self.size)


class Block(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.mlp = Part(n << 20)
        self.n = n

    def forward(self):
        self.mlp()
        make(self.n << 12)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(n + 1) for n in range(4)])

    def forward(self):
        for block in self.blocks:
            block()
        Part(1 << 16)()  # no object holds this module


model = Net()
print("ready", flush=True)
for _ in sys.stdin:
    free()
    model()
    make(512)
    print("done", flush=True)
