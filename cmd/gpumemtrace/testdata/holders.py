"""A training program that leaks, and says what its own garbage collector finds."""
import gc, json, sys, threading
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(3)])
        self.norm = torch.nn.BatchNorm1d(64)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.norm(x)


class Trainer:
    def __init__(self):
        self.model = Net()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.history = []

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(32, 64)).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.history.append(torch.randn(100, 1000))


class Node:
    pass


def wait(started, stop):
    batch = torch.randn(50, 200)
    started.set()
    stop.wait()
    del batch


def cycle():
    a, b = Node(), Node()
    a.other, b.other, a.values = b, a, torch.randn(77, 99)


def truth():
    seen = {}
    for o in gc.get_objects():
        if isinstance(o, torch.Tensor):
            for t in [o] + ([o.grad] if o.grad is not None else []):
                s = t.storage()
                if s.data_ptr():
                    seen[s.data_ptr()] = s.nbytes()
    return {"bytes": sum(seen.values()), "storages": len(seen),
            "parameters": {k: p.numel() * p.element_size() for k, p in trainer.model.named_parameters()}}


trainer = Trainer()
for _ in range(5):
    trainer.step()
started, stop = threading.Event(), threading.Event()
threading.Thread(target=wait, args=(started, stop), name="prefetch", daemon=True).start()
started.wait()
gc.disable()
cycle()
print(json.dumps(truth()), flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        trainer.step()
    print(json.dumps(truth()), flush=True)
