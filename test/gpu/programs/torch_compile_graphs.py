"""torch.compile with CUDA graphs: training steps of PyTorch's own Transformer that are replayed."""
import os

from checkpoint import checkpoint

checkpoint("ready")  # its libraries are loaded while it is traced
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of processes that compile
import torch  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402


def main():
    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    compiled = torch.compile(model, mode="reduce-overhead")
    x = torch.randn(16, 128, 256, device="cuda")
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        compiled(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    checkpoint("trained", reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated(), skipped=counters["inductor"]["cudagraph_skips"])


main()
