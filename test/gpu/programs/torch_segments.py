"""Leaves PyTorch's segments in pieces, says how its own snapshot has them, and asks for more than the largest."""
import torch

from checkpoint import checkpoint
from divided import divided

KIB, MIB = 1 << 10, 1 << 20


def make(n, size):
    return [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(n)]


def say(name):
    checkpoint(name, reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated(), divided=divided())


def one_more():
    try:
        return torch.empty(16 * MIB, dtype=torch.uint8, device="cuda").numel()
    except torch.cuda.OutOfMemoryError:
        return "OutOfMemoryError"


def main():
    checkpoint("ready")
    small, large, larger = make(100, 100 * KIB), make(30, 6 * MIB), make(5, 33 * MIB)
    say("whole")
    del small[::3], large[1::3], large[1::2], larger[1:3]
    say("pieces")
    del small[:40], larger[:]
    say("released")
    torch.cuda.empty_cache()
    say("emptied")
    held = torch.cuda.memory_reserved() + 4 * MIB
    torch.cuda.set_per_process_memory_fraction(held / torch.cuda.get_device_properties(0).total_memory)
    checkpoint("asked", got=one_more(), divided=divided())


main()
