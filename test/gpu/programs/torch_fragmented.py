"""A request that fails because what is free lies in pieces, as sequences that grow leave them.

Each round frees 300 MiB, and keeps 160 MiB in them: what is left of the segment is too small
for the next round. Exits with 3 if the request failed.
"""
import sys

from checkpoint import checkpoint

import torch

MIB = 1 << 20
LIMIT = 2600 * MIB


def empty(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def grow(rounds):
    kept = []
    for _ in range(rounds):
        whole = empty(300)
        del whole
        kept.append(empty(160))
    return kept


def main():
    torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.get_device_properties(0).total_memory)
    checkpoint("ready")
    kept = grow(8)
    failed = False
    try:
        kept.append(empty(500))
    except torch.cuda.OutOfMemoryError:
        failed = True
    checkpoint("asked", failed=failed, peak_reserved=torch.cuda.max_memory_reserved())
    sys.exit(3 if failed else 0)


main()
