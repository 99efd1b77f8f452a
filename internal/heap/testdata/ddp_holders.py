"""Holds a module whose reducer (of a stand-in for PyTorch's: an object of pybind11, and memory of C++) has buckets. It prints what is where, then
waits."""
import ctypes
import gc
import json
import os
import sys

import standin
import words


class Tensor(standin.TensorBase):
    pass


class Module:
    __module__ = "torch.nn.modules.module"

    def __init__(self):
        self.training, self._parameters, self._buffers, self._modules = True, {}, {}, {}


class DistributedDataParallel(Module):
    pass


truth, libc, no_objects = {}, ctypes.CDLL(None), []
libc.malloc.restype = ctypes.c_void_p


def word(at):
    return ctypes.cast(at, ctypes.POINTER(ctypes.c_uint64))


def memory(*w):
    """A chunk of malloc with these words."""
    at = libc.malloc(8 * len(w))
    for i, x in enumerate(w):
        word(at)[i] = x
    return at


def impl(t):
    """The implementation of a tensor."""
    return word(id(t))[3 if os.environ.get("STANDIN") == "1.13" else 2]


def native(n):
    """A tensor on a GPU that has no object of Python's."""
    t = Tensor(n, 1)
    at, address = impl(t), t.address()
    object_at = next(i for i in range(16) if word(at)[i] == id(t))
    word(at)[object_at] = 0
    return at, address


def vector(*w):
    begin = memory(*w)
    return begin, begin + 8 * len(w), begin + 8 * len(w)


Reducer = words.type("torch._C._distributed_c10d.Reducer", 5, 0, 0)
model, ddp = Module(), DistributedDataParallel()
model._parameters["weight"] = weight = Tensor(100, 1)
truth["ddp.module.weight"] = dict(address=weight.address(), role=1, module="ddp.module")
ddp._modules["module"] = model
buckets = [native(1000 + i) for i in range(3)]
used, used_address = native(7)
lost, lost_address = native(8)  # nobody has it
cpp = memory(0, 0, *vector(impl(weight)), *vector(*[w for at, _ in buckets for w in (at, 0, 0, 1, 2)]), used, 5, 3, 1 << 40, *[0] * 40)
counts = memory(0, 1 | 1 << 32)
ddp.reducer = words.fill(Reducer(), cpp, cpp, counts, 0, 0)
for name, other in ("forged", memory(lost)), ("freed", 0):  # its pointers differ; it has no owner
    locals()[name] = DistributedDataParallel()
    locals()[name].reducer = words.fill(Reducer(), memory(lost, 0, 0), other, memory(0, 0), 0, 0)
del model, weight, name, other
for at, address in buckets + [(used, used_address)]:
    truth["ddp.reducer" + " " * len(truth)] = dict(address=address, device=1)
print(json.dumps({"pid": os.getpid(), "objects": len(gc.get_objects()), "truth": truth, "storages": [[lost_address, 64]]}), flush=True)
sys.stdin.readline()
