"""Three ways to run out of memory in PyTorch."""
from checkpoint import checkpoint

import torch

GIB = 1 << 30


def hoard(gib):
    return [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(gib)]


def ask_too_much():
    try:
        torch.empty(400 * GIB, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return "OutOfMemoryError"


def retry_after_freeing_the_cache():
    total = torch.cuda.mem_get_info()[0] // GIB
    big = hoard(total * 2 // 3)
    del big  # stays in PyTorch's cache
    return torch.empty(total // 2 * GIB, dtype=torch.uint8, device="cuda").numel()


def exceed_the_fraction():
    torch.cuda.set_per_process_memory_fraction(0.02)
    try:
        torch.empty(20 * GIB, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return "OutOfMemoryError"


def main():
    checkpoint("ready")
    kept = hoard(3)
    checkpoint("failed", error=ask_too_much(), kept=len(kept))
    checkpoint("retried", got=retry_after_freeing_the_cache())
    torch.cuda.empty_cache()
    checkpoint("fraction", error=exceed_the_fraction())


main()
