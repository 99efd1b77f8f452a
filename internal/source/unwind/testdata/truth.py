"""Calls the probed function from every sort of Python frame, and writes down which frames each
call has, as Python itself tells. Arguments: the file to write to, how many rounds.

Each call is on one line with the note that tells of it, so that the line is the same in both.
"""
import asyncio
import collections
import concurrent.futures
import contextlib
import copy
import ctypes
import functools
import gc
import importlib
import itertools
import json
import operator
import os
import pickle
import re
import signal
import sys
import threading
import time
import weakref

lib = ctypes.CDLL(os.environ["LIBALLOC"])
# All of C: the call adds no Python frame.
call = functools.partial(lib.gm_test_alloc, ctypes.byref(ctypes.c_ulong()), ctypes.c_size_t(1))
VERSION = sys.version_info[:2]
OFTEN = 40  # calls after which an instruction is specialised, of every CPython that does so

noted = []  # of each call: its thread, its case, its frames
now = ""  # the case that runs


def note():
    """Writes down the frames of the call that the caller makes next."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        frames.append((getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno))
        frame = frame.f_back
    noted.append((threading.get_native_id(), now, frames))


def leaf(*_):
    note(); call()
    return 0


def often(f, *args):
    for _ in range(OFTEN):
        f(*args)


# Functions, as they are called.

def wrapped(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        return f(*args, **kwargs)
    return wrapper


class Decorator:
    def __init__(self, f):
        self.f = f

    def __call__(self, *args):
        return self.f(*args)


def with_argument(n):
    def decorate(f):
        def wrapper(*args):
            for _ in range(n):
                f(*args)
        return wrapper
    return decorate


@wrapped
@Decorator
@with_argument(2)
@wrapped
def decorated(a, b=2):
    note(); call()


@functools.lru_cache(maxsize=None)
def cached(n):
    leaf(n)


@functools.singledispatch
def dispatched(x):
    note(); call()


@dispatched.register(int)
def dispatched_int(x):
    note(); call()
    dispatched("")


def decorators():
    decorated(1)
    cached.cache_clear()
    cached(1)
    dispatched(1)


def arguments(a, b=1, *c, d=2, **e):
    note(); call()


def calls_with_arguments():
    arguments(1)
    arguments(1, 2, 3, d=4, f=5)
    arguments(*[1, 2], **{"g": 1})
    functools.partial(arguments, 1, d=3)(2)
    often(arguments, 1)
    for _ in range(OFTEN):
        arguments(
            1,
            b=leaf(
                2
            ),
        )


def lambdas():
    (lambda: (note(), call()))()
    f = lambda g: g()  # noqa: E731
    f(lambda: f(leaf))
    for _ in range(OFTEN):
        f(lambda: leaf())


def closures():
    x = 1

    def inner():
        nonlocal x
        x += 1

        def innermost():
            note(); call()
            return x
        return innermost()
    inner()
    often(inner)


# Comprehensions and generators.

def comprehensions():
    [leaf(x) for x in range(2)]
    {leaf(x) for x in range(2)}
    {x: leaf(x) for x in range(2)}
    [[leaf(y) for y in range(x)] for x in range(3)]
    [
        leaf(
            x
        )
        for x in range(2)
        if leaf() == 0
    ]
    sum(leaf(x) for x in range(2))
    list(leaf(x) for x in (leaf(y) for y in range(2)))
    [(note(), call()) for _ in range(2)]


def numbers(n):
    for i in range(n):
        note(); call()
        yield i
    note(); call()


def recursive(n):
    note(); call()
    if n:
        yield from recursive(n - 1)
    yield n


class Tree:
    def __init__(self, n):
        self.children = [Tree(n - 1), Tree(n - 1)] if n else []

    def __iter__(self):
        for child in self.children:
            for x in child:
                yield x
        note(); call()
        yield self


def generators():
    for _ in numbers(OFTEN):
        pass
    list(numbers(3))
    next(numbers(1))
    g = numbers(2)
    next(g), g.send(None)
    list(recursive(20))
    for _ in recursive(5):
        leaf()
    list(Tree(3))
    a, *b = numbers(3)
    dict(zip(numbers(2), numbers(2)))


def catches():
    while True:
        try:
            yield
        except KeyError:
            note(); call()
        finally:
            leaf()


def delegates(n):
    if n:
        yield from delegates(n - 1)
    else:
        yield from catches()


def thrown_into():
    for n in (0, 1, 5):
        g = delegates(n)
        next(g)
        g.throw(KeyError())
        next(g)
        g.throw(KeyError())
        g.close()


class Throws:
    """An iterator that is no generator, between generators."""

    def __init__(self, n):
        self.inner = delegates(n)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.inner)

    def throw(self, *args):
        note(); call()
        return self.inner.throw(*args)

    def close(self):
        note(); call()
        self.inner.close()


def thrown_through():
    def outer():
        yield from Throws(2)
    g = outer()
    next(g)
    g.throw(KeyError())
    g.close()


# Coroutines.

class Awaitable:
    def __await__(self):
        note(); call()
        yield from asyncio.sleep(0).__await__()
        note(); call()


async def awaits(n):
    if n:
        await awaits(n - 1)
    else:
        await asyncio.sleep(0)
    note(); call()


async def counts(n):
    for i in range(n):
        await asyncio.sleep(0)
        note(); call()
        yield i


@contextlib.asynccontextmanager
async def around():
    await awaits(1)
    try:
        yield
    finally:
        await awaits(1)


class Async:
    async def __aenter__(self):
        await awaits(1)

    async def __aexit__(self, *_):
        await awaits(1)

    def __aiter__(self):
        self.left = 2
        return self

    async def __anext__(self):
        if not self.left:
            raise StopAsyncIteration
        self.left -= 1
        note(); call()


async def program():
    await awaits(10)
    await Awaitable()
    await asyncio.gather(awaits(1), awaits(3), Awaitable(), *[awaits(2) for _ in range(3)])
    await asyncio.wait([asyncio.ensure_future(awaits(2))])
    await asyncio.wait_for(awaits(2), 10)
    async for _ in counts(3):
        leaf()
    [x async for x in counts(2)]
    async with around(), Async():
        await awaits(2)
    async for _ in Async():
        leaf()
    g = counts(3)
    await g.asend(None)
    await g.aclose()
    loop = asyncio.get_running_loop()
    loop.call_soon(leaf)
    await asyncio.sleep(0)
    await loop.run_in_executor(None, leaf)
    task = asyncio.ensure_future(cancelled())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def cancelled():
    try:
        await asyncio.sleep(100)
    finally:
        await awaits(1)


def coroutines():
    asyncio.run(program())
    c = awaits(5)  # driven by hand
    c.send(None)
    try:
        c.send(None)
    except StopIteration:
        pass
    c = cancelled()
    c.send(None)
    try:
        c.throw(KeyError())
    except (KeyError, StopIteration):
        pass
    c.close()


# Classes.

class Meta(type):
    @classmethod
    def __prepare__(mcs, name, bases, **_):
        note(); call()
        return {}

    def __new__(mcs, name, bases, namespace, **_):
        note(); call()
        return super().__new__(mcs, name, bases, namespace)

    def __init__(cls, name, bases, namespace, **_):
        note(); call()
        super().__init__(name, bases, namespace)

    def __call__(cls, *args):
        note(); call()
        return super().__call__(*args)

    def __instancecheck__(cls, x):
        note(); call()
        return True


class Descriptor:
    def __set_name__(self, owner, name):
        note(); call()

    def __get__(self, instance, owner):
        note(); call()
        return 1

    def __set__(self, instance, value):
        note(); call()


def classes():
    class Base(metaclass=Meta):
        note(); call()
        x = Descriptor()

        def __init_subclass__(cls, **_):
            note(); call()

        def __init__(self):
            note(); call()
            self.x = self.x

        class Inner:
            leaf()

    class Derived(Base, keyword=1):
        y = [leaf(z) for z in range(2)]

        def __init__(self):
            super().__init__()
    Derived()
    isinstance(1, Base)
    Meta("Made", (Base,), {})()


class Slots:
    """Python's methods, reached through C's slots or specialised instructions."""

    def __new__(cls):
        note(); call()
        return super().__new__(cls)

    def __init__(self):
        note(); call()

    @property
    def value(self):
        note(); call()
        return 1

    def __getattr__(self, name):
        note(); call()
        return 1

    def __setattr__(self, name, value):
        note(); call()

    def __getitem__(self, i):
        note(); call()
        if i > 2:
            raise IndexError
        return i

    def __len__(self):
        note(); call()
        return 1

    def __contains__(self, x):
        note(); call()
        return True

    def __add__(self, x):
        note(); call()
        return self

    __radd__ = __iadd__ = __add__

    def __lt__(self, x):
        note(); call()
        return True

    def __eq__(self, x):
        note(); call()
        return True

    def __hash__(self):
        note(); call()
        return 1

    def __repr__(self):
        note(); call()
        return "it"

    def __format__(self, spec):
        note(); call()
        return "it"

    def __bool__(self):
        note(); call()
        return True

    def __index__(self):
        note(); call()
        return 1

    def __call__(self, *_):
        note(); call()
        return 1


def slots():
    s = Slots()
    for _ in range(OFTEN):
        s.value, s.absent, s[1], s + 1, s < 1, s == 1
    s.attribute = 1
    list(s), len(s), 1 in s, 1 + s, sorted([s, s]), hash(s), repr(s), bool(s), operator.index(s), s()
    {s: 1}[s]
    f"{s}{s!r}", "{}".format(s), "%s" % s, str([s])
    s += 1
    if s:
        leaf()


class Small:
    """A class whose calls are specialised: no frame of C is between."""

    def __init__(self, n):
        note(); call()
        self.n = n


class Overridden:
    def __getattribute__(self, name):
        note(); call()
        return 1


def instances():
    for i in range(OFTEN):
        Small(i)
    o = Overridden()
    for _ in range(OFTEN):
        o.x


# Threads.

def threads():
    def work(n):
        leaf(n)
        list(recursive(3))
    many = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in many:
        t.start()
    for t in many:
        t.join()
    t = threading.Timer(0, leaf)
    t.start()
    t.join()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(4)))
        pool.submit(lambda: leaf()).result()


# Callbacks from C.

COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
VISIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)


@COMPARE
def compare(a, b):
    note(); call()
    return 0


def from_c_libraries():
    libc = ctypes.CDLL(None)
    array = (ctypes.c_int * 3)(3, 1, 2)
    libc.qsort(array, ctypes.c_size_t(3), ctypes.c_size_t(4), compare)
    libc.qsort(array, ctypes.c_size_t(2), ctypes.c_size_t(4), COMPARE(lambda a, b: leaf()))
    VISIT(lambda n: leaf(n))(1)


def from_c():
    sorted([1, 2], key=leaf)
    sorted([1, 2], key=functools.cmp_to_key(lambda a, b: leaf()))
    functools.reduce(lambda a, b: leaf(), [1, 2, 3])
    list(map(leaf, [1, 2]))
    list(filter(leaf, [1, 2]))
    list(itertools.starmap(leaf, [(1, 2)]))
    list(itertools.accumulate([1, 2], leaf))
    list(itertools.takewhile(leaf, [1]))
    min([1, 2], key=leaf), max([1, 2], key=lambda x: leaf(x))
    operator.methodcaller("value", 1)(type("A", (), {"value": leaf})())
    re.sub("a", lambda m: str(leaf(m)), "aba")
    json.dumps({1: object()}, default=leaf)
    collections.defaultdict(leaf)[1]
    list(iter(leaf, 0))
    pickle.loads(pickle.dumps(Pickled()))
    copy.deepcopy(Copied())
    sorted(map(lambda x: leaf(x), filter(lambda x: leaf(x) == 0, range(3))), key=lambda x: leaf(x))
    note(); call()
    note(); next(map(operator.methodcaller("__call__"), [call]))


class Pickled:
    def __reduce__(self):
        note(); call()
        return leaf, ()


class Copied:
    def __deepcopy__(self, memo):
        note(); call()
        return self


class Deleted:
    def __del__(self):
        note(); call()


def deleted():
    d = Deleted()
    del d
    d = Deleted()
    d = None
    [Deleted() for _ in range(2)]
    x = [Deleted()]
    x.clear()

    def local():
        d = Deleted()  # noqa: F841
    local()
    o = type("Weak", (), {})()
    r = weakref.ref(o, leaf)  # noqa: F841
    del o
    weakref.finalize(Pickled(), leaf)


class Cycle:
    def __init__(self):
        self.me = self

    def __del__(self):
        note(); call()


def collected():
    """The collector runs where something is allocated: also where a frame is not complete yet."""
    def generator():
        yield 1

    async def coroutine():
        pass

    def closure(a):
        def inner():
            return a
        return inner

    before = gc.get_threshold()
    for make in (generator, coroutine, lambda: closure([]), lambda: [[] for _ in range(3)], dict):
        made = [Cycle() for _ in range(3)]
        del made
        gc.set_threshold(1, 1, 1)
        gc.enable()
        try:
            c = make()
        finally:
            gc.disable()
            gc.set_threshold(*before)
        if hasattr(c, "close"):
            c.close()
    made = Cycle()
    del made
    gc.collect()


def signalled():
    before = signal.signal(signal.SIGUSR1, leaf)
    for _ in range(2):
        signal.raise_signal(signal.SIGUSR1)
    sum(signal.raise_signal(signal.SIGUSR1) or 1 for _ in range(2))
    signal.signal(signal.SIGUSR1, before)


def hooked():
    """Calls inside of hooks, and of functions that hooks watch."""
    inside = False

    def hook(frame, event, arg):
        nonlocal inside
        if not inside and event in ("call", "line", "return") and frame.f_code is watched.__code__:
            inside = True
            note(); call()
            inside = False
        return hook

    def watched(n):
        x = [
            n,
            leaf(n),
        ]
        if n:
            watched(n - 1)
        return x

    for install in sys.settrace, sys.setprofile:
        install(hook)
        try:
            watched(2)
            list(recursive(2))
        finally:
            install(None)
    watched(2)


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


# Depth.

def recurse(n):
    if n:
        return recurse(n - 1)
    note(); call()


class Recursive:
    def __init__(self, n):
        if n:
            Recursive(n - 1)
        else:
            note(); call()


def even(n):
    if n == 0:
        note(); call()
    else:
        odd(n - 1)


def odd(n):
    return even(n - 1)


def deep_50():
    recurse(50)
    even(50)
    Recursive(25)


def deep_300():
    recurse(300)
    even(300)


def deep_900():
    recurse(900)


class Level:
    """As modules of a network have them: __call__ reached through C's slot, which calls forward."""

    def __init__(self, ways):
        self.ways = ways

    def __call__(self, n):
        return self.forward(n)

    def forward(self, n):
        if n == 0:
            note(); call()
            return 0
        return self.ways[n % len(self.ways)](self, n - 1)


