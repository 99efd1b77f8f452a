"""Cases: code that is made as the program runs."""
import contextlib
import functools
import importlib
import os
import sys
import time

from truth_note import VERSION, call, leaf, note, noted


# Code that is made as the program runs.

MADE = """
def f(n):
    note(); call()
    if n:
        f(n - 1)


class C:
    leaf()

    def method(self):
        note(); call()

f(2)
C().method()
[leaf(x) for x in range(2)]
"""


kept = []  # code: it is named when its process tells of it, a moment after the call
pause = functools.partial(time.sleep, 0.06)  # in which it is


def made(source, name="<string>", mode="exec"):
    code = compile(source, name, mode)
    kept.append(code)
    return eval(code, dict(globals()))


def executed():
    made(MADE)
    made(MADE, "/no/such/file.py")
    made("\n" * 300 + MADE)
    made("\n" * 70000 + MADE, "<far down>")
    made("leaf()", mode="eval")
    made("[leaf(x) for x in (1,)]", mode="eval")
    made("(lambda: leaf())()", mode="eval")
    made("(note(), call())", "name with spaces", "eval")
    name = "n" * 300
    made(f"def {name}():\n note(); call()\n{name}()")
    # Enough of everything that operands and jumps need prefixes.
    body = "".join(f"    x{i} = {i + 1000}.5\n" for i in range(400))
    loop = body.replace("    ", "        ")
    made(f"def long():\n{body}    note(); call()\n    for _ in range(2):\n{loop}        leaf()\nlong()")
    made("def longer():\n%s    leaf()\nlonger()" % ("    y = len(())\n" * 30000))
    gaps = ["\n" * n for n in (400, 1000, 200)]
    made("def far():\n    x = [1,\n%s    2]; leaf()\n%s    leaf(); (\n1,\n%sleaf(),)\nfar()" % tuple(gaps))


def named_in_other_scripts():
    for name in "\u00fcmlaut", "\u4e2d\u6587", "\U00020000":  # of one, two and four bytes a character
        made(f"def {name}():\n note(); call()\n{name}()", f"/{name}.py")


# Syntax that not every CPython has.
NEWER = {
    (3, 8): "if (x := leaf()) == 0: leaf()\nf = lambda a, /, b: leaf()\nf(1, 2)\n",
    (3, 10): "match [1, {'a': 2}]:\n    case [x, {'a': y}] if leaf() == 0:\n        leaf()\n"
             "with (\n    contextlib.suppress(),\n    contextlib.nullcontext(leaf()),\n):\n    leaf()\n",
    (3, 11): "try:\n    raise ExceptionGroup('', [KeyError(), ValueError()])\nexcept* KeyError:\n    leaf()\n"
             "except* ValueError:\n    leaf()\n    leaf()\nleaf()\nimport operator\noperator.call(leaf)\n",
    (3, 12): "def generic[T: leaf()](x: T) -> T:\n    leaf()\n    return x\ngeneric(1)\ngeneric.__type_params__[0].__bound__\n"
             "type Alias[T] = leaf()\nAlias.__value__\nclass G[T]:\n    leaf()\n    def m[U](self): leaf()\nG[int]().m()\n"
             "class H:\n    x = [leaf(y) for y in range(2)]\n    z = [[leaf(y) for y in range(x)] for x in range(2)]\n",
    (3, 13): "def defaults[T = leaf()](): leaf()\ndefaults()\ndefaults.__type_params__[0].__default__\n",
}


def newer_syntax():
    for version, source in NEWER.items():
        if VERSION >= version:
            made(source, "newer_%d_%d.py" % version)


def reused():
    """One function after the other, as far as can be at one address."""
    for i in range(4):
        exec(f"{chr(10) * i}def made_{i}():\n    note(); call()\nmade_{i}(); pause()", dict(globals()))


def reused_alike():
    """The same, of functions that differ in name alone."""
    for i in range(4):
        exec(f"def alike_{i}():\n    note(); call()\nalike_{i}(); pause()", dict(globals()))


def imported():
    name = "module_of_%d" % len(noted)
    path = os.path.join(os.path.dirname(sys.argv[1]), name + ".py")
    with open(path, "w") as f:
        f.write("from __main__ import leaf, note, call, pause\nnote(); call()\nclass C:\n    leaf()\n    pause()\ndef __getattr__(name):\n    return leaf()\n")
    sys.path.insert(0, os.path.dirname(path))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
        module.absent
        del sys.modules[name]
        exec(f"import {name}")
    finally:
        sys.path.pop(0)
        sys.modules.pop(name, None)
        os.remove(path)
