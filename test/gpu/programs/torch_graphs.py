"""An inference loop with a CUDA graph."""
from checkpoint import checkpoint

import torch


def told(name):
    torch.cuda.synchronize()
    checkpoint(name, reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated())


def main():
    checkpoint("ready")
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda().half().eval()
    x = torch.randn(64, 4096, device="cuda", dtype=torch.half)
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(x)
        torch.cuda.current_stream().wait_stream(side)
        told("warm")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(x)
    for _ in range(100):
        graph.replay()
    told("captured")
    del graph
    torch.cuda.empty_cache()
    told("dropped")


main()
