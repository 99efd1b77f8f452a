"""Has at least so many objects, and so many tensors among them, each in a block of PyTorch's allocator."""
import ctypes
import gc
import json
import os
import random
import sys

import standin

objects, tensors = int(sys.argv[1]), int(sys.argv[2])
library = ctypes.CDLL(sys.argv[3])
library.give.restype, library.give.argtypes = ctypes.c_uint64, [ctypes.c_size_t]
library.start()


class Tensor(standin.TensorBase):
    pass


class Module:
    __module__ = "torch.nn.modules.module"

    def __init__(self):
        self._parameters, self._buffers, self._modules = {"weight": tensor()}, {}, {}


def tensor():
    n = random.randrange(64, 2000)
    return Tensor(n, True, None, library.give(8 * n))


gc.disable()
random.seed(1)
model = Module()
kept = [{"id": i, "list": [tensor()], "of": (i, tensor())} for i in range(tensors // 2)]
rows = []
while (missing := objects - len(gc.get_objects())) > 0:
    more = [[{"id": n, "of": [str(n)]}, (n, [str(n)]), {str(n)}, " " * (n % 300)] for n in range(missing // 8 + 1)]
    random.shuffle(more)
    rows += more[::2]
    del more
    gc.collect()
print(json.dumps({"pid": os.getpid(), "objects": len(gc.get_objects()), "truth": {}}), flush=True)
sys.stdin.readline()
