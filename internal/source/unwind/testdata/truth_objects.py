"""Cases: classes, threads, and callbacks from C."""
import collections
import concurrent.futures
import copy
import ctypes
import functools
import gc
import itertools
import json
import operator
import pickle
import re
import signal
import sys
import threading
import weakref

from truth_note import OFTEN, call, leaf, note
from truth_functions import recursive


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
