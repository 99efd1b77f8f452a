"""Writes down what Python says of code objects, and keeps them until standard input ends.

Of each: its address, what the kernel side tells of it, its name and file as hexadecimal
UTF-8, the first instruction that is traced, and the line of each instruction, -1 for none.
"""
import asyncio  # noqa: F401
import ctypes
import dis
import gc
import json
import sys
import types

VERSION = sys.version_info[:2]
LINE = ctypes.pythonapi.PyCode_Addr2Line
LINE.argtypes = [ctypes.py_object, ctypes.c_int]


def utf8(s, most):
    if len(s) > most:
        s = s[:most] + "..."
    return "".join(chr(0xFFFD) if "\ud800" <= c <= "\udfff" and not "\udc80" <= c <= "\udcff" else c
                   for c in s).encode("utf-8", "surrogateescape").hex()


def mix(h, w):
    h = (h ^ w) * 0xFF51AFD7ED558CCD & (1 << 64) - 1
    return h ^ h >> 32


def characters(s, count):
    """Returns the memory of a string's first characters."""
    most = max(map(ord, s), default=0)
    size = 1 if most < 0x100 else 2 if most < 0x10000 else 4
    return b"".join(ord(c).to_bytes(size, sys.byteorder) for c in s[:count])


def content(h, b):
    end = b[-256:]
    for i in range(0, len(end), 8):
        h = mix(h, int.from_bytes(end[i:i + 8].ljust(8, b"\0"), sys.byteorder))
    return max(mix(h, len(b)), 1)


def uw_code(code):
    """Returns what the kernel side reports of it (bpf/unwind_python.h)."""
    counts = (code.co_argcount << 25) + (code.co_kwonlyargcount << 18) + (code.co_flags << 10) + code.co_firstlineno
    table = code.co_linetable if VERSION >= (3, 10) else code.co_lnotab
    name = getattr(code, "co_qualname", code.co_name)
    if VERSION >= (3, 12):
        return ctypes.c_uint32.from_address(id(code) + 92).value
    h = content(0, characters(code.co_filename, 4096))
    h = content(h, characters(name, 1024))
    h = content(h, table)
    return (counts ^ h ^ h >> 32) & 0xFFFFFFFF


def tell(code):
    unit = 2 if VERSION >= (3, 10) else 1
    traced = 0
    if VERSION >= (3, 11):
        traced = next((i.offset // 2 for i in dis.get_instructions(code) if i.opname == "RESUME"), len(code.co_code) // 2)
    lines = [LINE(code, i * unit) for i in range(0, min(len(code.co_code) // unit, 2000), 1)]
    return [id(code), uw_code(code), utf8(getattr(code, "co_qualname", code.co_name), 1 << 10),
            utf8(code.co_filename, 4 << 10), traced, lines]


def f(a, b, *c, d, e=1, **g):
    yield a
    with open(b) as x:
        try:
            yield from (y for y in x)
        finally:
            del x


names = ["\u00fcmlaut", "\u4e2d\u6587", "\U00020000x", "n" * 1024, "n" * 1025, "\u4e2d" * 3000, "a\0b\n\x1b[31m"]
files = ["", "/\u00fc.py", "/\u4e2d/\u6587.py", "/\U00020000.py", "/\udcff\udc80.py", "/\ud800.py", "/" + "d/" * 3000, "<frozen x>"]
kept = []
if VERSION >= (3, 8):
    kept += [f.__code__.replace(co_name=n, **({"co_qualname": n} if VERSION >= (3, 11) else {})) for n in names]
    kept += [f.__code__.replace(co_filename=n) for n in files]
kept += [compile("\n" * n + "[x for x in\ny(\nz)]\n" * 3, "<far>", "exec") for n in (0, 200, 70000)]
kept += [compile("pass", n, "exec") for n in files]
kept += [compile("def long():\n" + " x = 1\n" * 3000, "<long>", "exec")]
todo = [o.__code__ for o in gc.get_objects() if isinstance(o, types.FunctionType)][:3000] + kept
while todo:
    code = todo.pop()
    nested = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    kept += [code] + nested
    todo += nested
told = {}
for code in kept:
    told[id(code)] = tell(code)
with open(sys.argv[1], "w") as out:
    json.dump(list(told.values()), out)
print("ready", flush=True)
sys.stdin.read()
