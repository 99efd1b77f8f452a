"""A small PyTorch training job that keeps more of the GPU's memory at each step."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.layers(x)


def remember(history, activations):
    history.append(activations.detach().clone())


def train(steps=50, width=2048):
    model = nn.Sequential(*[Block(width) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    history = []
    for _ in range(steps):
        out = model(torch.randn(4096, width, device="cuda"))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        remember(history, out)
    torch.cuda.synchronize()
    print(f"allocated {torch.cuda.memory_allocated() >> 20} MiB, reserved {torch.cuda.memory_reserved() >> 20} MiB")


train()
