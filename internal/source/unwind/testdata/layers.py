"""Calls the probed function in modules of modules, and writes down which modules each call is
in. Arguments: the class of the modules, how many layers there are, how often each runs, the
file to write to.
"""
import ctypes
import functools
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "called"))
from torch.nn.modules import module  # noqa: E402

lib = ctypes.CDLL(os.environ["LIBALLOC"])
call = functools.partial(lib.gm_test_alloc, ctypes.byref(ctypes.c_ulong()), ctypes.c_size_t(1))
Base = getattr(module, sys.argv[1])
noted = []
inside = []


def allocate():
    noted.append([id(m) for m in reversed(inside)])
    call()


class Part(Base):
    def forward(self):
        inside.append(self)
        allocate()
        inside.pop()


class Layer(Base):
    def __init__(self, shared):
        self.own, self.shared = Part(), shared

    def forward(self):
        inside.append(self)
        self.own()
        self.shared()
        allocate()
        inside.pop()


class Model(Base):
    def __init__(self, n):
        shared = Part()
        self.layers = [Layer(shared) for _ in range(n)]

    def forward(self):
        inside.append(self)
        for layer in self.layers:
            layer()
        inside.pop()


class Nested(Base):
    def __init__(self, n):
        self.next = Nested(n - 1) if n > 1 else None

    def forward(self):
        inside.append(self)
        if self.next:
            self.next()
        else:
            allocate()
        inside.pop()


models = [Model(int(sys.argv[2])) for _ in range(2)]
nested = Nested(40)
print("ready", flush=True)
for line in sys.stdin:
    if line == "first\n":
        models[0].layers[0].own()
    else:
        for _ in range(int(sys.argv[3])):
            for m in models:
                m()
            nested()
        allocate()
    with open(sys.argv[4], "w") as f:
        json.dump(noted, f)
    print("done", len(noted), flush=True)