WAYS = [
    lambda level, n: level(n),
    lambda level, n: functools.partial(level, n)(),
    lambda level, n: list(map(level, [n]))[0],
    lambda level, n: functools.reduce(lambda _, x: level(x), [0, n]),
    lambda level, n: max([n], key=level),
    lambda level, n: operator.methodcaller("__call__", n)(level),
    lambda level, n: sum(level(x) for x in [n]),
    lambda level, n: list(itertools.starmap(level, [(n,)]))[0],
    lambda level, n: getattr(operator, "call", lambda f, x: f(x))(level, n),
]


def alternating_20():
    Level(WAYS)(20)
    Level(WAYS[:1])(20)


def alternating_40():
    Level(WAYS)(40)
    Level(WAYS[:1])(40)
    Level(WAYS[1:2])(40)


def alternating_100():
    Level(WAYS)(100)
    Level(WAYS[:1])(100)


# Exceptions and what runs at their sides.

class Context:
    def __enter__(self):
        note(); call()

    def __exit__(self, *_):
        note(); call()
        return True


@contextlib.contextmanager
def managed():
    leaf()
    try:
        yield
    except KeyError:
        note(); call()
    finally:
        note(); call()


class Printed(Exception):
    def __str__(self):
        note(); call()
        return ""


def finishes():
    try:
        return leaf()
    finally:
        note(); call()


