"""A training step, eager and by torch.compile."""
import os

from checkpoint import checkpoint

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of processes that compile
import torch


class Block(torch.nn.Module):
    def __init__(self, dim=1024):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(dim), torch.nn.Linear(dim, 4 * dim), torch.nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def steps(model, optimizer, n):
    for _ in range(n):
        model(torch.randn(2048, 1024, device="cuda")).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    return {"reserved": torch.cuda.memory_reserved(), "allocated": torch.cuda.memory_allocated()}


def main():
    checkpoint("ready")
    model = torch.nn.Sequential(*[Block() for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoint("eager", **steps(model, optimizer, 2))
    checkpoint("compiled", **steps(torch.compile(model), optimizer, 3))


main()
