"""Tensors in pools of PyTorch's caching allocator: one whose segments come of an allocator that is
built and loaded at run time, one that CUDA's allocator is behind, the private one of a CUDA graph, and
the usual one with the blocks of two streams. It is given where to build the first."""
import sys

import torch
from checkpoint import checkpoint
from divided import divided
from torch_plugin import built


def told(name):
    torch.cuda.synchronize()
    checkpoint(name, reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated(), divided=divided())


def ones(*sizes):
    return [torch.ones(n << 10, device="cuda") for n in sizes]


def trained(x):
    (x * x).sum().backward()


def main():
    checkpoint("ready")
    plugin = torch.cuda.memory.CUDAPluggableAllocator(built(sys.argv[1]), "plugin_malloc", "plugin_free")
    pool, own = torch.cuda.MemPool(plugin.allocator()), torch.cuda.MemPool()
    usual = ones(1, 100, 5000)
    with torch.cuda.use_mem_pool(pool):
        held = ones(1, 7, 300, 3000, 9000)
    with torch.cuda.use_mem_pool(own):
        kept = ones(2, 4000, 6000)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        usual += ones(3, 700)
    told("held")
    del held[1], held[2], usual[0], kept[1]
    told("freed")

    # Once outside of a capture, which loads the kernels.
    x = torch.ones(3000 << 10, device="cuda", requires_grad=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        trained(x)
    torch.cuda.current_stream().wait_stream(side)
    x.grad = None
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(forward):
        made = ones(2, 600, 8000)
        del made[2]
    told("captured")
    with torch.cuda.graph(backward):  # whose gradient another thread makes
        trained(x)
    told("captured_backward")

    held.clear()
    kept.clear()
    made.clear()
    x.grad = None
    del pool, own, forward, backward
    torch.cuda.empty_cache()
    told("dropped")


main()