def exceptions():
    for error in (KeyError, ValueError):
        try:
            try:
                raise error
            except KeyError as e:
                note(); call()
                try:
                    raise ValueError from e
                finally:
                    note(); call()
            else:
                leaf()
            finally:
                leaf()
        except (ValueError, KeyError):
            leaf()
    with Context() as _, Context():
        leaf()
        raise KeyError
    with managed(), managed():
        leaf()
        raise KeyError
    with contextlib.ExitStack() as stack:
        stack.enter_context(managed())
        stack.callback(leaf)
        stack.push(Context())
    str(Printed()), "%s" % Printed()
    finishes()
    for _ in range(2):
        try:
            if leaf():
                break
            continue
        finally:
            note(); call()
    while True:
        try:
            break
        finally:
            leaf()
    try:
        recurses_without_end()
    except RecursionError:
        leaf()
    assert leaf() == 0, leaf()


def recurses_without_end():
    return recurses_without_end()


CASES = [
    leaf, decorators, calls_with_arguments, lambdas, closures, comprehensions, generators, thrown_into, thrown_through, coroutines,
    classes, slots, instances, threads, from_c, from_c_libraries, deleted, collected, signalled, hooked, executed, named_in_other_scripts, newer_syntax,
    reused, reused_alike, imported, deep_50, deep_300, deep_900, alternating_20, alternating_40, alternating_100, exceptions,
]


def finish():
    with open(sys.argv[1], "w") as f:
        json.dump(noted, f)
    print("done", len(noted), flush=True)
    sys.stdin.read()


def start():
    print("ready", flush=True)
    sys.stdin.readline()


def main():
    global now
    gc.disable()  # it may run anything between a note and its call
    sys.setrecursionlimit(3000)
    start()
    for _ in range(int(sys.argv[2])):  # other paths are between the calls of one
        for case in CASES:
            now = case.__name__
            case()
            note(); call()
    finish()


if __name__ == "__main__":
    main()
