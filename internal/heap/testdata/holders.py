"""Holds tensors in many ways. It prints the path to each that a programmer would write, then waits."""
import asyncio
import collections
import contextvars
import functools
import gc
import json
import os
import sys
import threading
import time
import types

import standin


class Tensor(standin.TensorBase):
    pass


class Parameter(Tensor):
    pass


class Module:
    __module__ = "torch.nn.modules.module"

    def __init__(self):
        self.training = True
        self._parameters, self._buffers, self._modules = {}, collections.OrderedDict(), {}

    def __getattr__(self, name):
        for d in (self.__dict__["_parameters"], self.__dict__["_buffers"], self.__dict__["_modules"]):
            if name in d:
                return d[name]
        raise AttributeError(name)


class Linear(Module):
    def __init__(self):
        super().__init__()
        self._parameters["weight"] = Parameter(4)
        self._buffers["scale"] = Tensor(3)


class ModuleList(Module):
    pass


class Optimizer:
    __module__ = "torch.optim.optimizer"

    def __init__(self, params):
        self.state = collections.defaultdict(dict)
        self.param_groups = [{"params": params, "lr": 0.1}]
        for p in params:
            self.state[p]["exp_avg"] = Tensor(4)


class Slots:
    __slots__ = ("kv", "ring", "other")


class Many:
    """Has more attributes than fit without a dictionary."""

    def __init__(self):
        for i in range(40):
            setattr(self, "a%d" % i, None)
        self.deep = {"x": [Tensor(5)]}


class Node:
    pass


class Sub(dict):
    pass


truth = {}
with open(__file__) as source:
    line = {l.partition("  # ")[2].strip(): n for n, l in enumerate(source, 1)}


def says(path, t, **more):
    truth[path] = dict(more, address=t.address())


model = Module()
model._modules["layers"] = ModuleList()
for i in range(3):
    model.layers._modules[str(i)] = Linear()
opt = Optimizer([l.weight for l in model.layers._modules.values()])
for i, layer in enumerate(model.layers._modules.values()):
    module = "model.layers[%d]" % i
    says(module + ".weight", layer.weight, role=1, klass="Parameter", module=module)
    says(module + ".scale", layer.scale, role=2, module=module)
    says('opt.state[%s.weight]["exp_avg"]' % module, opt.state[layer.weight]["exp_avg"], role=4, module=module)
gradient = Tensor(4)
model.layers._modules["0"].weight.set_grad(gradient)
says("model.layers[0].weight.grad", gradient, role=3, module="model.layers[0]")
layer.cache = {"k": [Tensor(31)]}
says('model.layers[2].cache["k"][0]', layer.cache["k"][0], module="model.layers[2]")
model.layers.loader = Slots()
model.layers.loader.kv = Tensor(32)
says("model.layers.loader.kv", model.layers.loader.kv)
model._modules["act"] = Module()  # without a tensor
model.act.training, model.layers.gradient_checkpointing = False, True


def add_module(path, m):
    modules[path] = {"path": path, "address": id(m), "training": m.training, "checkpoints": m is model.layers}


modules = {}
for name, m in ("model", model), ("model.layers", model.layers), ("model.act", model.act):
    add_module(name, m)
for i, m in model.layers._modules.items():
    add_module("model.layers[%s]" % i, m)
del m
del gradient, layer

slots = Slots()
slots.kv = {"layer0": Tensor(6), 7: Tensor(7), "a secret?!": Tensor(8), (1, 2): Tensor(9), -5: Tensor(5), 1 << 40: Tensor(5)}
says('slots.kv["layer0"]', slots.kv["layer0"])
says("slots.kv[7]", slots.kv[7])
says("slots.kv[<str>]", slots.kv["a secret?!"])
says("slots.kv[<tuple>]", slots.kv[(1, 2)])
says("slots.kv[-5]", slots.kv[-5])
says("slots.kv[1099511627776]", slots.kv[1 << 40])
slots.ring = collections.deque([Tensor(2) for _ in range(200)], maxlen=150)
slots.ring.append(Tensor(11))
says("slots.ring[149]", slots.ring[149])
says("slots.ring[0]", slots.ring[0])
slots.other = (1, [Tensor(3)])
says("slots.other[1][0]", slots.other[1][0])
many = Many()
says('many.deep["x"][0]', many.deep["x"][0])
sub = Sub(k=Tensor(5))
sub.attribute = Tensor(6)
says('sub["k"]', sub["k"])
says("sub.attribute", sub.attribute)
unique = {Tensor(12)}
says("unique{...}", next(iter(unique)))
on_gpu = Tensor(13, True)
says("on_gpu", on_gpu, device=1, shape=[13, 2])
view = Tensor(3, False, Tensor(14))
says("view", view, shape=[3, 2])
tagged = Tensor(1)
tagged.note = Tensor(15)
says("tagged.note", tagged.note)
space = types.SimpleNamespace(x=Tensor(16))
says("space.x", space.x)
part = functools.partial(print, Tensor(17))
says("part.args[0]", part.args[0])
big = {"k%d" % i: [i] for i in range(70000)}
big["tensor"] = Tensor(18)
says('big["tensor"]', big["tensor"])


class Vault:
    def __init__(self, n):
        self._parameters, self._buffers = {"secret": Tensor(n)}, {"secret": Tensor(n)}
        self._modules = {"secret": [Tensor(n)]}


def others():
    """Classes that are called as PyTorch's, and are not its own."""
    class Module(Vault):
        pass

    class Optimizer:
        def __init__(self, n):
            self.state = {"secret": Tensor(n)}
    return Module(41), Optimizer(42)


