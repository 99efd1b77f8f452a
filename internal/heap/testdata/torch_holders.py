"""A training program of PyTorch that leaks in six ways. It says what it finds in itself, then waits."""
import functools
import gc
import json
import os
import sys
import threading
import time
import warnings

warnings.simplefilter("ignore")
import torch  # noqa: E402

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
truth = {}
with open(__file__) as source:
    line = {text.partition("  # ")[2].strip(): n for n, text in enumerate(source, 1)}


def says(path, t, **more):
    truth[path] = dict(more, address=t.storage().data_ptr(), bytes=t.storage().nbytes(), shape=list(t.shape))


class Trainer:
    def __init__(self):
        self.model, self.optimizer, self.history = model, optimizer, []

    def step(self, leak):
        loss = self.model(torch.randn(128, 64)).pow(2).mean()
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        if leak:
            self.history.append(self.model(torch.randn(128, 64)).pow(2).mean())


trainer = Trainer()
for i in range(8):
    trainer.step(i % 2)
for name, p in model.named_parameters():
    i, _, name = name.partition(".")
    path = "model[%s].%s" % (i, name)
    module = "model[%s]" % i
    says(path, p, role=1, klass="Parameter", module=module)
    says(path + ".grad", p.grad, role=3, module=module)
    says('optimizer.state[%s]["exp_avg"]' % path, optimizer.state[p]["exp_avg"], role=4, module=module)
says("model[2].running_mean", model[2].running_mean, role=2, module="model[2]")


class Service:
    __slots__ = ("kv",)


service = Service()
service.kv = {"layer0": torch.zeros(1000)}
says('service.kv["layer0"]', service.kv["layer0"])


def closure():
    hidden = torch.zeros(3, 100)
    says("function.<closure>.hidden", hidden)
    return lambda: hidden


function = closure()


@functools.lru_cache(maxsize=8)
def positions(n):
    return torch.zeros(n)


says("positions.cache(...)", positions(77))
view = torch.zeros(50, 50)[3:5].t()
says("view", view)
expanded = torch.zeros(7, 1).expand(7, 9)
says("expanded", expanded)


class Node:
    pass


gc.disable()
cycle = Node()
cycle.me, cycle.buffer = cycle, torch.zeros(123)
says("reference cycle: Node.buffer", cycle.buffer, cycle=True)
del cycle


class Scale(torch.autograd.Function):
    kind = "custom"

    @staticmethod  # Scale begins
    def forward(ctx, x):
        ctx.scaled, ctx.box = 2 * x, []
        return ctx.scaled

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def scale():
    scaled = Scale.apply(torch.ones(33, requires_grad=True))
    says("reference cycle: ScaleBackward.scaled (class Scale, torch_holders.py:%d)" % line["Scale begins"], scaled, cycle=True)
    # Two more own the node, so that the collector does not look into it.
    again = Scale.apply(torch.ones(35, requires_grad=True))
    again.grad_fn.box.append(3 * again)
    says("reference cycle: ScaleBackward.box[0] (class Scale, torch_holders.py:%d)" % line["Scale begins"], again.grad_fn.box[0])


def penalty():
    weight = torch.nn.Parameter(torch.ones(41))
    saved = weight.exp()
    (saved * saved).sum().backward(create_graph=True)
    path = "reference cycle: Parameter, .grad and its graph (create_graph=True)"
    says(path, weight)
    says(path + " ", saved, role=5)  # the test removes spaces
    says(path + "  ", weight.grad, role=3)

rnn = torch.nn.RNNCell(3, 3)
hidden = oldest = rnn(torch.zeros(1, 3))
for _ in range(400):
    hidden = rnn(torch.zeros(1, 3), hidden)
nodes = [hidden.grad_fn]
for node in nodes:
    nodes.extend({n for n, _ in node.next_functions if n}.difference(nodes))
says("hidden.grad_fn (graph of {:,} nodes)".format(len(nodes)), oldest, role=5)
del oldest, nodes, node


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        doubled = 2 * x
        ctx.save_for_backward(doubled)
        says("custom.grad_fn", doubled, role=5, node="SquareBackward")
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


custom = Square.apply(torch.ones(31, requires_grad=True))


def work():
    in_thread = torch.zeros(5, 9)
    says('thread "prefetch": work() in torch_holders.py:%d: local in_thread' % line["the thread waits"], in_thread)
    barrier.wait()
    stop.wait()  # the thread waits
    return in_thread


class Sharded(torch.Tensor):
    """A tensor without memory that stands for another one."""
    __slots__ = ("_local_tensor",)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, local, requires_grad=False):
        t = torch.Tensor._make_wrapper_subclass(cls, (2 * local.shape[0], *local.shape[1:]), dtype=local.dtype, requires_grad=requires_grad)
        t._local_tensor = local
        return t

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)


wrapped, sgd = torch.nn.Module(), torch.optim.SGD(model.parameters(), lr=1)
wrapped._parameters["weight"] = Sharded(torch.zeros(30, 3), True)
wrapped.weight.grad = Sharded(torch.zeros(30, 3))
sgd.state[wrapped.weight] = {"momentum": Sharded(torch.zeros(30, 3))}
says("wrapped.weight", wrapped.weight._local_tensor, role=1, klass="Sharded", module="wrapped")
says("wrapped.weight.grad", wrapped.weight.grad._local_tensor, role=3, klass="Sharded", module="wrapped")
says('sgd.state[wrapped.weight]["momentum"]', sgd.state[wrapped.weight]["momentum"]._local_tensor, role=4, klass="Sharded", module="wrapped")


scale()
penalty()
stop, barrier = threading.Event(), threading.Barrier(2)
threading.Thread(target=work, name="prefetch", daemon=True).start()
barrier.wait()


def storages():
    found = {}
    for o in gc.get_objects():
        if isinstance(o, torch.Tensor) and not isinstance(o, Sharded):
            for t in [o] + ([o.grad] if o.is_leaf and o.grad is not None else []):
                if t.storage().data_ptr():
                    found[t.storage().data_ptr()] = t.storage().nbytes()
    return list(found.items())


time.sleep(0.2)
print(json.dumps({"pid": os.getpid(), "objects": len(gc.get_objects()), "truth": truth, "storages": storages()}), flush=True)
sys.stdin.readline()
