"""Runs the code of one module after the other, each of which makes a call and is freed."""
import ctypes
import functools
import os
import sys

lib = ctypes.CDLL(os.environ["LIBALLOC"])
call = functools.partial(lib.gm_test_alloc, ctypes.byref(ctypes.c_ulong()), ctypes.c_size_t(1))


def run(i):
    exec(compile("call()\n", "/a/path/that/they/all/have/in/front/of/their/names/module_%05d.py" % i, "exec"), {"call": call})


print("ready", flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[1])):
    run(i)
print("done", flush=True)
sys.stdin.read()