vault = Vault(40)
other_module, other_optimizer = others()
for name, v in ("vault", vault), ("other_module", other_module):
    says(name + '._parameters["secret"]', v._parameters["secret"])
    says(name + '._buffers["secret"]', v._buffers["secret"])
    says(name + '._modules["secret"][0]', v._modules["secret"][0])
says('other_optimizer.state["secret"]', other_optimizer.state["secret"])
plain = {"_parameters": {"secret": Tensor(43)}}
says('plain["_parameters"]["secret"]', plain["_parameters"]["secret"])
model.settings = {"_buffers": {"secret": Tensor(44)}}
says('model.settings["_buffers"]["secret"]', model.settings["_buffers"]["secret"], module="model")
del name, v
proxy = types.MappingProxyType({"secret": Tensor(45)})
says('proxy["secret"]', proxy["secret"])


def keyed():
    captured = {"secret": Tensor(46)}
    says('capturing.<closure>.captured["secret"]', captured["secret"])
    return lambda: captured


capturing = keyed()


class Holder:
    cache = Tensor(19)


says("Holder.cache", Holder.cache)


def closure():
    first, hidden = object(), Tensor(20)
    says("function.<closure>.hidden", hidden)
    return lambda: (first, hidden)


function = closure()


@functools.lru_cache(maxsize=4)
def cached(n):
    return Tensor(n)


says("cached.cache(...)", cached(21))


@functools.lru_cache(maxsize=None)
def unbounded(n):
    return Tensor(n)


says("unbounded[22]", unbounded(22))


def generate():
    inner = Tensor(23)
    says("generator.<local>.inner" if sys.version_info >= (3, 11) else "generator.gi_frame.<local>.inner", inner)
    yield
    print(inner)


generator = generate()
next(generator)


def fail():
    lost = Tensor(24)
    says("error.__traceback__.tb_next.tb_frame.<local>.lost", lost)
    raise ValueError


try:
    fail()
except ValueError as e:
    error = e

losses = []
before = None
for i in range(5):
    loss, saved = Tensor(1), Tensor(1000 + i)
    standin.graph(loss, saved, before)
    says("losses[%d]" % i, loss)
    says("losses[%d].grad_fn" % i, saved, role=5, node="MulBackward0")
    losses.append(loss)
    before = loss if i == 3 else None
del loss, saved, before

gc.disable()
cycle = Node()
cycle.me, cycle.buffer = cycle, Tensor(25)
says("reference cycle: Node.buffer", cycle.buffer, cycle=True)
del cycle


def work(barrier):
    in_thread = Tensor(26)
    says('thread "prefetch": work() in holders.py:%d: local in_thread' % line["the thread waits"], in_thread)
    barrier.wait()
    stop.wait()  # the thread waits
    return in_thread


stop, barrier = threading.Event(), threading.Barrier(2)
thread = threading.Thread(target=work, args=(barrier,), name="prefetch", daemon=True)
thread.start()
barrier.wait()

request_state = contextvars.ContextVar("request_state")
request_state.set({"secret": Tensor(51)})
says('context variable request_state["secret"]', request_state.get()["secret"])
spoken = contextvars.ContextVar("a secret?!", default=[])
spoken.set(Tensor(52))
says("context variable <str>", spoken.get())
contexts = contextvars.copy_context()
for i in range(40):  # a node for each five bits of a hash
    contexts.run(lambda: contextvars.ContextVar("variable%d" % i).set(Tensor(60 + i)))
for variable, value in contexts.items():
    if variable.name.startswith("variable"):
        says("context variable " + variable.name, value)
del variable, value


class App:
    pass


app, scratch = App(), threading.local()
app.scratch = threading.local()


def local_to_thread():
    tl = threading.local()

    def fetch():
        tl.scratch, scratch.x, app.scratch.x = Tensor(53), {"secret": Tensor(54)}, Tensor(55)
        says('thread "fetch": tl.scratch', tl.scratch)
        says('thread "fetch": scratch.x["secret"]', scratch.x["secret"])
        says('thread "fetch": app.scratch.x', app.scratch.x)
        barrier.wait()
        stop.wait()
    threading.Thread(target=fetch, name="fetch", daemon=True).start()
    scratch.x = Tensor(56)
    says('thread "MainThread": scratch.x', scratch.x)
    barrier.wait()


local_to_thread()


async def decode(offset):
    tokens = Tensor(58)
    says('task "req-0": decode() in holders.py:%d: local tokens' % line["the coroutine waits"], tokens)
    await asyncio.sleep(1000)  # the coroutine waits
    print(tokens, lambda: offset)


async def handle():
    image = Tensor(57)
    says('task "req-0": handle() in holders.py:%d: local image' % line["the task waits"], image)
    await decode(1)  # the task waits
    print(image)

loop = asyncio.new_event_loop()
tasks = [loop.create_task(handle(), name="req-0")]
loop.run_until_complete(asyncio.sleep(0))


def main(argument):
    local = {"x": Tensor(27)}
    captured = Tensor(28)
    net = Linear()
    add_module("net", net)
    says("main() in holders.py:%d: local net.weight" % line["main waits"], net.weight, role=1, module="net")

    def inner():
        return captured
    says('main() in holders.py:%d: local local["x"]' % line["main waits"], local["x"])
    says("main() in holders.py:%d: local captured" % line["main waits"], captured)
    says("main() in holders.py:%d: local argument" % line["main waits"], argument)
    time.sleep(0.2)  # the other thread goes to its wait
    print(json.dumps({"pid": os.getpid(), "objects": len(gc.get_objects()), "truth": truth, "modules": modules}), flush=True)
    sys.stdin.readline()  # main waits
    return local, inner, net


main(Tensor(29))
