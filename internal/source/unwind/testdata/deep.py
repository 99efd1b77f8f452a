"""Calls the probed function inside of functions, none of them twice. Arguments: how often, how deep."""
import ctypes
import functools
import os
import sys

lib = ctypes.CDLL(os.environ["LIBALLOC"])
inside = functools.partial(lib.gm_test_alloc, ctypes.byref(ctypes.c_ulong()), ctypes.c_size_t(1))
for i in range(int(sys.argv[2]) - 1):  # the module is one frame
    made = {"inside": inside}
    exec(f"def level_{i}():\n    inside()", made)
    inside = made[f"level_{i}"]
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[1])):
    inside()
print("done", flush=True)
sys.stdin.read()
