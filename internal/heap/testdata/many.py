"""Has at least so many objects, scattered as those of a program that has run for a while, and tensors among them."""
import gc
import json
import os
import random
import sys

import standin


class Tensor(standin.TensorBase):
    pass


class Module:
    __module__ = "torch.nn.modules.module"

    def __init__(self):
        self._parameters, self._buffers, self._modules = {"weight": Tensor(4, True)}, {}, {}
        self.training, self.name = True, "a name"


class Point:
    __slots__ = ("x", "y")

    def __init__(self, x):
        self.x, self.y = x, (x, [])


def function(n):
    def hook(x):
        return x, n
    return hook


def part(i):
    module = model._modules[str(i)] = Module() if i % 64 == 0 else None
    return {"functions": [function(i), function(i)], "points": [Point(str(i)), Point(str(-i))], "rows": [{"id": i, "of": (i, [module])}] * 2,
            "set": {(i, str(i)), (str(i), ())}, "text": " " * (i % 700)}


gc.disable()
random.seed(1)
model = Module()
n = int(sys.argv[1]) // 20 + 1
kept = [part(i) for i in range(2 * n)]
random.shuffle(kept)
del kept[n:]  # what comes next lies in between
kept += [part(2 * n + i) for i in range(n // 4)]
gc.collect()
gc.collect()
print(json.dumps({"pid": os.getpid(), "objects": len(gc.get_objects()), "truth": {}}), flush=True)
sys.stdin.readline()
