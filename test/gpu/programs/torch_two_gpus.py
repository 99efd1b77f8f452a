"""One process that holds memory on two GPUs."""
from checkpoint import checkpoint

import torch


def main():
    checkpoint("ready")
    held = [torch.empty((i + 1) << 28, device=f"cuda:{i}") for i in range(2)]
    products = [torch.randn(1024, 1024, device=f"cuda:{i}") @ torch.randn(1024, 1024, device=f"cuda:{i}") for i in range(2)]
    for i in range(2):
        torch.cuda.synchronize(i)
    checkpoint("held", reserved=[torch.cuda.memory_reserved(i) for i in range(2)],
               allocated=[torch.cuda.memory_allocated(i) for i in range(2)], n=len(held) + len(products))


main()
