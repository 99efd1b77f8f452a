"""torch.nn.DataParallel: one process that trains on all GPUs."""
from checkpoint import checkpoint

import torch


def main():
    checkpoint("ready")
    gpus = range(torch.cuda.device_count())
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = torch.nn.DataParallel(torch.nn.TransformerEncoder(layer, 4).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(8 * len(gpus), 128, 512, device="cuda")).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for i in gpus:
        torch.cuda.synchronize(i)
    checkpoint("trained", reserved=[torch.cuda.memory_reserved(i) for i in gpus], allocated=[torch.cuda.memory_allocated(i) for i in gpus])


main()
