"""Tensors in pools of PyTorch's caching allocator: one whose segments come of an allocator that is
built and loaded at run time, the private one of a stream's captured work, and the usual one. It is
given where to build the first."""
import sys

import torch
from checkpoint import checkpoint
from torch_plugin import built


def told(name):
    torch.cuda.synchronize()
    checkpoint(name, reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated())


def main():
    checkpoint("ready")
    plugin = torch.cuda.memory.CUDAPluggableAllocator(built(sys.argv[1]), "plugin_malloc", "plugin_free")
    pool = torch.cuda.MemPool(plugin.allocator())
    usual = [torch.ones(n << 10, device="cuda") for n in (1, 100, 5000)]
    with torch.cuda.use_mem_pool(pool):
        held = [torch.ones(n << 10, device="cuda") for n in (1, 7, 300, 3000, 9000)]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        usual += [torch.ones(n << 10, device="cuda") for n in (3, 700)]
    told("held")
    del held[1], held[2], usual[0]
    told("freed")
    held.clear()
    del pool
    torch.cuda.empty_cache()
    told("dropped")


main()
