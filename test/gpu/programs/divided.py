"""How torch.cuda.memory_snapshot() divides PyTorch's segments."""
import torch

MIB = 1 << 20


def divided():
    """By the class that gpumemtrace has them in, behind the id of the private pool that they are of, if they are."""
    torch.cuda.synchronize()
    out = {}
    for s in torch.cuda.memory_snapshot():
        size, kind, pool = s["total_size"], s["segment_type"], tuple(s["segment_pool_id"])
        page = 0
        if s["is_expandable"]:
            name, page = ("expandable_small", 2 * MIB) if kind == "small" else ("expandable_large", 20 * MIB)
        else:
            name = {2 * MIB: "small", 20 * MIB: "large"}.get(size, "larger")
        whole = "releasable_bytes"
        if pool != (0, 0):
            name, whole = "%d.%d %s" % (*pool, name), "kept_bytes"
        x = out.setdefault(name, dict.fromkeys(
            ("segments", "reserved_bytes", "allocated_bytes", "cached_bytes", "free_blocks", "largest_free_block_bytes", "releasable_bytes", "kept_bytes"), 0))
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
                x[whole] += max(at // page - -(-begin // page), 0) * page
            elif b["size"] == size:
                x[whole] += size
    return out
