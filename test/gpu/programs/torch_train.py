"""A PyTorch training job: a Transformer from torch.nn, AdamW, random data."""
import statistics
import sys
import time

from checkpoint import checkpoint

import torch
import torch.nn as nn


class LanguageModel(nn.Module):
    def __init__(self, vocab=8192, dim=1024, layers=12, heads=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        block = nn.TransformerEncoderLayer(dim, heads, 4 * dim, batch_first=True, dropout=0.1)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


def train_step(model, optimizer, tokens):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    return loss


def numbers():
    torch.cuda.synchronize()
    return {"reserved": torch.cuda.memory_reserved(), "allocated": torch.cuda.memory_allocated()}


def out_of_memory(gib):
    try:
        torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as e:
        return type(e).__name__
    return "none"


def blocks(model, optimizer, tokens):
    """Median and mean step time in milliseconds, a block for each answer that is not 'end'. With 'python'
    or 'all' PyTorch records its allocations with such stacks meanwhile."""
    while (answer := checkpoint("block")) != "end":
        if answer:
            torch.cuda.memory._record_memory_history(stacks=answer)
        times = []
        for _ in range(40):
            begin = time.perf_counter()
            train_step(model, optimizer, tokens)
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - begin))
        made = torch.cuda.memory_stats()["allocation.all.allocated"]
        if answer:
            torch.cuda.memory._record_memory_history(enabled=None)
        checkpoint("time", median_ms=statistics.median(times), mean_ms=statistics.mean(times), made=made, **numbers())


def steps(model, optimizer, tokens, seconds):
    """When each step of so many seconds ended, on the monotonic clock."""
    ends, last = [time.monotonic()], time.monotonic() + seconds
    while ends[-1] < last:
        train_step(model, optimizer, tokens)
        torch.cuda.synchronize()
        ends.append(time.monotonic())
    checkpoint("steps", ends=[round(t, 6) for t in ends])


def main():
    mode, sizes = sys.argv[1], [int(x) for x in sys.argv[2:]]
    checkpoint("ready")
    torch.manual_seed(0)
    model = LanguageModel(*sizes).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(8192, (8, 512), device="cuda")
    for _ in range(3):
        train_step(model, optimizer, tokens)
    checkpoint("trained", **numbers())
    if mode == "blocks":
        blocks(model, optimizer, tokens)
    if mode.startswith("steps:"):
        steps(model, optimizer, tokens, float(mode.removeprefix("steps:")))
    checkpoint("oom", error=out_of_memory(400), **numbers())
    optimizer = model = tokens = None
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    checkpoint("freed", **numbers())


main()
