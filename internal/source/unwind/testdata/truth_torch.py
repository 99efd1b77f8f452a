"""The same as truth.py, in PyTorch: modules of modules, hooks, a backward pass that calls Python."""
import gc

import torch
import torch.fx
from torch.utils.checkpoint import checkpoint

import truth
import truth_note
from truth_note import call, leaf, note

torch.set_num_threads(1)


class Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        note(); call()
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        note(); call()
        return gradient.clone()


class Nested(torch.nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.inner = Nested(depth - 1) if depth else torch.nn.Linear(4, 4)
        self.depth = depth

    def forward(self, x):
        note(); call()
        return Probe.apply(self.inner(x))


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Nested(3)

    def forward(self, x):
        return checkpoint(self.inner, x)


@torch.fx.wrap
def measured(x):
    note(); call()
    return Probe.apply(x)


class Generated(torch.nn.Module):
    """Its forward is source text that torch.fx makes and executes, in <eval_with_key>.N."""

    def forward(self, x):
        return measured(torch.tensordot(measured(x), torch.eye(4), dims=1))


@torch.jit.ignore
def ignored(x: torch.Tensor) -> torch.Tensor:
    return measured(x)


class Scripted(torch.nn.Module):
    """Its forward runs in TorchScript, without a Python frame."""

    def forward(self, x):
        return ignored(x) + 1


def hooked(module):
    module.register_forward_hook(lambda *_: leaf() or None)
    module.register_full_backward_hook(lambda *_: leaf() or None)
    return module


MODELS = {
    "nested": Nested(10),
    "sequential": torch.nn.Sequential(*[torch.nn.Sequential(Nested(1), torch.nn.Tanh()) for _ in range(3)]),
    "hooks": hooked(torch.nn.Sequential(hooked(Nested(2)), hooked(Nested(2)))),
    "checkpoint": Checkpointed(),
    "nested_40": Nested(40),
    "fx": torch.nn.Sequential(*[torch.fx.symbolic_trace(Generated()) for _ in range(3)]),
    "script": torch.nn.Sequential(torch.jit.script(Scripted()), torch.fx.symbolic_trace(Generated())),
}


def step(model):
    x = torch.randn(4, 4, requires_grad=True)
    x.register_hook(lambda g: leaf() or None)
    y = model(x).square().mean()
    y.register_hook(lambda g: leaf() or None)
    y.backward()
    (gradient,) = torch.autograd.grad(Probe.apply(x).exp().sum(), x, create_graph=True)
    gradient.sum().backward()


def main():
    step(MODELS["nested"])  # what is imported at the first use is
    truth_note.noted.clear()
    gc.disable()
    truth.start()
    for _ in range(int(truth.sys.argv[2])):
        for truth_note.now, model in MODELS.items():
            step(model)
            torch.no_grad()(model)(torch.randn(1, 4))
            leaf()
    truth.finish()


main()
