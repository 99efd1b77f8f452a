"""Trains on the stand-in for CUDA, and says where each tensor lies. It makes a step for each line of stdin."""
import collections
import ctypes
import json
import os
import sys

import standin

cuda, c10 = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libc10.so")
report = getattr(c10, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int8), ("index", ctypes.c_int8)]


report.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong, Device]
report.restype = None


def must(result):
    assert result == 0, result


class Allocator:
    """Takes segments as PyTorch's does for large tensors, and uses no block a second time."""

    def __init__(self):
        must(cuda.cuInit(0))
        context = ctypes.c_void_p()
        must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        must(cuda.cuCtxSetCurrent(context))
        self.next = self.left = self.allocated = self.reserved = 0

    def alloc(self, size):
        """Returns where the block lies, and its size."""
        if size >= 10 << 20:
            segment = (size + (2 << 20) - 1) >> 21 << 21
            at = self.grow(segment)
            if segment - size <= 1 << 20:  # too little for another
                size = segment
        else:
            if size > self.left:
                self.next, self.left = self.grow(20 << 20), 20 << 20
            at = self.next
            self.next, self.left = at + size, self.left - size
        self.allocated += size
        report(at, size, self.allocated, self.reserved, Device(1, 0))
        return at, size

    def grow(self, segment):
        at = ctypes.c_uint64()
        must(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(segment)))
        self.reserved += segment
        with open(os.environ["NVML_USED"] + ".new", "w") as f:  # with a context of 512 MiB
            f.write("%d %d" % (os.getpid(), self.reserved + (512 << 20)))
        os.rename(f.name, os.environ["NVML_USED"])
        return at.value

    def free(self, at, size):
        self.allocated -= size
        report(at, -size, self.allocated, self.reserved, Device(1, 0))


allocator = Allocator()


class Tensor(standin.TensorBase):
    def __new__(cls, n):
        at, size = allocator.alloc((8 * n + 511) // 512 * 512)
        t = super().__new__(cls, n, True, None, at)
        t.n, t.block = n, size
        return t

    def __del__(self):
        allocator.free(self.address(), self.block)


class Parameter(Tensor):
    pass


class Module:
    __module__ = "torch.nn.modules.module"

    def __init__(self):
        self._parameters, self._buffers, self._modules = {}, {}, collections.OrderedDict()


class Linear(Module):
    def __init__(self, n):
        super().__init__()
        self._parameters["weight"], self._parameters["bias"] = Parameter(n * 1000), Parameter(n)
        self._buffers["scale"] = Tensor(3 * n)


class Optimizer:
    __module__ = "torch.optim.optimizer"

    def __init__(self):
        self.state = collections.defaultdict(dict)


class Trainer:
    def __init__(self):
        self.model, self.optimizer, self.history, self.gradients = Module(), Optimizer(), [], []
        self.model._modules["layers"] = Module()
        for i in range(3):
            self.model._modules["layers"]._modules[str(i)] = Linear(1000 + 500 * i)

    def parameters(self):
        for i, layer in self.model._modules["layers"]._modules.items():
            for name, p in layer._parameters.items():
                yield "trainer.model.layers[%s].%s" % (i, name), p

    def step(self):
        batch = Tensor(5000)
        for _, p in self.parameters():
            if "exp_avg" not in self.optimizer.state[p]:
                gradient = Tensor(p.n)
                p.set_grad(gradient)
                self.gradients.append((p, gradient))
                self.optimizer.state[p]["exp_avg"] = Tensor(p.n)
        self.history.append(Tensor(100_000))
        del batch


trainer = Trainer()
trainer.step()


def say():
    held = {"trainer.history[*]": sum(t.block for t in trainer.history)}
    for name, p in trainer.parameters():
        held[name] = p.block
        held['trainer.optimizer.state[%s]["exp_avg"]' % name] = trainer.optimizer.state[p]["exp_avg"].block
    for p, gradient in trainer.gradients:
        held[next(name for name, q in trainer.parameters() if p is q) + ".grad"] = gradient.block
    for i, layer in trainer.model._modules["layers"]._modules.items():
        held["trainer.model.layers[%s].scale" % i] = layer._buffers["scale"].block
    print(json.dumps({"held": {name: n for name, n in held.items() if n}}), flush=True)


say()
for line in sys.stdin:
    if line == "forget\n":
        trainer.history.pop(0)
    else:
        trainer.step()
    say()
