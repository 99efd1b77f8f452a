"""Two processes, on one GPU or on one each, optionally with NCCL between them."""
import os
import sys

from checkpoint import checkpoint, held

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, mode, barrier, answers):
    torch.cuda.set_device(rank if mode == "nccl" else 0)
    mine = torch.ones(64 << 20, device="cuda") * rank
    if mode == "nccl":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
        dist.init_process_group("nccl", rank=rank, world_size=2)
        for _ in range(3):
            dist.all_reduce(mine)
    torch.cuda.synchronize()
    answers.put({**held(), "gpu": torch.cuda.current_device(), "reserved": torch.cuda.memory_reserved()})
    barrier.wait()  # everybody holds
    barrier.wait()  # the parent has been answered
    if mode == "nccl":
        dist.destroy_process_group()


def main():
    checkpoint("ready")
    context = mp.get_context("spawn")
    barrier, answers = context.Barrier(3), context.Queue()
    workers = [context.Process(target=worker, args=(r, sys.argv[1], barrier, answers)) for r in range(2)]
    for w in workers:
        w.start()
    told = [answers.get() for _ in workers]
    barrier.wait()
    checkpoint("held", *told)
    barrier.wait()
    for w in workers:
        w.join()


if __name__ == "__main__":
    main()
