"""Runs code that differs in its lines alone, one after the other, at one address as far as
can be, and frees each but the last. Calls 2 * i and 2 * i + 1 are made on line i + 1, by
a function of the code."""
import ctypes
import functools
import os
import sys

lib = ctypes.CDLL(os.environ["LIBALLOC"])
call = functools.partial(lib.gm_test_alloc, ctypes.byref(ctypes.c_ulong()), ctypes.c_size_t(1))
last = None


def run(i):
    global last
    code = compile("\n" * i + "for _ in 0, 1: (lambda: call())()\n", "<string>", "exec")
    # A line table of one size for all, so that it comes to lie where the last one did.
    exec(code, {"call": call})
    if i == int(sys.argv[1]) - 1:
        last = code


print("ready", flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[1])):
    run(i)
print("done", flush=True)
sys.stdin.read()
