"""Trains a model and says what PyTorch's own allocator lists of its segments and blocks."""
import torch

from checkpoint import checkpoint


def segments():
    """Every segment with its blocks, as torch.cuda.memory._snapshot has them without any recording."""
    torch.cuda.synchronize()
    return [{"device": g["device"], "address": g["address"], "total_size": g["total_size"], "segment_type": g["segment_type"],
             "expandable": g.get("is_expandable", False), "blocks": [[b["size"], b["state"]] for b in g["blocks"]]}
            for g in torch.cuda.memory._snapshot()["segments"]]


def main():
    checkpoint("ready")
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(16, 128, 512, device="cuda")

    def say(name):
        checkpoint(name, allocated=torch.cuda.memory_allocated(), reserved=torch.cuda.memory_reserved(), segments=segments())

    for step in range(4):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if step == 3:
            say("forward")
        loss.backward()
        optimizer.step()
    say("trained")
    kept = [torch.empty(n << 16, device="cuda") for n in range(1, 40)]
    other = torch.cuda.Stream()
    kept[1].record_stream(other)
    del kept[::2], loss
    say("fragmented")
    torch.cuda.empty_cache()
    say("emptied")


main()
