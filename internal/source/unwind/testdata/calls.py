"""Calls the probed function from known lines. Arguments: how often."""
import ctypes
import os
import sys
import threading

lib = ctypes.CDLL(os.environ["LIBALLOC"])
alloc = lib.gm_test_alloc
p = ctypes.c_ulong()


def leaf(n):
    alloc(ctypes.byref(p), ctypes.c_size_t(n))  # line 13


class Model:
    def forward(self, n):
        return leaf(n)  # line 18

    def __call__(self, n):
        return self.forward(n)  # line 21


def via_native(n):
    # sorted() calls back into Python from C: two runs of the interpreter.
    return sorted([n], key=Model())  # line 26


def recurse(depth, n):
    if depth:
        return recurse(depth - 1, n)  # line 31
    return via_native(n)  # line 32


def generate(n):
    recurse(5, n)  # line 36
    yield 1


def main():
    count = int(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(count):
        list(generate(1))  # line 45
    t = threading.Thread(target=lambda: recurse(2, 2))  # line 46
    t.start()
    t.join()
    print("done", flush=True)
    sys.stdin.read()


main()  # line 53
