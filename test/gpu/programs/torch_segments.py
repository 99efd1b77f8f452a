"""Leaves PyTorch's segments in pieces, says how its own snapshot has them, and asks for more than the largest."""
import torch

from checkpoint import checkpoint

KIB, MIB = 1 << 10, 1 << 20


def divided():
    """How torch.cuda.memory_snapshot() divides the segments, by the class that gpumemtrace has them in."""
    torch.cuda.synchronize()
    out = {}
    for s in torch.cuda.memory_snapshot():
        size, kind = s["total_size"], s["segment_type"]
        page = 0
        if s["is_expandable"]:
            name, page = ("expandable_small", 2 * MIB) if kind == "small" else ("expandable_large", 20 * MIB)
        else:
            name = {2 * MIB: "small", 20 * MIB: "large"}.get(size, "larger")
        x = out.setdefault(name, dict.fromkeys(
            ("segments", "reserved_bytes", "allocated_bytes", "cached_bytes", "free_blocks", "largest_free_block_bytes", "releasable_bytes"), 0))
        x["segments"] += 1
        x["reserved_bytes"] += size
        at = 0
        for b in s["blocks"]:
            begin, at = at, at + b["size"]
            if b["state"] == "active_allocated":
                x["allocated_bytes"] += b["size"]
                continue
            x["cached_bytes"] += b["size"]
            x["free_blocks"] += 1
            x["largest_free_block_bytes"] = max(x["largest_free_block_bytes"], b["size"])
            if page:
                x["releasable_bytes"] += max(at // page - -(-begin // page), 0) * page
            elif b["size"] == size:
                x["releasable_bytes"] += size
    return out


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
