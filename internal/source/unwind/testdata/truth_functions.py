"""Cases: functions, generators, coroutines, exceptions, and how deep they go."""
import asyncio
import contextlib
import functools
import itertools
import operator

from truth_note import OFTEN, call, leaf, note, often


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
