"""FSDP2 as torchrun starts it: NCCL's group, an all-reduce, training steps, a copy to another GPU."""
import os

from checkpoint import checkpoint

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

RANK = int(os.environ["RANK"])


def told(name):
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    checkpoint(name, rank=RANK, gpu=torch.cuda.current_device(), reserved=torch.cuda.memory_reserved(),
               allocated=[torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count())])


def main():
    checkpoint("ready")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    told("joined")
    x = torch.ones(64 << 20, device="cuda")
    for _ in range(3):
        dist.all_reduce(x)
    told("reduced")
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4).cuda()
    for one in model.layers:
        fully_shard(one)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(8, 128, 1024, device="cuda")).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    told("trained")
    copy = x.to("cuda:1") if RANK == 0 else None
    told("copied")
    del copy
    dist.destroy_process_group()


main()
