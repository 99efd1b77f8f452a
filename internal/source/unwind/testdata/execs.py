"""Runs code that has gone before anybody looks at it, as its input says, a line at a time."""
import ctypes
import functools
import os
import sys

lib = ctypes.CDLL(os.environ["LIBALLOC"])
call = functools.partial(lib.gm_test_alloc, ctypes.byref(ctypes.c_ulong()), ctypes.c_size_t(1))


def files(n):
    """One after the other, of a file each, on a line each."""
    for i in range(int(n)):
        exec(compile("\n" * i + "call()", "<file %d>" % i, "exec"), {"call": call})


def function(n):
    call()


def execute(python):
    """Replaces this process's image."""
    os.execv(python, [python, __file__])


def load(n):
    """Loads a library and calls it at once."""
    exec(compile("\n\nlibrary(path).plugin_allocate(ctypes.c_size_t(1))", "<loader>", "exec"),
         {"library": ctypes.CDLL, "path": sys.argv[1], "ctypes": ctypes})


print("ready", flush=True)
while True:
    line = sys.stdin.readline()
    if not line:
        break
    what, arg = line.split()
    globals()[what](arg)
    print("done", flush=True)
