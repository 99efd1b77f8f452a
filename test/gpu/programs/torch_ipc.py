"""A tensor that one process gives to another by CUDA IPC, and that outlives its owner there."""
import gc
import os
import signal

from checkpoint import checkpoint, held

import torch
import torch.multiprocessing as mp

BYTES = 256 << 20


def exporter(tensors, answers, end):
    x = torch.ones(BYTES, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    tensors.put(x)
    answers.put(held())
    end.wait()
    os._exit(0)  # as one that crashes: it frees nothing itself


def importer(tensors, answers, steps):
    x = tensors.get()
    print(int(x[-1]), flush=True)
    torch.cuda.synchronize()
    answers.put(held())
    for step in steps:
        step.wait()
        if step is steps[-1]:
            del x
            gc.collect()
            torch.cuda.ipc_collect()
        torch.cuda.synchronize()
        answers.put(held())
    signal.pause()  # until it is killed


def main():
    checkpoint("ready")
    context = mp.get_context("spawn")
    tensors, end, steps = context.Queue(), context.Event(), [context.Event() for _ in range(2)]
    ours, theirs = context.Queue(), context.Queue()
    owner = context.Process(target=exporter, args=(tensors, ours, end))
    other = context.Process(target=importer, args=(tensors, theirs, steps))
    owner.start()
    other.start()
    checkpoint("shared", ours.get(), theirs.get(), bytes=BYTES)
    end.set()
    owner.join()
    steps[0].set()
    checkpoint("orphaned", theirs.get(), bytes=BYTES)
    steps[1].set()
    checkpoint("closed", theirs.get())
    other.kill()  # its queue would be told to the owner at its end
    other.join()


if __name__ == "__main__":
    main()
