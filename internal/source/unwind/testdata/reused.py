"""Makes and frees code objects, one after the other, at one address as far as can be. Each
has a function that makes two calls, on lines that follow each other. Arguments: in what
the objects differ, and how many there are."""
import ctypes
import functools
import os
import sys

lib = ctypes.CDLL(os.environ["LIBALLOC"])
call = functools.partial(lib.gm_test_alloc, ctypes.byref(ctypes.c_ulong()), ctypes.c_size_t(1))
FUNCTION = "def %s():\n%s call()\n call()\n"
FILE = "/a/path/that/all/of/these/files/have/in/front/of/their/name/%s.py"
addresses = set()


def run(source, file):
    space = {"call": call}
    exec(compile(source, file, "exec"), space)
    function = space.pop(next(n for n in space if n.startswith("f")))
    addresses.add(id(function.__code__))
    function()


def name(i):
    run(FUNCTION % ("f%05d" % i, ""), "<string>")


def file(i):
    run(FUNCTION % ("f", ""), FILE % ("%05d" % i))


def line(i):
    """The first line is the same; the line table has one size for many of them."""
    run(FUNCTION % ("f", "\n" * i), "<string>")


print("ready", flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[2])):
    globals()[sys.argv[1]](i)
print("done", len(addresses), flush=True)
sys.stdin.read()
