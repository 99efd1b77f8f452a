"""Processes beside a training one: DataLoader's forked workers, and children of a fork server with contexts of their own."""
from checkpoint import checkpoint, held

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset


def child(answers, end, mib):
    x = torch.ones(mib << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    answers.put({**held(), "reserved": torch.cuda.memory_reserved(), "n": x.numel()})
    end.wait()


def main():
    checkpoint("ready")
    model = torch.nn.Linear(1024, 1024).cuda()
    data = TensorDataset(torch.randn(512, 1024))
    loader = DataLoader(data, batch_size=64, num_workers=2, pin_memory=True, persistent_workers=True)
    batches = iter(loader)
    for (x,) in batches:
        model(x.cuda(non_blocking=True)).sum().backward()
    context = mp.get_context("forkserver")
    answers, end = context.Queue(), context.Event()
    children = [context.Process(target=child, args=(answers, end, 64 * (i + 1))) for i in range(2)]
    for c in children:
        c.start()
    told = [answers.get() for _ in children]
    torch.cuda.synchronize()
    checkpoint("held", *told, workers=[w.pid for w in batches._workers], reserved=torch.cuda.memory_reserved())
    end.set()
    for c in children:
        c.join()
    del batches, loader
    checkpoint("alone")


if __name__ == "__main__":
    main()
